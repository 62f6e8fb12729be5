"""Refuses any way to a process's root but safe_open.py (attack 29): `make lint` runs it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

PARTS = ("node", "sidecar", "operator", "gateway", "client")
ALLOWED = "node/holdfast_node/safe_open.py"
# /proc/1/root, /proc/{pid}/root, /proc/%d/root, and PROC / str(pid) / "root"
_FOUND = re.compile(r"""/proc/[^\s"'/]+/root|/\s*[bf]?["']root["'/]""")


def offences(text: str) -> list[int]:
    """The numbers of the lines that lead to a process's root."""
    return [n for n, line in enumerate(text.splitlines(), 1) if _FOUND.search(line)]


def main(top: Path) -> int:
    found = [
        f"{path.relative_to(top)}:{line}: open it with safe_open.py, not through /proc/PID/root"
        for part in PARTS
        for path in sorted((top / part).rglob("*.py"))
        if path.relative_to(top).as_posix() != ALLOWED
        for line in offences(path.read_text())
    ]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent.parent))
