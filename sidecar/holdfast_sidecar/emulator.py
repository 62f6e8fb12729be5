"""The thread that interprets what the session prints.

The loop reads the PTY into the ring and says how far (`advance`); this thread follows at its own
pace, with the GIL released while it interprets. Nobody waits for it but who asks for the screen.

Invariants
- Only this thread touches the terminal. Others ask with `call`.
- Every byte is interpreted once, in order, and each resize at its own seq.
- `keyframe_seq` is never more than the ring can bridge: the loop stops reading the PTY before the
  ring would overwrite a byte after it (`Ring.would_lose`), so recovery is always possible.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar

from holdfast_sidecar import keyframe, snapshot
from holdfast_sidecar.ghostty import Terminal
from holdfast_sidecar.history import History
from holdfast_sidecar.keyframe import Form, Keyframe
from holdfast_sidecar.ring import Mark, Ring

T = TypeVar("T")

# One call into the library. Long enough to be efficient, short enough (about 5 ms) that somebody
# who asks for the screen in the middle of a flood does not wait noticeably.
_CHUNK: Final = 256 << 10
# Encoding takes 5 to 15 ms at ten thousand lines; every 12 MiB that is a few per cent of a flood.
_KEYFRAME_EVERY: Final = 12 << 20
# After this much quiet there is time for what makes the next attach quick,
_WARM_SECONDS: Final = 0.05
# and after this much for what makes the session small.
_SETTLE_SECONDS: Final = 2.0


class Listener(Protocol):
    """Called on the loop."""

    def replied(self, data: bytes) -> None:
        """The terminal answers a program's question."""

    def keyframe_saved(self) -> None: ...

    def title_changed(self, title: str) -> None: ...

    def emulator_failed(self, error: BaseException) -> None: ...


