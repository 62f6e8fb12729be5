"""One at a time: who brings a cluster up or down holds a lock, and its end, however it comes, gives
the lock back.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.places import STATE
from e2e.cluster.say import say


def lock_file(state: Path) -> Path:
    """Beside the state, which comes and goes."""
    return state.with_name(f"{state.name}.lock")


@contextmanager
def alone(state: Path = STATE) -> Iterator[None]:
    path = lock_file(state)
    path.parent.mkdir(parents=True, exist_ok=True)
    held = _take(path)
    try:
        yield
    finally:
        # Nothing is left of a cluster that is down. Those who wait notice that their file is gone.
        if not state.exists():
            path.unlink(missing_ok=True)
        os.close(held)


def _take(path: Path) -> int:
    while True:
        held = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another one brings the cluster up or down; waiting for it")
            fcntl.flock(held, fcntl.LOCK_EX)
        if _same(held, path):
            return held
        os.close(held)


def _same(held: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(held), path.stat())
    except FileNotFoundError:
        return False
