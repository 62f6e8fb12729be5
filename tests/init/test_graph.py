"""What the graph says of processes that cannot be moved, and what is not worth a word."""

from __future__ import annotations

import shutil

import pytest

import stuck_kit
from holdfast_sidecar import movable
from holdfast_sidecar.state import Graph, Process

from .holding import Session, Start


async def up(start: Start, *command: str) -> tuple[Session, Graph]:
    session = await start(*command)
    said = await session.terminal.expect(b"\r\n")
    if b"refused" in said:
        pytest.skip(f"this kernel refuses it: {said!r}")
    return session, await session.link.graph()


def only(graph: Graph, **wanted: object) -> Process:
    [found] = [p for p in graph.processes if all(getattr(p, k) == v for k, v in wanted.items())]
    return found


async def test_who_traces_whom(start: Start, python: str) -> None:
    session, graph = await up(start, python, "-c", stuck_kit.TRACER)
    tracer = graph.command_pid
    assert only(graph, tracer=tracer).name == "patient"
    assert only(graph, pid=tracer).tracer is None
    [found] = movable.blockers(graph)
    assert (found.command, found.pid) == ("patient", only(graph, tracer=tracer).pid)
    assert f"(process {tracer})" in found.what
    session.terminal.send(b"\n")


@pytest.mark.parametrize(
    ("program", "target", "what"),
    [
        (stuck_kit.RING, "anon_inode:[io_uring]", "an io_uring"),
        (stuck_kit.USERFAULTFD, "anon_inode:[userfaultfd]", "a userfaultfd"),
    ],
    ids=["io_uring", "userfaultfd"],
)
async def test_what_a_descriptor_is(
    start: Start, python: str, program: str, target: str, what: str
) -> None:
    _, graph = await up(start, python, "-c", program)
    process = only(graph, pid=graph.command_pid)
    [found] = [fd for fd in process.fds if fd.target == target]
    assert found.device is None
    [blocker] = movable.blockers(graph)
    assert (blocker.pid, what in blocker.what) == (process.pid, True)


async def test_which_kind_of_socket(start: Start, python: str) -> None:
    _, graph = await up(start, python, "-c", stuck_kit.VSOCK)
    [blocker] = movable.blockers(graph)
    assert "a socket of the kind AF_VSOCK" in blocker.what


async def test_what_moves_is_in_nobodys_way(start: Start, python: str) -> None:
    _, graph = await up(start, python, "-c", stuck_kit.HARMLESS)
    process = only(graph, pid=graph.command_pid)
    kinds = {fd.protocol for fd in process.fds if fd.target.startswith("socket:")}
    assert kinds == {"TCP", "NETLINK", "UNIX-STREAM"} or kinds == {"TCP", "NETLINK", "UNIX"}
    devices = {fd.device for fd in process.fds if fd.target.startswith("/dev/")}
    assert {"char 1:3", "char 1:5", "char 1:7", "char 1:9", "char 5:0", "char 5:2"} <= devices
    assert movable.blockers(graph) == []


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare here")
async def test_who_has_users_of_its_own(start: Start) -> None:
    words = "unshare --user sh -c 'echo up; cat' || echo refused"
    _, graph = await up(start, "sh", "-c", words)
    [blocker] = movable.blockers(graph)
    assert "user namespace" in blocker.what
    assert [p.own_users for p in graph.processes if p.pid == graph.command_pid] == [False]
