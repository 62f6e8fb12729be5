"""A client of a session, as `kubectl holdfast attach` is one: bytes and their seq, kept."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import threading
import time
from types import TracebackType
from typing import Any, Self

from e2e.cluster.places import KUBECONFIG
from e2e.lab import Lab, Session, until
from holdfast_wire.frames import Attach, Control, Decoder, Error, Gap, Output, Snapshot, encode


class Viewer:
    def __init__(self, lab: Lab, pod: str, resume: dict[str, Any] | None = None) -> None:
        self._ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [str(lab.programs / "kubectl"), f"--kubeconfig={KUBECONFIG}", "exec", "-i", pod,
             "-c", "holdfast", "--", "holdfast-relay"],
            stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.DEVNULL,
        )  # fmt: skip
        theirs.close()
        self.output = b""  # of the stream alone; a snapshot is no stream
        self.gaps: list[Gap] = []
        self.progress: list[dict[str, Any]] = []  # of a move, as it was told
        self.resumed = False
        self.ended = False  # whoever was at the other end is gone
        self.first_at: float | None = None  # monotonic, of the stream's bytes
        self.last_at = 0.0
        self._answer: dict[str, Any] = {}
        self._seq = 0
        self._lock = threading.Lock()
        body = {"mode": "view", "columns": 80, "rows": 24, "modality": "e2e"}
        self._ours.sendall(encode(Attach(body if resume is None else {**body, "resume": resume})))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        give_up = time.monotonic() + 20
        while not self._answer:
            if self.ended or time.monotonic() > give_up:
                self.close()
                raise AssertionError("nobody answered the attach")
            time.sleep(0.02)

    def _read(self) -> None:
        decoder = Decoder()
        with contextlib.suppress(OSError):
            while data := self._ours.recv(1 << 16):
                for frame in decoder.feed(data):
                    with self._lock:
                        self._take(frame)
        self.ended = True

    def _take(self, frame: object) -> None:
        match frame:
            case Attach(body):
                self._answer, self.resumed = body, bool(body["resumed"])
                self._seq = int(body["seq"])
            case Snapshot():
                self._seq = frame.seq
            case Output():
                assert frame.seq == self._seq, f"seq {frame.seq} where {self._seq} is next"
                self._seq += len(frame.data)
                self.last_at = time.monotonic()
                self.first_at = self.first_at or self.last_at
                self.output += bytes(frame.data)
            case Gap():
                self.gaps.append(frame)
            case Control({"kind": "progress"} as body):
                self.progress.append(body)
            case Error():
                raise AssertionError(f"refused: {frame}")

    def text(self) -> bytes:
        with self._lock:
            return self.output

    def numbers(self, epoch: int) -> list[int]:
        """What the counter printed, as far as whole marks were seen in the stream."""
        return marks_in(self.text(), epoch)

    def place(self) -> dict[str, Any]:
        """Where to go on from."""
        with self._lock:
            return {"session_id": self._answer["session_id"], "seq": self._seq}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._ours.close()
        self._thread.join(5)


def again(lab: Lab, session: Session, before: Viewer) -> Viewer:
    """Where the one before it was, as soon as somebody answers there."""

    def attach() -> Viewer | None:
        try:
            return Viewer(lab, session.pod, resume=before.place())
        except (AssertionError, OSError):
            return None

    viewer = until(attach, f"{session.name} is attached to again")
    assert viewer is not None
    assert viewer.resumed
    return viewer


def marks_in(output: bytes, epoch: int) -> list[int]:
    return [int(n) for n in re.findall(rb"<%d:(\d+)>" % epoch, output)]
