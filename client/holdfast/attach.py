"""Attach a terminal to a session: the I/O around `attach_core`.

The loop waits on the keyboard, the session's socket and signals. Only the socket is non-blocking:
the terminal's descriptor is shared with the user's shell, which must find it as it was.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable
from types import FrameType
from typing import Any, Final, Protocol

from holdfast.connection import RECEIVE_BYTES
from holdfast.terminal import RawTerminal
from holdfast_wire import sequences
from holdfast_wire.attach_core import (
    Action,
    AttachCore,
    Connect,
    Disconnect,
    Leave,
    Send,
    Settings,
    Show,
)
from holdfast_wire.errors import HoldfastError, Retry
from holdfast_wire.frames import Decoder, encode

_READ_BYTES: Final = 1 << 16
# Unsent input that the sidecar does not take; `attach_core.MAX_UNACKED` bounds it.
_FLUSH_SECONDS: Final = 1.0
_FATAL: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_NOTED: Final = (signal.SIGWINCH, signal.SIGCONT)


class Terminated(BaseException):
    """A signal that ends the client. Not an Exception: nothing on the way may take it for one."""

    def __init__(self, number: int) -> None:
        self.number = number


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


def _noted(number: int, frame: FrameType | None) -> None:
    """Nothing: the wake-up descriptor carries the number."""


class Signals:
    """SIGWINCH and SIGCONT as bytes on a descriptor, fatal signals as `Terminated`."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        self._before = {number: signal.getsignal(number) for number in (*_FATAL, *_NOTED)}
        self._wakeup = -1

    def __enter__(self) -> Signals:
        self._wakeup = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        for number in _FATAL:
            signal.signal(number, _raise_terminated)
        for number in _NOTED:
            signal.signal(number, _noted)
        return self

    def fileno(self) -> int:
        return self._read.fileno()

    def arrived(self) -> set[int]:
        try:
            return set(self._read.recv(4096))
        except BlockingIOError:
            return set()

    def hold_back(self) -> None:
        """From here on nothing may interrupt the restoring."""
        signal.pthread_sigmask(signal.SIG_BLOCK, (*_FATAL, signal.SIGINT))

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._read.close()
        self._write.close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_FATAL, signal.SIGINT))


class Link(Protocol):
    """How a session is reached, again and again. None of it may keep the user waiting."""

    def open(self) -> socket.socket:
        """A connected socket, or one that will be. A `Retry` if not now; other errors are final."""

    def why(self) -> HoldfastError | None:
        """Why the socket has come to its end, if that is known."""

    def exit_status(self) -> dict[str, Any] | None: ...

    def finish(self) -> None:
        """See that what was sent arrives, before the end."""

    def close(self) -> None: ...


