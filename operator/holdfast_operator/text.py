"""Plain text out of what a terminal or a pod said. Pure.

Status and events are shown by `kubectl` in other people's terminals: an escape sequence in them
would act there.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_ESCAPE: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS …
    r"|\x1b[ -/]*[0-~]?"
)


def plain(text: str, limit: int = 1024) -> str:
    """One line without escape sequences, control and direction-changing characters."""
    kept = _seen(re.sub(r"\s+", " ", _ESCAPE.sub("", text))).rstrip()
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


def plain_row(text: str, limit: int = 512) -> str:
    """A row of a screen: as `plain`, but its spaces stay, for columns line up by them."""
    return _seen(_ESCAPE.sub("", text)).rstrip()[:limit]


def _seen(text: str) -> str:
    """Of characters those that show, and change nothing else."""
    if text.isascii() and text.isprintable():
        return text  # as almost all of it is
    return "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co"))
