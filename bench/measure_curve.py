"""How the time a session stands still grows with its memory, copied or following, and with the
files in its container's writable layer. `make curve` draws it for the docs.
"""

from __future__ import annotations

import os
from typing import Final

from bench.measure_moves import moved, on_a_cluster
from bench.report import Figures, Table

MOVES: Final = 3
MEMORY_MB: Final = (1, 10, 100, 1000, 4000)
LAYER_MB: Final = (1, 10, 100, 1000)
# Not zeros, which are not sent.
FILLED: Final = """
import os, sys
heap, block = bytearray(int(sys.argv[3]) * 1000000), os.urandom(1000000)
for at in range(0, len(heap), len(block)):
    heap[at:at + len(block)] = block
with open("/var/tmp/filled", "wb") as filled:
    for _ in range(int(sys.argv[4])):
        filled.write(block)
"""


def measure(table: Table) -> Figures:
    table.title("curve: seconds of standing still, by size")
    if os.geteuid() != 0:
        table.note("left out: a cluster on this machine needs root (sudo make curve)")
        return {}
    figures: Figures = {}
    lines = [(memory, size, 0) for memory in ("Copy", "PostCopy") for size in MEMORY_MB]
    with on_a_cluster() as lab:
        for memory, heap, layer in [*lines, *(("Copy", 1, size) for size in LAYER_MB)]:
            line = f"layer_{layer}mb" if layer else f"memory_{memory.lower()}_{heap}mb"
            name = line.replace("_", "-")
            found = moved(lab, name, FILLED, heap, layer, memory=memory, moves=MOVES)
            figures[f"curve_{line}_seconds"] = found
            table.row(line)
            table.cell(f"{found:.3f}")
    return figures
