"""Real sessions under a real hold: both builds, and as root with and without a PID namespace."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway_kit import remove
from holdfast_sidecar.hold import HoldEvent, HoldLink

from .holding import (
    CONTAINER,
    Build,
    Container,
    Session,
    Start,
    Terminal,
    Wait,
    Waiting,
    appears,
)

SOURCES = Path(__file__).parents[2] / "init"


@pytest.fixture(scope="session")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    release, asan = os.environ.get("HOLD_BIN"), os.environ.get("HOLD_ASAN_BIN")
    if not (release and asan):
        out = tmp_path_factory.mktemp("build")
        make = ["make", "-s", "-C", str(SOURCES), f"OUT={out}", "all", "asan"]
        subprocess.run(make, check=True)
        release, asan = release or str(out / "hold"), asan or str(out / "hold-asan")
    return {"release": release, "asan": asan}


VARIANTS = ["release-auto", "asan-auto"] + (["asan-no"] if os.geteuid() == 0 else [])


@pytest.fixture(params=VARIANTS)
def build(request: pytest.FixtureRequest, binaries: dict[str, str]) -> Build:
    name, _, namespace = request.param.partition("-")
    return Build(binaries[name], namespace)


@pytest.fixture
def socket_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    # A socket's path must be short, and pytest's directories may not be.
    monkeypatch.chdir(tmp_path)
    return "hold.sock"


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    logs = tmp_path / "sanitizer"
    yield {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TERM": "xterm",
        "PS1": "ready> ",
        "PYTHON_HISTORY": "/dev/null",
        "ASAN_OPTIONS": f"log_path={logs}",
        "UBSAN_OPTIONS": f"log_path={logs}:print_stacktrace=1",
    }
    found = [p.read_text() for p in tmp_path.glob("sanitizer*")]
    assert not found, found[0]


@pytest.fixture
async def start(
    build: Build, socket_path: str, environment: dict[str, str]
) -> AsyncIterator[Start]:
    sessions: list[Session] = []

    async def run(*command: str, options: tuple[str, ...] = ()) -> Session:
        path = socket_path if not sessions else f"{len(sessions)}.sock"
        hold = [build.path, "--daemon", "--socket", path, "--namespace", build.namespace, *options]
        process = await asyncio.create_subprocess_exec(*hold, "--", *command, env=environment)
        assert await process.wait() == 0
        events: list[HoldEvent] = []
        link = await HoldLink.connect(path, on_event=events.append)
        session = Session(path, link, Terminal(await link.master()), events)
        sessions.append(session)
        return session

    yield run
    for session in sessions:
        await session.finish()


@pytest.fixture
async def wait(build: Build, socket_path: str, environment: dict[str, str]) -> AsyncIterator[Wait]:
    started: list[Waiting] = []

    async def run(*command: str, options: tuple[str, ...] = ()) -> Waiting:
        hold = [build.path, "--wait", "--socket", socket_path, "--namespace", build.namespace]
        process = await asyncio.create_subprocess_exec(
            *hold, *options, "--", *command, env=environment, stderr=asyncio.subprocess.PIPE
        )
        events: list[HoldEvent] = []
        link = await appears(socket_path, events.append)
        started.append(Waiting(socket_path, process, link, events))
        return started[-1]

    yield run
    for one in started:
        one.link.close()
        if one.process.returncode is None:
            one.process.kill()
            await one.process.communicate()


@pytest.fixture
def python() -> str:
    return sys.executable


@pytest.fixture
def room() -> Iterator[Path]:
    """A directory that any uid can reach, which pytest's own are not."""
    path = Path(tempfile.mkdtemp(prefix="hold-"))
    path.chmod(0o777)
    yield path
    remove(path)


@pytest.fixture(params=["release", "asan"])
def program(request: pytest.FixtureRequest, binaries: dict[str, str], room: Path) -> str:
    """Installed as a pod does it."""
    path = str(room / "hold")
    subprocess.run([binaries[request.param], "--install", path], check=True)
    return path


@pytest.fixture
async def container(
    program: str, room: Path, environment: dict[str, str]
) -> AsyncIterator[Container]:
    running: list[Waiting] = []
    logs = f"log_path={room}/sanitizer"
    # Signals it does not handle cannot hurt PID 1, so the sanitizer may not handle them either.
    asan = f"{logs}:handle_segv=0:handle_sigbus=0:handle_sigfpe=0"
    bare = {"PATH": environment["PATH"], "ASAN_OPTIONS": asan, "UBSAN_OPTIONS": logs}

    async def run(uid: int, *command: str, options: tuple[str, ...] = ()) -> Waiting:
        path = str(room / "hold.sock")
        process = await asyncio.create_subprocess_exec(
            "unshare", "--mount", "--pid", "--fork", "--kill-child",
            "sh", "-c", CONTAINER, str(room), str(uid),
            program, "--socket", path, "--shared", "--wait", *options, "--", *command,
            env=bare, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        events: list[HoldEvent] = []
        running.append(Waiting(path, process, await appears(path, events.append), events))
        return running[-1]

    yield run
    for one in running:
        if one.process.returncode is None:
            # unshare's --kill-child does not outlive the change of uid.
            os.kill(one.link.hold_pid, signal.SIGKILL)
            await one.process.communicate()
        one.link.close()
    found = await asyncio.to_thread(lambda: [p.read_text() for p in room.glob("sanitizer*")])
    assert not found, found[0]
