"""The sidecar stays small: one runs beside every session."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from gateway_kit import until
from sidecar_kit import Live

# What is loaded beside the standard library. A new name here costs every session its memory.
PACKAGES = {"_cffi_backend", "holdfast_sidecar", "holdfast_wire"}
# Parts of the standard library that are large, and not needed here.
KEPT_OUT = {"email", "http", "multiprocessing", "sqlite3", "tempfile", "unittest", "uuid", "xml"}
LOADED = """
import sys
before = set(sys.modules)
import holdfast_sidecar.__main__
print(*{name.split(".")[0] for name in set(sys.modules) - before})
"""
MAX_IDLE_PSS_MIB = 40


def test_imports_are_pinned() -> None:
    command = [sys.executable, "-c", LOADED]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert {name for name in loaded if name not in sys.stdlib_module_names} == PACKAGES
    assert not loaded & KEPT_OUT


def pss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def test_an_idle_sidecar_with_ten_thousand_lines_is_small() -> None:
    script = "for i in range(11000): print(i, 'x' * (i % 90))\nprint('last', flush=True)\ninput()"
    with Live(sys.executable, "-c", script, columns=120, rows=40) as live:
        assert live.sidecar is not None
        pid = live.sidecar.pid
        with live.client() as client:
            until(lambda: "last" in client.ask("screen")["text"], "the last line")
        time.sleep(3)  # two of them are what it waits before it packs its scrollback
        assert pss_mib(pid) < MAX_IDLE_PSS_MIB
