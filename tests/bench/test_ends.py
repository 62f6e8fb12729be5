"""A viewer sees what is on the screen, wherever frames and reads are cut."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench.ends import Closed, FrameEnd, PtyEnd
from bench.processes import Failed, Pen

from holdfast_wire.errors import Ended
from holdfast_wire.frames import Control, Error, Frame, Gap, Output, Part, Snapshot, encode


@contextmanager
def sidecar(folder: Path, *pieces: bytes) -> Iterator[FrameEnd]:
    """An end attached to something that sends these pieces and then closes."""
    path = folder / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(65536)
                for piece in pieces:
                    peer.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        end = FrameEnd(path)
        try:
            yield end
        finally:
            thread.join()
            end.close()


def frames(*given: Frame) -> bytes:
    return b"".join(map(encode, given))


def seen(end: FrameEnd, marker: bytes) -> bool:
    try:
        while not end.look(marker):
            pass
    except Closed:
        return False
    return True


def test_a_marker_cut_between_frames_is_seen(tmp_path: Path) -> None:
    data = frames(Output(0, b"some text MAR"), Control({"kind": "state"}), Output(13, b"KER"))
    with sidecar(tmp_path, *(data[i : i + 1] for i in range(len(data)))) as end:
        assert seen(end, b"MARKER")


def test_what_is_not_for_the_screen_is_not_seen(tmp_path: Path) -> None:
    with sidecar(tmp_path, frames(Control({"kind": "MARKER"}), Output(0, b"text"))) as end:
        assert not seen(end, b"MARKER")


def test_a_snapshot_is_on_the_screen_when_it_is_whole(tmp_path: Path) -> None:
    first = Snapshot(9, 80, 24, Part.FIRST, b"MARKER")
    with sidecar(tmp_path, frames(Gap(0, 9), first)) as end:
        assert not seen(end, b"MARKER")
        assert (end.gaps, end.snapshots) == (1, 0)


def test_a_whole_snapshot_is_seen(tmp_path: Path) -> None:
    first = Snapshot(9, 80, 24, Part.FIRST, b"MARKER")
    with sidecar(tmp_path, frames(first, Snapshot(9, 80, 24, Part.LAST, b"rest"))) as end:
        assert end.whole_screen(b"MARKER")


def test_an_error_is_raised(tmp_path: Path) -> None:
    with sidecar(tmp_path, frames(Error.of(Ended("it is over")))) as end, pytest.raises(Ended):
        end.receive()


def test_a_program_is_seen_on_its_terminal_and_does_not_stay() -> None:
    with Pen() as pen:
        seat = pen.on_terminal(["sh", "-c", "printf MAR; sleep 0.01; printf KER; read -r never"])
        end, found = PtyEnd(seat.master), False
        while not found:
            found = end.look(b"MARKER")
        pid, folder = seat.pid, pen.folder
    assert not Path(f"/proc/{pid}").exists()
    assert not folder.exists()


def test_a_program_that_is_not_there_is_named() -> None:
    with Pen() as pen, pytest.raises(Failed, match="no-such-program"):
        pen.on_terminal(["no-such-program"])
