"""A blocking connection to a sidecar's Unix socket: requests and their answers."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from holdfast_wire.errors import BadRequest, HoldfastError, Unavailable
from holdfast_wire.frames import Control, Decoder, Error, Frame, encode
from holdfast_wire.ids import Actor

# A sidecar answers most requests in a millisecond; one that takes this long is stopped or stuck.
ANSWER_SECONDS: Final = 10.0
RECEIVE_BYTES: Final = 1 << 18


def open_socket(path: Path, timeout: float = ANSWER_SECONDS) -> socket.socket:
    """Connected, or `Unavailable`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(str(path))
    except OSError as error:
        connection.close()
        raise Unavailable(f"nobody answers at {path}") from error
    return connection


class Connection:
    """Requests, one after the other. Not for two threads at once."""

    def __init__(
        self, connected: socket.socket, modality: str = "sdk", actor: Actor | None = None
    ) -> None:
        self._socket = connected
        self._as = {"modality": modality}
        if actor is not None:  # else it is whoever the kernel says we are
            self._as |= actor.to_json()
        self._decoder = Decoder()
        self._last_id = 0
        self._inbox: list[Frame] = []

    @classmethod
    def open(cls, path: Path, timeout: float = ANSWER_SECONDS, modality: str = "sdk") -> Self:
        """`modality` is how the asker came, for the session's journal."""
        return cls(open_socket(path, timeout), modality)

    def request(self, kind: str, *, within: float = ANSWER_SECONDS, **fields: Any) -> Any:
        """Ask, and wait for the answer at most `within` seconds. Fields that are None are left out.
        Raises what the sidecar answers."""
        return self.answer(self.ask(kind, **fields), within)

    def ask(self, kind: str, **fields: Any) -> int:
        """Send a request; its number is for `answer`."""
        self._last_id += 1
        body = {name: value for name, value in fields.items() if value is not None}
        body |= {"kind": kind, "id": self._last_id, "as": self._as}
        try:
            self._socket.sendall(encode(Control(body)))
        except OSError as error:
            raise Unavailable("the connection to the session broke") from error
        return self._last_id

    def answer(self, number: int, timeout: float = ANSWER_SECONDS) -> Any:
        deadline = time.monotonic() + timeout
        while True:
            for index, frame in enumerate(self._inbox):
                match frame:
                    case Control({"kind": "answer", "id": ref}) if ref == number:
                        del self._inbox[: index + 1]
                        return frame.body.get("result", {})
                    case Error(ref) if ref in (number, 0):
                        del self._inbox[: index + 1]
                        raise frame.exception()
            self._inbox.clear()
            self._receive(deadline)

    def _receive(self, deadline: float) -> None:
        try:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            data = self._socket.recv(RECEIVE_BYTES)
        except TimeoutError as error:
            raise Unavailable(
                "the session's sidecar does not answer", "it may be stopped; try again"
            ) from error
        except OSError as error:
            raise Unavailable("the connection to the session broke") from error
        if not data:
            raise Unavailable("the session's sidecar closed the connection")
        try:
            self._inbox.extend(self._decoder.feed(data))
        except HoldfastError as error:
            self.close()
            raise BadRequest(f"the session's sidecar cannot be understood: {error}") from error

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Carrier(Protocol):
    """A connected socket that somebody keeps connected for us, elsewhere."""

    socket: socket.socket

    def why(self) -> HoldfastError | None:
        """Why the socket has come to its end, if that is known."""

    def close(self) -> None: ...


class CarriedConnection(Connection):
    """Requests through a carrier; what it complains of is what they raise."""

    def __init__(self, carrier: Carrier, modality: str, actor: Actor | None = None) -> None:
        super().__init__(carrier.socket, modality, actor)
        self._carrier = carrier

    def ask(self, kind: str, **fields: Any) -> int:
        try:
            return super().ask(kind, **fields)
        except Unavailable as error:
            raise self._carrier.why() or error from None

    def _receive(self, deadline: float) -> None:
        try:
            super()._receive(deadline)
        except Unavailable as error:
            raise self._carrier.why() or error from None

    def close(self) -> None:
        super().close()
        self._carrier.close()
