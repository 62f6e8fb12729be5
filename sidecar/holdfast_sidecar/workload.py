"""Files for the workload, in /run/holdfast: which incarnation it is, and of which session it is a
fork. It can read them and not change them, whichever user it runs as."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

# Of one size: CRIU opens what a program was just reading only if it finds it as long as it was.
_WIDTH: Final = 16


def write_epoch(folder: Path, epoch: int) -> None:
    """To fence its own writes elsewhere. Lines after the first are empty."""
    _write(folder / "epoch", f"{epoch}\n".ljust(_WIDTH, "\n"))


def write_fork(folder: Path, fork: Mapping[str, object]) -> None:
    """Two sessions have its past now. Only one should go on doing what that began."""
    _write(folder / "fork", json.dumps(fork) + "\n")


def _write(path: Path, text: str) -> None:
    with suppress(FileNotFoundError):
        if path.read_text() == text:
            return
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)  # one that a killed sidecar left cannot be written
    new.write_text(text)
    new.chmod(0o444)
    new.rename(path)
