"""The gateway of a real cluster: how soon `kubectl holdfast attach` shows something, against
`kubectl exec POD -- true`; what a keystroke takes through API server, gateway and sidecar; what 500
viewers who look at nothing cost it; and what 100 cost the program they all look at.
"""

from __future__ import annotations

import asyncio
import json
import os
import pty
import ssl
import statistics
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import aiohttp
import yaml
from e2e.cluster.places import KUBECONFIG, REPOSITORY, SHARED
from e2e.lab import OPERATOR_NAMESPACE, Lab, Session, command_line, container_pids, until
from e2e.movers import shared

from bench.crowd import Where
from bench.measure_memory import memory_mib
from bench.measure_moves import on_a_cluster
from bench.processes import Failed
from bench.report import Figures, Table
from holdfast_kube.credentials import from_kubeconfig
from holdfast_wire.frames import Attach, Decoder, Frame, Input, Output, Snapshot, encode

ROUNDS: Final = 15
KEYSTROKES: Final = 400
PAUSE: Final = 0.005
IDLE_VIEWERS: Final = 500
BUSY_VIEWERS: Final = 100
BUSY_ROUNDS: Final = 5
ACCOUNT: Final = "bench"
PATIENCE: Final = 60.0
# Prints so many megabytes and writes outside how long that took: by the program's own clock, so
# that what is measured is the source, and not who looks at it.
SOURCE: Final = """
import sys, time
line = "the quick brown fox jumps over the lazy dog, number %08d of many such lines\\n"
block = "".join(line % n for n in range(1400))
while True:
    count = int(input("megabytes? "))
    began = time.monotonic()
    for _ in range(count * 10):
        sys.stdout.write(block)
    sys.stdout.flush()
    with open(sys.argv[1], "a") as file:
        print(time.monotonic() - began, file=file)
"""
MEGABYTES: Final = 200
SETTLE_SECONDS: Final = 2.0
RAW: Final = "stty raw -echo; echo READY; exec cat"


def measure(table: Table) -> Figures:
    table.title("gateway: through the API server, and many viewers")
    if os.geteuid() != 0:
        table.note("left out: a cluster on this machine needs root (sudo make bench)")
        return {}
    with on_a_cluster() as lab:
        figures = _attaching(lab) | asyncio.run(_echoing(lab))
        direct = Direct(lab)
        session = _source(lab)
        figures |= asyncio.run(_idling(direct)) | _flooding(lab, direct)
        session.delete()
    for name, value in figures.items():
        table.row(name)
        table.cell(f"{value:.2f}")
    return figures


# -- how soon something is seen -------------------------------------------------------------------


def _attaching(lab: Lab) -> Figures:
    session = lab.session("first", "sh", "-c", "echo MARK; exec cat")
    attach, execute = [], []
    for _ in range(ROUNDS):
        attach.append(_until_seen(lab))
        began = time.monotonic()
        lab.kubectl("exec", session.pod, "-c", "session", "--", "true")
        execute.append(time.monotonic() - began)
    session.delete()
    ours, theirs = (1000 * statistics.median(took) for took in (attach, execute))
    return {
        "kubectl_attach_first_frame_ms": ours,
        "kubectl_exec_true_ms": theirs,
        "kubectl_attach_ratio_to_exec": ours / theirs,
    }


def _until_seen(lab: Lab) -> float:
    """From starting the program on a terminal to what the session has on its screen."""
    outer, inner = pty.openpty()
    program = str(REPOSITORY / ".venv" / "bin" / "kubectl-holdfast")
    env = {"HOLDFAST_KUBECTL": str(lab.programs / "kubectl"), "PATH": "/usr/bin:/bin",
           "HOME": "/nonexistent", "TERM": "xterm-256color", "LANG": "C.UTF-8"}  # fmt: skip
    began = time.monotonic()
    process = subprocess.Popen(
        [program, f"--kubeconfig={KUBECONFIG}", "attach", "first"],
        stdin=inner, stdout=inner, stderr=inner, env=env, start_new_session=True,
    )  # fmt: skip
    os.close(inner)
    seen = b""
    try:
        while b"MARK" not in seen:
            seen += os.read(outer, 65536)
        return time.monotonic() - began
    except OSError:
        raise Failed(f"attach ended: {seen.decode(errors='replace')[-300:]}") from None
    finally:
        process.kill()
        process.wait()
        os.close(outer)


