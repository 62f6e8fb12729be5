"""`@xterm/headless` as the independent judge of what a terminal shows."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[2]
_NODE = shutil.which("node") or "node"


class Judge:
    """One Node process that judges many terminals."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._process = subprocess.Popen(
            [_NODE, str(ROOT / "tests/support/judge.mjs"), str(ROOT / "gateway/package.json")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer

    def terminal(self, columns: int, rows: int, scrollback: int = 10_000) -> Judged:
        number = next(self._ids)
        self.ask(op="new", id=number, columns=columns, rows=rows, scrollback=scrollback)
        return Judged(self, number)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


class Judged:
    def __init__(self, judge: Judge, number: int) -> None:
        self._judge, self._number = judge, number

    def write(self, data: bytes) -> None:
        for start in range(0, len(data), 1 << 20):
            part = base64.b64encode(data[start : start + (1 << 20)]).decode()
            self._judge.ask(op="write", id=self._number, base64=part)

    def resize(self, columns: int, rows: int) -> None:
        self._judge.ask(op="resize", id=self._number, columns=columns, rows=rows)

    def dump(self) -> dict[str, Any]:
        return self._judge.ask(op="dump", id=self._number)

    def __enter__(self) -> Judged:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _tb: TracebackType | None,
    ) -> None:
        self._judge.ask(op="free", id=self._number)
