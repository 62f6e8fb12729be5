"""What a session calls its processes decides nothing (attack 44)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from holdfast_node import memory_due
from holdfast_node.freezer import Freezer

_NAMED = "printf %s > /proc/self/comm; echo; read x"


@pytest.mark.parametrize("name", [memory_due.LOST, memory_due.NAME])
@pytest.mark.parametrize("inside", [True, False])
def test_only_a_process_of_the_agents_own_namespace_counts(
    tmp_path: Path, name: str, inside: bool
) -> None:
    """Attack 44: a session process that names itself like the pager does not stop its moves."""
    own = ["unshare", "-Urpf", "--mount-proc", "--kill-child"] if inside else []
    command = [*own, "bash", "-c", _NAMED.replace("%s", f"%s {name}", 1)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        pids = [process.pid]
        if inside:
            children = f"/proc/{process.pid}/task/{process.pid}/children"
            pids = [int(pid) for pid in Path(children).read_text().split()]
        assert [Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids] == [name]
        (tmp_path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        cage = Freezer(tmp_path, unified=True)
        assert memory_due.coming(cage) is not inside
        assert memory_due.blocked(cage) is (not inside and name == memory_due.LOST)
        process.kill()