# -- a keystroke ----------------------------------------------------------------------------------


class Attached:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._decoder = socket, Decoder()
        self._waiting: list[Frame] = []

    async def frame(self) -> Frame:
        while not self._waiting:
            message = await self._socket.receive(PATIENCE)
            if message.type is not aiohttp.WSMsgType.BINARY:
                raise Failed(f"the stream ended: {message.type.name} {message.data}")
            self._waiting += self._decoder.feed(message.data)
        return self._waiting.pop(0)

    async def begin(self, mode: str) -> None:
        body = {"columns": 80, "rows": 24, "mode": mode}
        await self._socket.send_bytes(encode(Attach(body)))
        while not isinstance(await self.frame(), Snapshot):
            pass

    async def type(self, number: int, text: bytes) -> None:
        key = b"%d-%d" % (os.getpid(), number)
        await self._socket.send_bytes(encode(Input(number, key, text)))

    async def until(self, wanted: bytes) -> None:
        seen = b""
        while wanted not in seen:
            frame = await self.frame()
            if isinstance(frame, Output):
                seen = (seen + frame.data)[-200:]

    async def forever(self) -> None:
        """A gap, and the fresh screen after it, are what a slow viewer gets."""
        while True:
            await self.frame()


@asynccontextmanager
async def attached(
    http: aiohttp.ClientSession, url: str, tls: ssl.SSLContext, name: str | None, mode: str
) -> AsyncIterator[Attached]:
    async with http.ws_connect(
        url, ssl=tls, server_hostname=name, protocols=("holdfast.v1",), max_msg_size=0
    ) as socket:
        made = Attached(socket)
        await made.begin(mode)
        yield made


async def _echoing(lab: Lab) -> Figures:
    session = await asyncio.to_thread(lab.session, "echo", "sh", "-c", RAW)
    known = from_kubeconfig(yaml.safe_load(KUBECONFIG.read_text()), KUBECONFIG.parent)
    url = f"{known.server}/apis/subresources.holdfast.dev/v1alpha1/namespaces/default/sessions"
    took = []
    async with (
        aiohttp.ClientSession() as http,
        attached(http, f"{url}/echo/stream", known.tls(), None, "write") as client,
    ):
        for number in range(1, KEYSTROKES + 1):
            text = b"<%d>" % number
            began = time.perf_counter()
            await client.type(number, text)
            await client.until(text)
            took.append(time.perf_counter() - began)
            await asyncio.sleep(PAUSE)
    await asyncio.to_thread(session.delete)
    return {
        "echo_via_gateway_p50_ms": 1000 * statistics.median(took),
        "echo_via_gateway_p99_ms": 1000 * sorted(took)[int(len(took) * 0.99)],
    }


# -- many viewers ---------------------------------------------------------------------------------