class Emulator:
    def __init__(
        self, ring: Ring, terminal: Terminal, seq: int, keyframe_path: Path, version: str
    ) -> None:
        self._ring, self._terminal, self._path = ring, terminal, keyframe_path
        self.seq = seq
        self.keyframe_seq = seq
        self._target = ring.head
        self._marks = deque(ring.marks_after(seq))
        # Questions that an earlier sidecar's clients or emulator have answered are not answered
        # again when their bytes are interpreted again.
        self._quiet_until = ring.head
        self._jobs: deque[tuple[int, Callable[[], None]]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._replies: list[bytes] = []
        self._title = terminal.title
        self._history = History()
        self._chores = deque[tuple[float, Callable[[], bool]]]()
        self._listener: Listener | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        terminal.on_reply(self._replies.append, version)
        self._thread = threading.Thread(target=self._run, name="emulator", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop, listener: Listener) -> None:
        self._loop, self._listener = loop, listener
        self._thread.start()

    # -- called on the loop -----------------------------------------------------------------------

    def advance(self, head: int) -> None:
        with self._wake:
            self._target = head
            self._wake.notify()

    def resize(self, mark: Mark) -> None:
        with self._wake:
            self._marks.append(mark)
            self._target = max(self._target, mark.seq)
            self._wake.notify()

    def want_keyframe(self) -> None:
        with self._wake:
            self._jobs.append((0, self.save))
            self._wake.notify()

    async def snapshot(
        self, at_least: int = 0, whole: bool = True
    ) -> tuple[int, bytes, tuple[int, int]]:
        """Its seq, its bytes and its size. If it need not be whole, without the scrollback."""

        def ask(terminal: Terminal, seq: int) -> tuple[int, bytes, tuple[int, int]]:
            data = snapshot.take(terminal, self._history, whole=whole)
            return seq, data, (terminal.columns, terminal.rows)

        return await self.call(ask, at_least)

    async def call(self, ask: Callable[[Terminal, int], T], at_least: int = 0) -> T:
        """`ask(terminal, seq)` on the emulator's thread, once it has come to `at_least`. Before
        that was started nothing is read, and the terminal is as it was recovered."""
        if self._thread.ident is None:
            return ask(self._terminal, self.seq)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def finish(result: T | None, error: BaseException | None) -> None:
            if done.cancelled():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

        def job() -> None:
            try:
                result = ask(self._terminal, self.seq)
            except Exception as error:
                loop.call_soon_threadsafe(finish, None, error)
            else:
                loop.call_soon_threadsafe(finish, result, None)

        with self._wake:
            self._jobs.append((at_least, job))
            self._target = max(self._target, min(at_least, self._ring.head))
            self._wake.notify()
        return await done

    def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:
            # The thread's edge: what went wrong is said to the loop, where it can be acted on.
            failure = error
            self._tell(lambda listener: listener.emulator_failed(failure))

    def _turn(self) -> bool:
        chore = None
        with self._wake:
            while not self._stopping and not self._work() and chore is None:
                wait = self._chores[0][0] if self._chores else None
                if not self._wake.wait(wait) and self._chores:
                    chore = self._chores.popleft()[1]
            if self._stopping:
                return False
            jobs = [job for least, job in self._jobs if least <= self.seq]
            self._jobs = deque(pair for pair in self._jobs if pair[0] > self.seq)
            target = self._target
        for job in jobs:
            job()
        if chore is not None and chore():
            self._chores.appendleft((0.0, chore))
        if self.seq < target or self._marks:
            self._follow(target)
        return True

    def _work(self) -> bool:
        return (
            self.seq < self._target
            or bool(self._marks)
            or any(least <= self.seq for least, _ in self._jobs)
        )

    def _follow(self, target: int) -> None:
        end = min(target, self.seq + _CHUNK)
        if self._marks and self._marks[0].seq <= end:
            mark = self._marks.popleft()
            self._feed(mark.seq)
            self._history.forget()
            self._terminal.resize(mark.columns, mark.rows)
        else:
            self._feed(end)
        self._chores = deque([(_WARM_SECONDS, self._warm), (_SETTLE_SECONDS, self._settle)])
        if self.seq - self.keyframe_seq >= _KEYFRAME_EVERY:
            self.save()
        self._report()

    def _warm(self) -> bool:
        return self._history.warm(self._terminal)

    def _settle(self) -> bool:
        self._terminal.compress()
        return False

    def _feed(self, end: int) -> None:
        for view in self._ring.slices(self.seq, end):
            self._terminal.feed(view)
        self.seq = end

    def save(self) -> None:
        """A keyframe of now. On a full disk there is none, rather than a session that stands still:
        after a kill the screen would then be made from what the ring has."""
        terminal, form = self._terminal, Form.ENCODED
        state = terminal.encode()
        if state is None:
            state, form = snapshot.take(terminal, self._history), Form.WRITTEN
        now = Keyframe(self.seq, form, terminal.columns, terminal.rows, state)
        try:
            keyframe.save(self._path, now)
        except OSError:
            self._path.unlink(missing_ok=True)
        self.keyframe_seq = self.seq
        self._tell(lambda listener: listener.keyframe_saved())

    def _report(self) -> None:
        data = b"".join(self._replies)
        self._replies.clear()
        if data and self.seq > self._quiet_until:
            self._tell(lambda listener: listener.replied(data))
        if (title := self._terminal.title) != self._title:
            self._title = title
            text = title.decode("utf-8", "replace")
            self._tell(lambda listener: listener.title_changed(text))

    def _tell(self, say: Callable[[Listener], None]) -> None:
        if self._loop is not None and self._listener is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(say, self._listener)


def rehearse() -> None:
    """What the library is asked for the first time takes it a quarter of a second in all. Done
    ahead where a session is awaited that stands still meanwhile."""
    terminal = Terminal(20, 4, 4)
    terminal.on_reply(lambda _data: None, "")
    terminal.feed(b"\x1b[1mwarm\r\n\n\n\n\n")
    state = terminal.encode()
    again = terminal if state is None else Terminal.decode(state, 4)
    snapshot.take(again or terminal, History())
    terminal.compress()


def recover(ring: Ring, path: Path, size: tuple[int, int], scrollback: int) -> tuple[Terminal, int]:
    """The terminal as it stood when the last sidecar went, and the seq it stands at.

    Without a keyframe that the ring can go on from, what is left of the ring is interpreted from a
    blank screen, and the ring says that anything older is gone.
    """
    saved = keyframe.load(path)
    if saved is not None and ring.oldest <= saved.seq <= ring.head:
        terminal = _restored(saved, scrollback)
        if terminal is not None:
            return terminal, saved.seq
    if saved is not None or ring.oldest > 0:
        ring.lose(ring.oldest)
    sizes = ring.marks_after(ring.oldest)
    columns, rows = sizes[0][1:] if sizes else size
    return Terminal(columns, rows, scrollback), ring.oldest


def _restored(saved: Keyframe, scrollback: int) -> Terminal | None:
    if saved.form is Form.ENCODED:
        return Terminal.decode(saved.state, scrollback)
    terminal = Terminal(saved.columns, saved.rows, scrollback)
    terminal.feed(saved.state)
    return terminal
