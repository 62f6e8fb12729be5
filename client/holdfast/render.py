"""Text for people: tables, trees, durations, colours. Pure but for `Style.of` and `to_stderr`.

Invariant: nothing a session says of itself (titles, command lines, names) reaches the terminal with
a control character in it; `plain` is the only door.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TextIO

from holdfast_wire.plain import plain

_COLOURS: Final = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36",
}  # fmt: skip
STATE_COLOURS: Final = {
    "prompt": "green",
    "reading": "yellow",
    "password": "yellow",
    "frozen": "cyan",
    "ended": "dim",
    "lost": "red",
    "starting": "yellow",
}


def to_stderr(text: str) -> None:
    """For people beside what programs read on standard output."""
    sys.stderr.write(f"holdfast: {text}\n")


class Style(NamedTuple):
    colour: bool
    width: int | None
    """Columns to keep to; None when a program reads."""

    @classmethod
    def of(cls, stream: TextIO) -> Style:
        """Colours on a terminal only, and not where NO_COLOR (no-color.org) is set."""
        if not stream.isatty():
            return cls(False, None)
        colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        try:
            width = os.get_terminal_size(stream.fileno()).columns or None
        except (OSError, ValueError):
            width = None
        return cls(colour, width)

    def paint(self, text: str, colour: str | None) -> str:
        if not self.colour or colour is None or not text.strip():
            return text
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def width_of(text: str) -> int:
    """Terminal columns; `text` is plain."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(
        0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text
    )


def cut(text: str, width: int) -> str:
    if width_of(text) <= width:
        return text
    while text and width_of(text) > width - 1:
        text = text[:-1]
    return text + "…"


class Cell(NamedTuple):
    text: str
    colour: str | None = None


def table(header: Sequence[str], rows: Sequence[Sequence[Cell]], style: Style) -> str:
    """Columns as wide as their widest cell; the last one is cut to what is left of the line."""
    cells = [[Cell(plain(text), colour) for text, colour in row] for row in rows]
    count = len(header)
    widths = [
        max([len(header[i]), *(width_of(row[i].text) for row in cells)]) for i in range(count)
    ]
    if style.width is not None:
        widths[-1] = max(8, style.width - sum(widths[:-1]) - 2 * (count - 1))
    lines = [_line([Cell(title, "bold") for title in header], widths, style)]
    lines += [_line(row, widths, style) for row in cells]
    return "\n".join(lines) + "\n"


def _line(row: Sequence[Cell], widths: Sequence[int], style: Style) -> str:
    parts = []
    for index, (text, colour) in enumerate(row):
        last = index == len(row) - 1
        shown = cut(text, widths[index]) if last else text
        padding = "" if last else " " * (widths[index] - width_of(shown))
        parts.append(style.paint(shown, colour) + padding)
    return "  ".join(parts).rstrip()


def fields(facts: Mapping[str, object], style: Style) -> str:
    """A line for each; those that are empty are left out."""
    shown = {name: plain(value) for name, value in facts.items() if value not in (None, "")}
    width = max(map(len, shown), default=0) + 3
    return "".join(
        style.paint(f"{name}:", "bold") + " " * (width - len(name) - 1) + f"{value}\n"
        for name, value in shown.items()
    )


def duration(seconds: float) -> str:
    """Two units at most: 45s, 12m, 3h5m, 2d4h."""
    left = max(0, int(seconds))
    if left < 60:
        return f"{left}s"
    minutes, hours, days = left // 60, left // 3600, left // 86400
    if hours < 1:
        return f"{minutes}m"
    if days < 1:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"


def command_line(words: object) -> str:
    """An argument vector as one would type it."""
    if isinstance(words, list | tuple):
        return shlex.join(plain(word) for word in words)
    return plain(words)


def suggestion(name: str, names: Sequence[str], start: str) -> str:
    """Advice for a name that is not among those there are. `start` starts a session."""
    if not names:
        return f"there are none; start one with: {start}"
    import difflib

    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    return f"there are: {shown}"


def process_tree(graph: Mapping[str, Any], style: Style) -> str:
    """Processes under their parents; `*` marks the terminal's foreground."""
    processes = [p for p in graph.get("processes", []) if isinstance(p, dict)]
    pids = {p.get("pid") for p in processes}
    children: dict[object, list[dict[str, Any]]] = {}
    for process in processes:
        parent = process.get("ppid")
        key = parent if parent in pids and parent != process.get("pid") else None
        children.setdefault(key, []).append(process)
    lines: list[str] = []
    foreground = graph.get("foreground_pgid")

    def add(process: dict[str, Any], lead: str, branch: str, below: str) -> None:
        lines.append(lead + branch + _process(process, foreground, style))
        kids = children.pop(process.get("pid"), [])
        for index, kid in enumerate(kids):
            last = index == len(kids) - 1
            add(kid, lead + below, "└─ " if last else "├─ ", "   " if last else "│  ")

    for root in children.pop(None, []):
        add(root, "", "", "")
    return "\n".join(lines) + "\n"


_STATES: Final = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a device",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "I": "idle",
}


def _process(process: Mapping[str, Any], foreground: object, style: Style) -> str:
    front = bool(foreground) and process.get("pgid") == foreground
    name = command_line(process.get("command") or process.get("name", "?"))
    parts = [
        style.paint(f"{process.get('pid')}", "dim"),
        style.paint(("* " if front else "") + cut(name, 60), "green" if front else None),
        style.paint(_STATES.get(str(process.get("state")), plain(process.get("state"))), "dim"),
    ]
    if cwd := plain(process.get("cwd", "")):
        parts.append(style.paint(cwd, "cyan"))
    for listener in process.get("listening") or []:
        parts.append(style.paint("listens on " + _listener(listener), "yellow"))
    return "  ".join(parts)


def _listener(listener: Mapping[str, Any]) -> str:
    if listener.get("protocol") == "unix":
        return plain(listener.get("path") or listener.get("address") or "a Unix socket")
    address = plain(listener.get("address", ""))
    host = f"[{address}]" if ":" in address else address
    return f"{host}:{listener.get('port')}"
