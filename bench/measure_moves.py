"""How long a session stands still when it moves, on a real cluster, against what CRIU alone takes
to dump and restore a process of that size on the same node in the same run.

The session measures its own freeze: from the last line it wrote outside before the move to the
first one after it.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from e2e.cluster import __main__ as cluster
from e2e.cluster import faults
from e2e.cluster.places import SHARED
from e2e.cluster.running import running
from e2e.lab import Lab, Mark, until
from e2e.movers import WALKER, agent_pid, ask, await_agents, check, phase, shared

from bench.measure_memory import memory_mib
from bench.report import Figures, Table

SIZES: Final = {"50mb": 50_000_000, "1gib": 1 << 30}
FOLLOWING: Final = {"1gib": 1 << 30, "4gib": 4 << 30}  # memory that follows the session
MOVES: Final = {"50mb": 5, "1gib": 3, "4gib": 3}
EVERY: Final = 0.002  # seconds between two lines: the least freeze that can be told
BUILT_WITHIN: Final = 120.0
MOVED_WITHIN: Final = 120.0
HEAP: Final = """
import os, sys
block = os.urandom(1 << 20)
heap = bytearray(int(sys.argv[3]) >> 20 << 20)
for at in range(0, len(heap), 1 << 20):
    heap[at:at + (1 << 20)] = block
"""
# In a session of its own, without a terminal: what CRIU does with the least to do.
ALONE: Final = """
import os, subprocess, sys, time
heap, folder = int(sys.argv[1]), sys.argv[2]
os.makedirs(folder, exist_ok=True)
program = '''
import os, sys, time
heap = bytearray(os.urandom(1 << 20) * (int(sys.argv[1]) >> 20))
os.mkdir(sys.argv[2] + "/ready")
time.sleep(600)
'''
child = subprocess.Popen(
    ["setsid", "python3", "-c", program, str(heap), folder],
    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
)
while not os.path.exists(folder + "/ready"):
    time.sleep(0.05)
took = []
for what in (["dump", "-t", str(child.pid)], ["restore", "-d", "--pidfile", folder + "/pid"]):
    began = time.monotonic()
    subprocess.run(["criu", *what, "-D", folder, "-v0"], check=True)
    took.append(time.monotonic() - began)
    child.poll()
os.kill(int(open(folder + "/pid").read()), 9)
print(*took)
"""


@contextmanager
def on_a_cluster() -> Iterator[Lab]:
    cluster.up(os.getpid())
    try:
        lab = Lab(running().programs)
        lab.install()
        await_agents(lab)
        yield lab
    finally:
        cluster.down()


def measure(table: Table) -> Figures:
    table.title("moves: seconds of standing still, and of CRIU alone")
    if os.geteuid() != 0:
        table.note("left out: a cluster on this machine needs root (sudo make bench)")
        return {}
    figures: Figures = {}
    with on_a_cluster() as lab:
        for name, size in SIZES.items():
            copied = f"copy-{name}"
            frozen = moved(lab, copied, HEAP, size, memory="Copy", moves=MOVES[name])
            floor = _alone(name, size)
            figures[f"move_freeze_{name}_seconds"] = frozen
            figures[f"criu_floor_{name}_seconds"] = floor
            figures[f"move_freeze_{name}_ratio_to_criu"] = frozen / floor
            table.row(name)
            table.cell(f"{frozen:.3f}")
            table.cell(f"CRIU alone {floor:.3f}")
            table.cell(f"ratio {frozen / floor:.2f}")
        for name, size in FOLLOWING.items():
            follows = f"postcopy-{name}"
            frozen = moved(lab, follows, HEAP, size, memory="PostCopy", moves=MOVES[name])
            figures[f"postcopy_freeze_{name}_seconds"] = frozen
            table.row(f"{name}, post-copy")
            table.cell(f"{frozen:.3f}")
        figures["agent_idle_mib"] = _idle_agents(lab)
        table.row("agent, idle")
        table.cell(f"{figures['agent_idle_mib']:.1f} MiB")
    return figures


def moved(lab: Lab, name: str, filled: str, *sizes: int, memory: str, moves: int) -> float:
    """The median of some moves back and forth, of a program that first does `filled`."""
    (SHARED / name).unlink(missing_ok=True)
    words = (f"/shared/{name}", str(EVERY), *map(str, sizes))
    spec = {"move": {"memory": memory}}
    session = lab.session(name, "python3", "-c", filled + WALKER, *words, spec=spec, **shared())
    until(lambda: len(session.marks()) > 100, "it counts", BUILT_WITHIN)
    for _ in range(moves):
        epoch = ask(session)
        session.await_epoch(epoch + 1, MOVED_WITHIN)
        session.writes_on()
        until(lambda: phase(session) == "Complete", "its memory is all there", MOVED_WITHIN)
    marks = check(session, moves + 1)
    session.delete()
    return statistics.median(_freezes(marks))


def _freezes(marks: list[Mark]) -> list[float]:
    pairs = itertools.pairwise(marks)
    return [after.at - before.at for before, after in pairs if after.epoch != before.epoch]


def _alone(name: str, size: int) -> float:
    node = running().nodes[0]
    took = []
    for number in range(MOVES[name]):
        said = faults.in_node(node, "python3", "-c", ALONE, str(size), f"/run/alone-{number}")
        took.append(sum(float(word) for word in said.split()))
        faults.in_node(node, "rm", "-rf", f"/run/alone-{number}")
    return statistics.median(took)


def _idle_agents(lab: Lab) -> float:
    """Of the one that needs more."""
    time.sleep(5)
    return max(memory_mib(agent_pid(lab, node))["Pss"] for node in running().nodes)