class Direct:
    """One replica, reached at its own address with a token."""

    def __init__(self, lab: Lab) -> None:
        pods = lab.get("pods", "-n", OPERATOR_NAMESPACE, "-l",
                       "app.kubernetes.io/component=gateway")["items"]  # fmt: skip
        self.pod = min(pods, key=lambda pod: str(pod["metadata"]["name"]))
        self.address, self.port = str(self.pod["status"]["podIP"]), 8443
        self.path = "/api/v1/namespaces/default/sessions/source/stream"
        secret = lab.get("secret", "holdfast-gateway", "-n", OPERATOR_NAMESPACE)
        self.authority = b64decode(secret["data"]["ca.crt"]).decode()
        self.name = f"holdfast-gateway.{OPERATOR_NAMESPACE}.svc"
        lab.kubectl("create", "serviceaccount", ACCOUNT)
        lab.kubectl("create", "rolebinding", ACCOUNT, "--clusterrole=holdfast-user",
                    f"--serviceaccount=default:{ACCOUNT}")  # fmt: skip
        self.token = lab.kubectl("create", "token", ACCOUNT, "--audience=holdfast").strip()

    @property
    def pid(self) -> int:
        for pid in container_pids(self.pod["metadata"]["uid"]):
            if any(word.endswith("holdfast-gateway") for word in command_line(pid)):
                return pid
        raise Failed("the gateway's process is not found")

    @asynccontextmanager
    async def viewers(self, count: int) -> AsyncIterator[None]:
        """Who answer pings, and otherwise look on."""
        headers = {"Authorization": f"Bearer {self.token}"}
        url = f"https://{self.address}:{self.port}{self.path}"
        tls = ssl.create_default_context(cadata=self.authority)
        tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        made = 0
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, headers=headers) as http:

            async def one() -> None:
                nonlocal made
                async with attached(http, url, tls, self.name, "view") as client:
                    made += 1
                    await client.forever()

            async with asyncio.TaskGroup() as tasks:
                running = []
                for number in range(count):
                    running.append(tasks.create_task(one()))
                    if number % 20 == 19:  # not all handshakes at once
                        await asyncio.sleep(0.2)
                async with asyncio.timeout(PATIENCE):
                    while made < count:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                yield
                for task in running:
                    task.cancel()

    @contextmanager
    def crowd(self, count: int, received: list[float]) -> Iterator[None]:
        """Who take what comes and do not look at it; adds the megabytes that came to each."""
        where = Where(
            self.address, self.port, self.name, self.authority, self.path, self.token, count
        )
        with subprocess.Popen(
            [sys.executable, "-m", "bench.crowd"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY,
        ) as process:  # fmt: skip
            if process.stdin is None or process.stdout is None:
                raise Failed("the viewers have no pipes")
            try:
                process.stdin.write(where.to_line())
                process.stdin.flush()
                if process.stdout.readline() != "ready\n":
                    raise Failed("the viewers could not attach")
                yield
                process.stdin.close()
                received += [came / 1e6 for came in json.loads(process.stdout.readline() or "[]")]
            finally:
                process.kill()


def _source(lab: Lab) -> Session:
    (SHARED / "source").unlink(missing_ok=True)
    return lab.session("source", "python3", "-c", SOURCE, "/shared/source", **shared())


async def _idling(direct: Direct) -> Figures:
    async with direct.viewers(IDLE_VIEWERS):
        await asyncio.sleep(5)
        return {"gateway_500_viewers_mib": memory_mib(direct.pid)["Pss"]}


def _flooding(lab: Lab, direct: Direct) -> Figures:
    alone, crowded, received = [], [], list[float]()
    for _ in range(BUSY_ROUNDS):
        with direct.crowd(1, []):
            alone.append(_printing(lab))
        with direct.crowd(BUSY_VIEWERS, received):
            crowded.append(_printing(lab))
    if len(received) != BUSY_ROUNDS * BUSY_VIEWERS:
        raise Failed("viewers were cut off")
    return {
        "source_1_viewer_seconds": statistics.median(alone),
        "source_100_viewers_seconds": statistics.median(crowded),
        "source_slowdown_100_viewers_ratio": statistics.median(crowded) / statistics.median(alone),
        "source_100_viewers_received_mb": statistics.median(received),
    }


def _printing(lab: Lab) -> float:
    """What the program itself says it took."""
    said = SHARED / "source"
    before = len(_lines(said))
    time.sleep(SETTLE_SECONDS)
    lab.holdfast("send", "source", str(MEGABYTES), "--enter")
    return float(until(lambda: _lines(said)[before:], "it has printed", 240.0)[0])


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
