"""Commands given to the live shell: the text it is made to read, and the marks found in its output.
Pure.

The command is put in a file that the shell sources, so that `cd` and `export` last and any length
and number of lines works. Around it the shell prints two marks, as an operating-system command
that terminals ignore; what stands between them in the output is the command's, and the second has
its exit status.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_OSC: Final = 7770  # unassigned; terminals skip numbers they do not know


class Finished(NamedTuple):
    start: int
    """Offset of the command's first output byte."""
    end: int
    """Offset after its last."""
    exit_code: int


def _quote(text: str, fish: bool) -> str:
    if fish:  # where a backslash is special even inside single quotes
        text = text.replace("\\", "\\\\")
    return "'" + text.replace("'", "'\\''") + "'"


def script(job: str, command: str, said_by: str, shell: str) -> str:
    """What the shell sources. `shell` is the name of its executable."""
    fish = shell == "fish"
    first_line = command.strip().splitlines()[0][:200] if command.strip() else ""
    label = re.sub(r"[\x00-\x1f\x7f]", "", f"# {said_by}: {first_line}")
    status = "$status" if fish else "$?"
    return (
        f"printf '\\033[2m%s\\033[0m\\n' {_quote(label, fish)}\n"
        f"printf '\\033]{_OSC};start;{job}\\007'\n"
        f"eval {_quote(command, fish)}\n"
        f"printf '\\033]{_OSC};end;{job};%d\\007' \"{status}\"\n"
    )


def typed(path: str) -> bytes:
    """The line typed at the prompt. The leading space keeps it out of most shells' history."""
    return f" . {_quote(path, fish=False)}\r".encode()


def find(job: str, output: bytes) -> Finished | None:
    """The command's part of the output, once both marks are there."""
    start_mark = f"\x1b]{_OSC};start;{job}\x07".encode()
    start = output.find(start_mark)
    end = re.search(rf"\x1b\]{_OSC};end;{job};(\d+)\x07".encode(), output)
    if end is None:
        return None
    begin = start + len(start_mark) if start >= 0 else 0
    return Finished(begin, end.start(), int(end[1]))
