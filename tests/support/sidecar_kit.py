"""One real session, hold and sidecar, in a folder of its own, and a client that speaks frames."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any

from gateway_kit import Place, until
from holdfast_wire.frames import (
    Ack,
    Attach,
    Control,
    Decoder,
    Error,
    Frame,
    Gap,
    Input,
    Output,
    Part,
    Resize,
    Snapshot,
    encode,
)

PATIENCE = 40.0  # a limit on a wrong answer: the machine may be busy


class Client:
    """What a client sees: its stream joined by seq, its snapshots, gaps, news and errors."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(str(path))
        self._decoder = Decoder()
        self._frames: deque[Frame] = deque()
        self.welcome: dict[str, Any] = {}
        self.seq: int | None = None
        self.stream = bytearray()
        self.first_seq: int | None = None
        self.snapshot = b""
        self.size = (0, 0)
        self.gaps: list[Gap] = []
        self.news: list[dict[str, Any]] = []
        self.acks: list[Ack] = []
        self.errors: list[Error] = []

    def send(self, frame: Frame) -> None:
        self.sock.sendall(encode(frame))

    def next(self) -> Frame:
        while not self._frames:
            data = self.sock.recv(1 << 20)
            if not data:
                raise ConnectionResetError("the sidecar closed the connection")
            self._frames.extend(self._decoder.feed(data))
        frame = self._frames.popleft()
        self._take(frame)
        return frame

    def _take(self, frame: Frame) -> None:
        match frame:
            case Attach(body):
                self.welcome = body
                if body["resumed"]:
                    self.seq = body["seq"]
            case Snapshot(seq, columns, rows, part, data):
                self.snapshot = data if part & Part.FIRST else self.snapshot + data
                self.size, self.seq = (columns, rows), seq
            case Output(seq, data):
                assert seq == self.seq, f"output at {seq}, expected at {self.seq}"
                if self.first_seq is None:
                    self.first_seq = seq
                self.stream += data
                self.seq = seq + len(data)
            case Resize(seq, columns, rows):
                assert seq == self.seq
                self.size = (columns, rows)
            case Gap(start, end):
                assert start == self.seq or self.seq is None
                assert start < end
                self.gaps.append(frame)
            case Control(body):
                self.news.append(body)
            case Ack():
                self.acks.append(frame)
            case Error():
                self.errors.append(frame)
            case _:
                raise AssertionError(f"a server does not send {frame}")

    def attach(
        self,
        mode: str = "write",
        columns: int = 80,
        rows: int = 24,
        resume: dict[str, Any] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        body = {"mode": mode, "columns": columns, "rows": rows, **more}
        self.send(Attach({**body, "resume": resume} if resume else body))
        while True:
            frame = self.next()
            if isinstance(frame, Error):
                raise frame.exception()
            if isinstance(frame, Attach) and frame.body["resumed"]:
                return self.welcome
            if isinstance(frame, Snapshot) and frame.part & Part.LAST:
                return self.welcome

    def typed(self, data: bytes, number: int = 1, key: bytes = b"") -> None:
        self.send(Input(number, key, data))

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        self.send(Control({"kind": kind, "id": 77, **fields}))
        while True:
            frame = self.next()
            if isinstance(frame, Error) and frame.ref == 77:
                raise frame.exception()
            if isinstance(frame, Control) and frame.body.get("id") == 77:
                result: dict[str, Any] = frame.body["result"]
                return result

    def until(self, text: bytes, patience: float = PATIENCE) -> None:
        deadline = time.monotonic() + patience
        while text not in self.stream:
            assert time.monotonic() < deadline, f"waited in vain for {text!r}"
            self.next()

    def until_news(self, kind: str, **wanted: Any) -> dict[str, Any]:
        seen = 0
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for news in self.news[seen:]:
                if news.get("kind") == kind and wanted.items() <= news.items():
                    return news
            seen = len(self.news)
            self.next()
        raise AssertionError(f"no news of {kind} {wanted}")

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


class Live:
    """A session whose sidecar can be killed and started again."""

    def __init__(self, *command: str, columns: int = 80, rows: int = 24) -> None:
        self._state = Path(tempfile.mkdtemp(prefix="hf-"))
        self.place = Place(self._state)
        self.sidecar: subprocess.Popen[bytes] | None = None
        try:
            self.folder = self.place.session("it", *command, columns=columns, rows=rows)
            self.start_sidecar()
        except BaseException:
            self.close()
            raise

    def start_sidecar(self) -> None:
        log = (self.folder / "sidecar.log").open("ab")
        with log:
            self.sidecar = subprocess.Popen(
                [sys.executable, "-m", "holdfast_sidecar", "--dir", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(self._listening, "the sidecar to listen")

    def _listening(self) -> bool:
        assert self.sidecar is not None
        assert self.sidecar.poll() is None, (self.folder / "sidecar.log").read_text()
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
            except OSError:
                return False
        return True

    @property
    def socket(self) -> Path:
        return self.folder / "sidecar.sock"

    def kill_sidecar(self) -> None:
        assert self.sidecar is not None
        self.sidecar.send_signal(signal.SIGKILL)
        self.sidecar.wait(PATIENCE)

    def client(self) -> Client:
        return Client(self.socket)

    def attached(self, **fields: Any) -> Client:
        client = self.client()
        client.attach(**fields)
        return client

    def rss_mib(self) -> float:
        assert self.sidecar is not None
        pages = int(Path(f"/proc/{self.sidecar.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    def close(self) -> None:
        if self.sidecar is not None and self.sidecar.poll() is None:
            self.sidecar.kill()
            self.sidecar.wait(PATIENCE)
        self.place.close()
        shutil.rmtree(self._state, ignore_errors=True)

    def __enter__(self) -> Live:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()
