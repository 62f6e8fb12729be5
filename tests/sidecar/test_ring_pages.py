"""The ring where memory is short: the pages that the terminal is read into are there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tty
from pathlib import Path

import pytest

from holdfast_sidecar.ring import GUARD, Ring

from .test_ring import HEADER, SIZE, text

PAGE = 4096


def locked(path: Path) -> set[int]:
    """Where in the file the pages lie that must not be taken away, by the kernel's own word."""
    found, offset, size = set(), 0, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):  # a mapping; its properties follow
            start, end = (int(word, 16) for word in first.split("-"))
            offset, size = int(rest[1], 16), end - start if rest[4:] == [str(path)] else 0
        elif first == "VmFlags:" and "lo" in rest:
            found |= set(range(offset, offset + size, PAGE))
    return found


@pytest.mark.parametrize("start", [0, GUARD - 1, SIZE - 100, SIZE, 5 * SIZE + GUARD + 1])
def test_what_is_read_into_stays_in_memory_and_nothing_else(tmp_path: Path, start: int) -> None:
    path = tmp_path / "ring"
    for data in (text(start), b""):  # then as another left it
        ring = Ring(path, SIZE)
        ring.append(data)
        ring.rest()
        pages = locked(path)
        ahead = {seq % SIZE // PAGE * PAGE for seq in range(ring.head, ring.head + GUARD, PAGE)}
        assert {HEADER + at for at in ahead} <= pages
        assert len(pages) <= 3 * GUARD // PAGE
        ring.close()
        assert not locked(path)


LACKING = """
import os, sys
from pathlib import Path
from holdfast_sidecar.ring import Ring
path, size, terminal = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
ring = Ring(path, size)
os.truncate(path, 8192)
ring.fill(terminal)
"""


def test_a_page_that_cannot_be_had_is_missed_before_the_terminal_is_read(tmp_path: Path) -> None:
    """The kernel takes 64 bytes out of a terminal before it finds that it cannot copy them."""
    master, slave = os.openpty()
    try:
        tty.setraw(slave)
        os.write(slave, text(1000))
        ring = str(tmp_path / "ring")
        command = [sys.executable, "-c", LACKING, ring, str(SIZE), str(master)]
        done = subprocess.run(command, pass_fds=[master], check=False)
        assert done.returncode == -signal.SIGBUS
        assert os.read(master, 2000) == text(1000)
    finally:
        os.close(master)
        os.close(slave)