class Attachment:
    """Runs one attachment to its end."""

    def __init__(
        self, link: Link, core: AttachCore, terminal: RawTerminal, signals: Signals
    ) -> None:
        self._link = link
        self._core = core
        self._terminal = terminal
        self._signals = signals
        self._socket: socket.socket | None = None
        self._decoder = Decoder()
        self._outgoing = bytearray()
        self._left: Leave | None = None
        self._stdin_open = True

    def run(self) -> Leave:
        self._perform(self._core.start(time.monotonic()))
        while self._left is None:
            self._wait()
        self._flush()
        return self._left

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._link.close()
        self._outgoing.clear()
        self._decoder = Decoder()

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._signals.fileno(), select.POLLIN)
        if self._stdin_open and self._core.wants_input:
            poll.register(self._terminal.stdin, select.POLLIN)
        if self._socket is not None:
            out = select.POLLOUT if self._outgoing else 0
            poll.register(self._socket, select.POLLIN | out)
        wakeup = self._core.wakeup()
        milliseconds = None
        if wakeup is not None:
            milliseconds = max(0, int((wakeup - time.monotonic()) * 1000) + 1)
        for descriptor, events in poll.poll(milliseconds):
            if descriptor == self._signals.fileno():
                self._on_signals()
            elif descriptor == self._terminal.stdin:
                self._on_keyboard()
            elif self._socket is not None and descriptor == self._socket.fileno():
                self._on_socket(events)
        self._perform(self._core.tick(time.monotonic()))

    def _on_signals(self) -> None:
        arrived = self._signals.arrived()
        if signal.SIGCONT in arrived:
            self._terminal.make_raw()
            self._perform(self._core.continued(time.monotonic()))
        self._perform(self._core.resized(*self._terminal.size()))

    def _on_keyboard(self) -> None:
        try:
            data = os.read(self._terminal.stdin, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._perform(self._core.typed(data, time.monotonic()))
        else:  # the terminal is gone; SIGHUP may have been ignored for us
            self._stdin_open = False
            self._perform(self._core.detached())

    def _on_socket(self, events: int) -> None:
        assert self._socket is not None  # noqa: S101 - it was just polled
        try:
            if events & select.POLLOUT:
                self._send()
            if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    raise ConnectionResetError
                now = time.monotonic()
                self._perform(
                    action
                    for frame in self._decoder.feed(data)
                    for action in self._core.received(frame, now)
                )
        except BlockingIOError:
            return
        except (ConnectionError, TimeoutError):
            self._lose()

    def _lose(self) -> None:
        error = self._link.why()
        self.close()
        self._failed(error)

    def _failed(self, error: HoldfastError | None) -> None:
        if error is None or isinstance(error, Retry):
            reason = error.message if error is not None else ""
            self._perform(self._core.lost(time.monotonic(), reason))
        else:
            self._perform(self._core.gone(error, self._link.exit_status()))

    def _perform(self, actions: Iterable[Action]) -> None:
        """Act. What is to be shown is gathered, so that many small frames make one write."""
        shown: list[bytes] = []
        for action in actions:
            match action:
                case Show(data):
                    shown.append(data)
                case Send(frame):
                    self._outgoing += encode(frame)
                case Connect():
                    self._connect()
                case Disconnect():
                    self.close()
                    break  # what the old connection still had in its buffer is not ours any more
                case Leave():
                    self._left = action
                    break
        if shown:
            self._terminal.write(b"".join(shown))
        if self._outgoing:
            try:
                self._send()
            except ConnectionError:
                self._lose()

    def _send(self) -> None:
        if self._socket is None:
            self._outgoing.clear()
            return
        try:
            while self._outgoing:
                sent = self._socket.send(self._outgoing[:_READ_BYTES])
                del self._outgoing[:sent]
        except BlockingIOError:
            return

    def _connect(self) -> None:
        try:
            self._socket = self._link.open()
        except HoldfastError as error:
            self._failed(error)
            return
        self._socket.setblocking(False)
        self._perform(self._core.connected())

    def _flush(self) -> None:
        """What was typed just before the detach keys still goes out."""
        if self._socket is None or not self._core.unacked:
            return
        try:
            self._socket.settimeout(_FLUSH_SECONDS)
            self._socket.sendall(self._outgoing)
        except OSError:
            return
        self._link.finish()


def nonce() -> str:
    """For `Settings`."""
    return os.urandom(8).hex()


def attach(link: Link, settings: Settings) -> int:
    """Attach this process's terminal until the user leaves or the session ends. The exit code."""
    terminal = RawTerminal()
    core = AttachCore(settings, terminal.size())
    left = _attached(link, settings.name, core, terminal)
    if left.message:
        sys.stdout.write(left.message + "\n")
        sys.stdout.flush()
    if left.error is not None:
        raise left.error
    return left.code


def _attached(link: Link, name: str, core: AttachCore, terminal: RawTerminal) -> Leave:
    with Signals() as signals:
        attachment = Attachment(link, core, terminal, signals)
        try:
            with terminal:
                try:
                    return attachment.run()
                finally:
                    signals.hold_back()
                    attachment.close()
                    terminal.farewell(sequences.farewell(terminal.size()[1]))
        except Terminated as terminated:
            return Leave(
                128 + terminated.number,
                f"[detached from {name} by {signal.Signals(terminated.number).name}]",
            )
