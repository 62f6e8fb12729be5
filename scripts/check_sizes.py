"""Modules stop at 500 lines and functions at 60, in Python and in C; JavaScript modules too."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MODULE_LINES = 500
FUNCTION_LINES = 60


def python_functions(text: str) -> Iterator[tuple[str, int, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def c_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """A definition begins at the margin and its body ends with a brace at the margin."""
    start, name = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        head = re.match(r"[a-z].*?(\w+)\(", line)
        if head and not line.rstrip().endswith(";"):
            start, name = number, head[1]
        elif line == "}" and start:
            yield name, start, number - start + 1
            start = 0


def problems(path: Path) -> Iterator[str]:
    text = path.read_text()
    lines = text.count("\n")
    if lines > MODULE_LINES:
        yield f"{path}: {lines} lines, over {MODULE_LINES}"
    kinds = {".py": python_functions, ".c": c_functions}
    for name, start, length in kinds.get(path.suffix, lambda _text: iter(()))(text):
        if length > FUNCTION_LINES:
            yield f"{path}:{start}: {name} has {length} lines, over {FUNCTION_LINES}"


def main() -> int:
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(
        [*listing, "*.py", "*.c", "*.h", "*.js", "*.mjs"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    found = [problem for file in files if Path(file).exists() for problem in problems(Path(file))]
    print("\n".join(found) or f"sizes: {len(files)} files within bounds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
