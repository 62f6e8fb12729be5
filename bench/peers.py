"""The programs holdfast is compared with, from Debian."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Final

from bench.processes import Failed
from bench.report import Table

NEEDED: Final = ("tmux", "dtach")


def ensure(table: Table) -> None:
    """Installs what is missing if it may; otherwise says how."""
    table.note("beside tmux and dtach; ttyd, which Debian 12 has no package of, is left out")
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if not missing:
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Failed(f"{' and '.join(missing)} must be installed: sudo {' '.join(command)}")
    table.note(f"installing {' and '.join(missing)}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
