"""The cluster's processes: started in the background, remembered by pid and start time, so that
`down` ends these and no others, also after the program that started them is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.cluster.places import LOGS, STATE
from e2e.cluster.say import ClusterError

_FOLDER = STATE / "pids"
# Kept only so that Python does not complain that nobody waits for them: they outlive us.
_children: list[subprocess.Popen[bytes]] = []


def start(
    name: str,
    command: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
    cwd: Path = Path("/"),
    keep: Sequence[int] = (),
) -> int:
    """`keep`: descriptors that it inherits."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    with (LOGS / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=None if env is None else {**os.environ, **env},
            start_new_session=True,
            cwd=cwd,
            pass_fds=keep,
        )
    _children.append(process)
    remember(_FOLDER / name, process.pid)
    return process.pid


def remember(record: Path, pid: int) -> None:
    """Pids come again, also after a reboot with the same start: so with the boot."""
    body = {"pid": pid, "started": _started(pid), "boot": _boot()}
    record.write_text(json.dumps(body))


def remembered(record: Path) -> int | None:
    """The very process that was remembered, if it still runs."""
    try:
        body = json.loads(record.read_text())
        pid, started, boot = int(body["pid"]), body["started"], body.get("boot", _boot())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return pid if started is not None and _started(pid) == started and boot == _boot() else None


def pid_of(name: str) -> int | None:
    """None if it does not run."""
    return remembered(_FOLDER / name)


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def names() -> list[str]:
    return sorted(path.name for path in _FOLDER.iterdir()) if _FOLDER.is_dir() else []


def child_of(pid: int) -> int | None:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


def stop(name: str, number: int = signal.SIGTERM, within: float = 10.0) -> None:
    """Ended for certain when this returns; killed if it takes too long."""
    pid = pid_of(name)
    if pid is not None:
        send(pid, number)
        if not gone(pid, within):
            send(pid, signal.SIGKILL)
            if not gone(pid, 10.0):
                raise ClusterError(f"{name} (pid {pid}) cannot be ended")
    (_FOLDER / name).unlink(missing_ok=True)


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def gone(pid: int, within: float) -> bool:
    give_up = time.monotonic() + within
    while True:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # ours, if this very process started it
        if _started(pid) is None:
            return True
        if time.monotonic() > give_up:
            return False
        time.sleep(0.02)


def _started(pid: int) -> int | None:
    """Clock ticks from boot to its start; None if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
