"""A hold that listens first and starts its command when it is told to."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from holdfast_sidecar.hold import EventKind, HoldError, HoldLink

from .holding import Terminal, Wait, Waiting, eventually

SECOND = 1_000_000_000


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def ask(waiting: Waiting, *requests: bytes) -> list[dict[str, object]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(30)
        sock.connect(waiting.socket)
        answers = []
        for request in requests:
            sock.send(request)
            answers.append(json.loads(sock.recv(65536)))
        return answers


async def test_nothing_runs_until_it_is_asked_to(wait: Wait) -> None:
    waiting = await wait("sh", "-c", "stty size; tty; read x; exit 5")
    before = await waiting.link.status()
    assert (before.started, before.keeper_pid, before.command_pid, before.tty) == (False, 0, 0, "")
    assert (before.exited, before.frozen, before.expired, before.by) == (False, False, False, None)
    await waiting.link.start(101, 37)
    after = await waiting.link.status()
    assert after.started
    assert after.keeper_pid
    assert after.command_pid
    terminal = await waiting.terminal()
    await terminal.expect(f"37 101\r\n{after.tty}\r\n".encode())
    with pytest.raises(HoldError) as caught:
        await waiting.link.start(80, 24)
    assert caught.value.code == "started"
    terminal.send(b"\n")
    assert (await waiting.event(EventKind.EXITED)).code == 5
    terminal.close()
    await waiting.link.collected()
    assert await waiting.gone() == (5, "")


async def test_each_hold_has_a_name_of_its_own(wait: Wait) -> None:
    first = await wait("cat")
    nonce = (await first.link.status()).nonce
    assert re.fullmatch("[0-9a-f]{16}", nonce)
    await first.link.start(80, 24)
    again = await HoldLink.connect(first.socket)
    assert (await again.status()).nonce == nonce
    await again.end(0)
    await eventually(again.status, lambda s: s.exited, "its end")
    await again.collected()
    again.close()
    await first.gone()
    second = await wait("cat")
    assert (await second.link.status()).nonce != nonce


async def test_what_needs_the_command_says_that_it_is_not_there(wait: Wait) -> None:
    waiting = await wait("cat")
    needs = b"master|outbox|freeze|thaw|graph|foreground|collected|signal INT".split(b"|")
    assert {a["error"] for a in ask(waiting, *needs)} == {"not_started"}
    wrong = (
        b"start 0x1|start 80|start 80x|start 80x24x|start 70000x1|start -1x5|start now|go|signal X"
    )
    assert {a["error"] for a in ask(waiting, *wrong.split(b"|"))} == {"bad_request"}
    assert not (await waiting.link.status()).started


async def test_without_a_size_it_is_the_option_s(wait: Wait) -> None:
    waiting = await wait("sh", "-c", "stty size; pwd; cat", options=("--size", "90x20"))
    assert ask(waiting, b"start") == [{"ok": True}]
    terminal = await waiting.terminal()
    await terminal.expect(f"20 90\r\n{Path.cwd()}\r\n".encode())
    terminal.close()


async def test_a_deadline_that_has_passed_forbids_the_start(wait: Wait) -> None:
    waiting = await wait("echo", "ran")
    await waiting.link.deadline(now() + SECOND // 20)
    await eventually(waiting.link.status, lambda s: s.expired, "the deadline")
    for _ in range(2):
        with pytest.raises(HoldError) as caught:
            await waiting.link.start(80, 24)
        assert caught.value.code == "expired"
    assert waiting.events == []
    assert not (await waiting.link.status()).started
    await waiting.link.deadline(now() + 60 * SECOND)
    await waiting.link.start(80, 24)
    terminal = await waiting.terminal()
    await terminal.expect(b"ran")
    terminal.close()


async def test_a_deadline_set_before_the_start_holds_after_it(wait: Wait) -> None:
    waiting = await wait("cat")
    await waiting.link.deadline(now() + SECOND // 2)
    await waiting.link.start(80, 24)
    assert (await waiting.event(EventKind.FROZEN)).by == "deadline"
    assert {p.state for p in (await waiting.link.graph()).processes} == {"T"}


@pytest.mark.parametrize(
    ("command", "options", "code", "words"),
    [
        ("no-such", (), 127, "command not found: no-such; check its name and PATH"),
        (
            "./plain",
            (),
            126,
            "cannot run ./plain: Permission denied; it must be an executable file",
        ),
        ("true", ("--cwd", "/no/such"), 1, "give one that exists with --cwd"),
    ],
)
async def test_a_command_that_cannot_start_is_told_and_ends_hold(
    wait: Wait, command: str, options: tuple[str, ...], code: int, words: str
) -> None:
    await asyncio.to_thread(Path("plain").write_text, "not a program")
    waiting = await wait(command, options=options)
    other = await HoldLink.connect(waiting.socket)
    with pytest.raises(HoldError) as caught:
        await waiting.link.start(80, 24)
    assert (caught.value.code, caught.value.exit_code) == ("cannot_start", code)
    assert words in caught.value.message
    assert await waiting.gone() == (code, f"hold: {caught.value.message}\n")
    assert not await asyncio.to_thread(Path(waiting.socket).exists)
    other.close()


async def test_ended_before_it_began(wait: Wait) -> None:
    waiting = await wait("touch", "ran")
    assert ask(waiting, b"end 5000") == [{"ok": True}]
    assert await waiting.gone() == (143, "")
    assert not await asyncio.to_thread(Path("ran").exists)
    assert not await asyncio.to_thread(Path(waiting.socket).exists)


async def test_told_to_end_it_starts_nothing_more(wait: Wait) -> None:
    waiting = await wait("touch", "ran")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(waiting.socket)
        os.kill(waiting.link.hold_pid, signal.SIGSTOP)  # so that both are read in one turn
        sock.send(b"end 0")
        sock.send(b"start")
        os.kill(waiting.link.hold_pid, signal.SIGCONT)
        assert await waiting.gone() == (143, "")
    assert not await asyncio.to_thread(Path("ran").exists)


async def test_terminated_before_it_began(wait: Wait) -> None:
    waiting = await wait("touch", "ran")
    os.kill(waiting.link.hold_pid, signal.SIGTERM)
    assert await waiting.gone() == (143, "")
    assert not await asyncio.to_thread(Path("ran").exists)


async def test_terminated_when_nobody_collects(wait: Wait) -> None:
    waiting = await wait("sh", "-c", "trap '' HUP; sleep 1000 & exit 6")
    await waiting.link.start(80, 24)
    await waiting.event(EventKind.EXITED)
    waiting.link.close()
    os.kill(waiting.link.hold_pid, signal.SIGTERM)
    assert await waiting.gone() == (6, "")


@pytest.mark.parametrize("first", ["itself", "signal", "keyboard", "end", "term"])
async def test_the_exit_says_what_called_for_it(wait: Wait, first: str) -> None:
    script = "trap 'exit 3' HUP INT; echo up; while read x; do [ $x = go ] && exit 3; done"
    waiting = await wait("bash", "-c", script)
    await waiting.link.start(80, 24)
    terminal: Terminal = await waiting.terminal()
    await terminal.expect(b"up")
    if first == "itself":
        terminal.send(b"go\n")
    elif first == "signal":
        await waiting.link.signal(signal.SIGINT)
    elif first == "keyboard":
        terminal.send(b"\x03")
    elif first == "end":
        await waiting.link.end(5)
    else:
        os.kill(waiting.link.hold_pid, signal.SIGTERM)
    wanted = first if first in ("end", "term") else "itself"
    event = await waiting.event(EventKind.EXITED)
    assert (event.by, event.code) == (wanted, 3)
    status = await waiting.link.status()
    assert (status.by, status.code) == (wanted, 3)
    terminal.close()


@pytest.mark.timed
@pytest.mark.parametrize("first", ["end", "term"])
async def test_the_grace_after_sigterm_is_an_option(wait: Wait, first: str) -> None:
    stubborn = ("bash", "-c", "trap '' HUP TERM; echo up; while :; do read x; done")
    waiting = await wait(*stubborn, options=("--term-grace", "0"))
    await waiting.link.start(80, 24)
    terminal = await waiting.terminal()
    await terminal.expect(b"up")
    start = time.monotonic()
    if first == "end":
        await waiting.link.end(60)
    os.kill(waiting.link.hold_pid, signal.SIGTERM)
    event = await waiting.event(EventKind.EXITED)
    assert (event.by, event.signal) == (first, signal.SIGKILL)
    assert time.monotonic() - start < 4  # it is 5 s unless told otherwise
    terminal.close()
