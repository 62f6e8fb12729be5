"""`python -m holdfast_sidecar --dir FOLDER`: serves the session in that folder until it ends."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import sys
from pathlib import Path

from holdfast_sidecar import spec
from holdfast_sidecar.hold import HoldError, HoldLink
from holdfast_sidecar.runner import Sidecar, log
from holdfast_wire.errors import HoldfastError


def _lock(folder: Path) -> int | None:
    """Held for life: there is one sidecar of a session, or none."""
    descriptor = os.open(folder / "sidecar.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


async def _serve(folder: Path) -> None:
    sidecar = Sidecar(folder, spec.load(folder / "session.json"))
    sidecar.stop_on_signals()
    hold = await HoldLink.connect(str(folder / "hold.sock"), sidecar.event, sidecar.lost)
    if os.geteuid() != 0:  # only root's sessions can sleep
        await sidecar.run(hold)
        return
    from holdfast_sidecar.hibernate import Hibernation

    async with Hibernation(sidecar, folder).served(hold):
        await sidecar.run(hold)


def main() -> int:
    parser = argparse.ArgumentParser(prog="holdfast-sidecar", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="the session's folder")
    folder: Path = parser.parse_args().dir
    os.umask(0o077)
    lock = _lock(folder)
    if lock is None:
        log("another sidecar serves this session; leaving it to that one")
        return 0
    try:
        asyncio.run(_serve(folder))
    except (HoldfastError, HoldError) as error:
        log(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
