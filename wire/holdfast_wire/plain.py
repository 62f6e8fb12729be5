"""The door through which words of others reach a terminal. Pure."""

from __future__ import annotations

import re
from typing import Final

# Whole sequences first, so that their letters do not stay behind as text; then every control
# character, C1 included, and the marks that turn text around.
_SEQUENCES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[PX^_\]]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROLS: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_BLANKS: Final = re.compile(r"[\t\r\n]+")


def plain(text: object) -> str:
    """Printable, on one line, whatever it was."""
    return _CONTROLS.sub("", _BLANKS.sub(" ", _SEQUENCES.sub("", str(text))))
