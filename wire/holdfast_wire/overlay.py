"""The one line of our own at the bottom of the user's screen. Pure.

It covers a line of the session's, so it is drawn only in two ways. A greeting is drawn when we know
what is under it (a `screen` request answered at exactly the seq we show) and taken back before the
next byte of the session. The notice of a lost connection covers a line we do not know; after the
resume we ask for the screen and repaint that line.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast_wire import sequences
from holdfast_wire.ids import shown

# Above every number an input gets, so that an answer is never taken for an input's.
_FIRST_REQUEST: Final = 1 << 40
_GREETING_SECONDS: Final = 4.0
# A session that prints all the time never stands still at the seq of an answer. Its own output
# soon repaints the line.
_TRIES: Final = 8
_PAUSE: Final = 0.15


class Asked:
    """Who asks the one at this terminal for his turn; said once of each."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def heard(self, news: dict[str, Any], client: str) -> str:
        """Of the news of who is here; what is to be said, or nothing."""
        own = [one for one in news.get("clients") or () if one.get("client") == client]
        asking = {shown(one) for one in news.get("asking") or () if isinstance(one, dict)}
        if not own or _who(own[0], "actor", "uid") != _who(news, "holder", "holder_uid"):
            asking = set()
        new, self._said = sorted(asking - self._said), asking
        return f"{', '.join(new)} asks for the turn" if new else ""


def _who(body: dict[str, Any], name: str, uid: str) -> tuple[object, object]:
    return body.get(name), body.get(uid, "")


class Overlay:
    def __init__(self) -> None:
        self._wanted = ""
        self._drawn = False
        self._under: bytes | None = None
        self._until = 0.0
        self._tries = 0
        self._ask_at: float | None = None
        self._request = _FIRST_REQUEST

    @property
    def hidden(self) -> bool:
        return not self._drawn

    @property
    def blind(self) -> bool:
        """Whether it covers a line that nobody here remembers."""
        return self._drawn and self._under is None

    def want(self, text: str, now: float) -> None:
        """Show this once we know what it covers."""
        self._wanted, self._tries, self._ask_at = text, _TRIES, now + _PAUSE

    def repair(self, now: float) -> None:
        """The connection is back; whatever we drew blindly is to be repainted."""
        if self._drawn:
            self._tries, self._ask_at = _TRIES, now

    def cover(self, text: str, columns: int, rows: int) -> bytes:
        """Draw now, blindly."""
        self._wanted, self._drawn, self._under, self._ask_at = "", True, None, None
        return sequences.status_line(text, columns, rows)

    def erase(self) -> bytes:
        """Take back a line whose ground is known; called before anything else is shown."""
        if self._under is None:
            return b""
        under, self._under, self._drawn = self._under, None, False
        return under

    def expire(self, now: float) -> bytes:
        if self._under is not None and now >= self._until:
            return self.erase()
        return b""

    def forget(self) -> None:
        """The whole screen was repainted, or is about to be."""
        self._drawn, self._under = False, None
        if not self._wanted:
            self._ask_at = None

    def wakeup(self) -> float | None:
        times = [self._ask_at]
        if self._under is not None:
            times.append(self._until)
        return min((moment for moment in times if moment is not None), default=None)

    def request(self, now: float) -> dict[str, Any] | None:
        """A `screen` request to send, when it is time for one."""
        if self._ask_at is None or now < self._ask_at:
            return None
        self._ask_at = None
        if self._tries <= 0:
            self._wanted, self._drawn = "", False
            return None
        self._tries -= 1
        self._request += 1
        return {"kind": "screen", "id": self._request, "format": "ansi", "scrollback": False}

    def answered(
        self, screen: dict[str, Any], size: tuple[int, int], in_step: bool, now: float
    ) -> bytes:
        if not in_step:
            self._ask_at = now + _PAUSE
            return b""
        columns, rows = size
        under = sequences.bottom_line(str(screen.get("text", "")), rows)
        if self.blind:
            self._drawn = False
            return under
        if self._wanted:
            text, self._wanted = self._wanted, ""
            self._drawn, self._under, self._until = True, under, now + _GREETING_SECONDS
            return sequences.status_line(text, columns, rows)
        return b""
