"""What the agents of two nodes do with a session, for tests."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from api_kit import PREFIX, Fault, Pod, Request
from gateway_kit import until
from sidecar_kit import Client

TARGET = "target-uid"
# Prints nothing by itself; what it is given lies in the file.
TAKES = "stty raw -echo; touch $COUNTER; exec cat >> $COUNTER"
DEAF = "stty raw -echo; touch $COUNTER; exec sleep 1000"


def begin(pod: Pod, script: str = TAKES) -> None:
    pod.start("sh", "-c", script)
    until(pod_file(pod).exists, "the command")


def pod_file(pod: Pod) -> Path:
    return pod.folder / "counter"


def taken(pod: Pod) -> bytes:
    return pod_file(pod).read_bytes()


def seal(pod: Pod) -> dict[str, Any]:
    assert pod.agent("park", to=TARGET)["ok"]
    assert pod.ask_hold("freeze")["ok"]
    closed = pod.agent("seal", unoffered=True)
    assert closed["ok"], closed
    assert "offer" not in pod.api.notes()
    answer = sealed(pod)
    assert answer == closed, "what was copied since is what is offered"
    return answer


def sealed(pod: Pod) -> dict[str, Any]:
    answer = pod.agent("seal")
    assert answer["ok"], answer
    return answer


def stay(pod: Pod) -> None:
    answer = pod.agent("unpark")
    assert answer["ok"], answer
    assert "offer" not in pod.api.notes()
    assert pod.ask_hold("thaw")["ok"]


def carry(source: Pod, target: Pod, files: list[str], script: str = TAKES) -> None:
    """As the agents do it, but for the processes: what is started stands for the adopted."""
    target.start_hold("sh", "-c", script)
    target.start_sidecar()
    target.said("waiting for a session")
    for name in files:
        shutil.copy(source.state / name, target.state / name)
    (target.state / "cut.json").write_text('[["10.1.0.2:5000", "10.9.9.9:443"]]')
    assert target.ask_hold("start 80x24")["ok"]
    until(pod_file(target).exists, "the restored command")


def digest(pod: Pod, files: list[str]) -> dict[str, str]:
    return {n: hashlib.sha256((pod.state / n).read_bytes()).hexdigest() for n in files}


def acked(client: Client) -> list[int]:
    client.ask("ping")  # what was said before the answer has been heard
    return [ack.number for ack in client.acks]


def kill(pod: Pod) -> None:
    assert pod.sidecar is not None
    pod.sidecar.kill()
    pod.sidecar.wait(15)
    (pod.state / "agent.sock").unlink()
    (pod.state / "sidecar.sock").unlink(missing_ok=True)


def is_write(request: Request) -> bool:
    return request.method == "PUT"


def notes(request: Request) -> dict[str, str]:
    found: dict[str, str] = request.body["metadata"]["annotations"]
    return found


def offers(request: Request) -> bool:
    return is_write(request) and PREFIX + "offer" in notes(request)


def takes(request: Request) -> bool:
    return is_write(request) and notes(request)[PREFIX + "epoch"] == "4"


def once(wanted: Callable[[Request], bool], fault: Fault) -> Callable[[Request], Fault | None]:
    done: list[Request] = []

    def choose(request: Request) -> Fault | None:
        if done or not wanted(request):
            return None
        done.append(request)
        return fault

    return choose


def ignored(act: Callable[[], object]) -> None:
    with contextlib.suppress(OSError, ValueError):
        act()
