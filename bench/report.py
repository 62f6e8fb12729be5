"""The report: one flat object, numbers by name, the unit in the name; and the table on screen."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

TOO_BUSY_PERCENT: Final = 10.0

Figures = dict[str, float]
Report = dict[str, float | str]


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"


def machine() -> str:
    memory = _field("/proc/meminfo", "MemTotal").split()[0]
    gibibytes = f"{int(memory) / (1 << 20):.0f} GiB" if memory.isdigit() else "unknown memory"
    return (
        f"{_field('/proc/cpuinfo', 'model name')}, {os.cpu_count()} cores,"
        f" {platform.system()} {platform.release()}, {gibibytes}"
    )


def busy_percent(seconds: float = 1.0) -> float:
    """How much of all cores others use now."""

    def times() -> tuple[int, int]:
        with Path("/proc/stat").open() as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
        return sum(ticks), ticks[3] + ticks[4]

    total, idle = times()
    time.sleep(seconds)
    total_after, idle_after = times()
    passed = max(1, total_after - total)
    return 100 * (1 - (idle_after - idle) / passed)


def commit(root: Path) -> str:
    """The commit measured, with `-dirty` if files differ from it."""
    done = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def rounded(value: float) -> float:
    """Four significant digits: the rest is noise."""
    return float(f"{value:.4g}")


def build(figures: Figures, machine: str, commit: str) -> Report:
    numbers = {name: rounded(value) for name, value in sorted(figures.items())}
    return {"machine": machine, "commit": commit, **numbers}


def write(path: Path, report: Report) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    new.rename(path)


class Table:
    """Lines that grow while something is measured."""

    def __init__(self) -> None:
        self._open = False

    def title(self, text: str) -> None:
        self._close()
        print(f"\n{text}", flush=True)

    def row(self, text: str) -> None:
        self._close()
        print(f"  {text:<22}", end="", flush=True)
        self._open = True

    def cell(self, text: str) -> None:
        print(f" {text:<20}", end="", flush=True)

    def note(self, text: str) -> None:
        self._close()
        print(f"  {text}", flush=True)

    def doing(self, text: str) -> None:
        """What takes long, on a terminal only; the next cell replaces it."""
        if sys.stdout.isatty():
            print(f"\x1b7\x1b[2m {text}\x1b[0m\x1b8", end="", flush=True)

    def _close(self) -> None:
        if self._open:
            print("\x1b[K" if sys.stdout.isatty() else "", flush=True)
        self._open = False
