"""What the programs in the terminals print: four files, the same bytes on every machine.

A few megabytes are made from a fixed seed and repeated: no terminal remembers that much, and making
a hundred megabytes line by line would take longer than measuring with them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

COLUMNS: Final = 120
ROWS: Final = 40
# Raised when a generator changes, so that files of an older one are not taken for new ones.
_EDITION: Final = 1
_UNIT_BYTES: Final = 4_000_000
_ESC: Final = "\x1b"

_TEXT: Final = """
    accepted address after agent assets bad bound broken build cache cannot changed channel
    client closed commit config connection container core deadline default deleted dial disk
    done driver eight empty endpoint error exit failed fetched file finished flushed found from
    gateway header health host image in index info is job kernel key kubelet lease level limit
    line linked listen loaded lock main memory missing module mount moved mutex namespace
    network node not object ok on open operator out owner packet page parse path peer pending
    pod pool port probe process queue quota read ready reason rebuilt received refused reload
    remote renewed replica request reset resolved response restored result retry root route
    running scheduled secret selector sent service session set shard signal size skipped socket
    source started state status stop stored stream synced table target task the thread timeout
    to token total trace tree turn unit unknown until update upstream user valid value version
    volume wait warning watch with worker write written yield zone
"""
_WORDS: Final = _TEXT.split()


def _plain_line(rng: random.Random) -> str:
    """A line of a log: a time, a level, a source and some words, at most 100 columns."""
    clock = f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.random() * 60:06.3f}"
    level = rng.choice(("INFO ", "INFO ", "INFO ", "DEBUG", "WARN ", "ERROR"))
    source = f"{rng.choice(_WORDS)}.{rng.choice(_WORDS)}:{rng.randrange(2000)}"
    words = rng.choices(_WORDS, k=rng.randrange(1, 12))
    return f"2026-01-{rng.randrange(1, 32):02} {clock} {level} {source} {' '.join(words)}"[:100]


def plain(rng: random.Random) -> Iterator[str]:
    while True:
        yield _plain_line(rng) + "\n"


def _coloured(rng: random.Random, text: str) -> str:
    style = rng.choice(("1", "31", "32", "33", "34", "36", "1;31", "1;32", "1;35", "38;5;208", "2"))
    return f"{_ESC}[{style}m{text}{_ESC}[0m"


def sgr(rng: random.Random) -> Iterator[str]:
    """What compilers, test runners and `ls --color` print: a coloured word every few words."""
    while True:
        words = rng.choices(_WORDS, k=rng.randrange(4, 14))
        for index in range(rng.randrange(3), len(words), rng.randrange(3, 5)):
            words[index] = _coloured(rng, words[index])
        file = _coloured(rng, f"src/{rng.choice(_WORDS)}/{rng.choice(_WORDS)}.c")
        yield f"{file}:{rng.randrange(3000)}: {' '.join(words)}\n"


def _span(first: int, last: int) -> str:
    return "".join(map(chr, range(first, last + 1)))


_HAN: Final = _span(0x4E00, 0x4FFF)
_KANA: Final = _span(0x3042, 0x3093)
_ACCENTED: Final = _span(0xC0, 0xD6) + _span(0xD8, 0xF6) + "őűčšžąęłńśźżğışțăđ"
_CYRILLIC: Final = _span(0x410, 0x44F)
_EMOJI: Final = "😀😂🚀🔥✅❌🎉🐍🐳📦🔒🧪"
_BOX: Final = "─│┌┐└┘├┤┬┴┼═║╔╗╚╝█▓▒░"


def unicode(rng: random.Random) -> Iterator[str]:
    """Scripts of one, two and zero columns, as chat, test output and tables mix them."""
    scripts = ((_HAN, 12), (_KANA, 10), (_ACCENTED, 14), (_CYRILLIC, 14), (_EMOJI, 3), (_BOX, 16))
    while True:
        parts, width = [rng.choice(_WORDS)], 12
        while width < 70:
            script, longest = rng.choice(scripts)
            word = "".join(rng.choices(script, k=rng.randrange(1, longest)))
            if rng.random() < 0.03:
                word += "e\u0301"  # a letter and a combining accent
            parts.append(word)
            width += 2 * len(word) + 1
        yield " ".join(parts) + "\n"


def _tui_row(rng: random.Random, row: int) -> str:
    """One process in a monitor: addressed, coloured by column, a bar, the rest erased."""
    bar = rng.randrange(1, 20)
    return (
        f"{_ESC}[{row};1H{_ESC}[36m{rng.randrange(99999):>7}{_ESC}[39m {rng.choice(_WORDS):<10}"
        f"{_ESC}[1;32m{rng.random() * 100:5.1f}{_ESC}[0m [{_ESC}[34m{'|' * bar}{_ESC}[90m"
        f"{' ' * (20 - bar)}{_ESC}[0m] {' '.join(rng.choices(_WORDS, k=5))[:50]}{_ESC}[K"
    )


def tui(rng: random.Random) -> Iterator[str]:
    """A full-screen program: whole redraws, and between them a few changed places."""
    while True:
        header = f"{_ESC}[?25l{_ESC}[H{_ESC}[7m {' '.join(rng.choices(_WORDS, k=9)):<118}{_ESC}[0m"
        footer = (
            f"{_ESC}[{ROWS};1H{_ESC}[30;42mF1{_ESC}[0mHelp {_ESC}[30;42mF10{_ESC}[0mQuit{_ESC}[K"
        )
        yield header + "".join(_tui_row(rng, row) for row in range(2, ROWS)) + footer
        for _ in range(rng.randrange(3, 9)):
            rows = rng.sample(range(2, ROWS), k=6)
            yield "".join(_tui_row(rng, row) for row in rows) + f"{_ESC}[{rows[0]};20H{_ESC}[?25h"


# What begins each file, once, and the generator of the rest.
KINDS: Final[dict[str, tuple[str, Callable[[random.Random], Iterator[str]]]]] = {
    "plain": ("", plain),
    "sgr": ("", sgr),
    "unicode": ("", unicode),
    "tui": (f"{_ESC}[?1049h{_ESC}[2J", tui),
}


def generate(kind: str, size: int) -> Iterator[bytes]:
    """Blocks of the payload: whole lines or screens, `size` bytes or a little less."""
    start, generator = KINDS[kind]
    pieces, length = [], 0
    for piece in generator(random.Random(f"holdfast {kind}")):
        encoded = piece.encode()
        length += len(encoded)
        if length > min(_UNIT_BYTES, size):
            break
        pieces.append(encoded)
    unit = b"".join(pieces)
    yield start.encode()
    for _ in range((size - len(start)) // len(unit)):
        yield unit


def folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "holdfast" / "bench"


def payload(kind: str, size: int) -> Path:
    """The file of this kind and size, made if it is not there."""
    path = folder() / f"{kind}-{size // 1_000_000}MB-{_EDITION}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        with new.open("wb") as file:
            file.writelines(generate(kind, size))
        new.rename(path)
    return path


def lines(count: int) -> bytes:
    """So many lines of a log, for a session's scrollback."""
    rng = random.Random("holdfast lines")
    return "".join(_plain_line(rng) + "\n" for _ in range(count)).encode()
