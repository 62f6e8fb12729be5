"""`holdfast-node`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

from holdfast_kube import credentials
from holdfast_kube.client import Kube
from holdfast_node import log, preflight
from holdfast_node.agent import Agent
from holdfast_node.settings import Settings
from holdfast_wire.errors import HoldfastError


async def work(settings: Settings) -> None:
    """Until a signal."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is not None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
    can = await asyncio.to_thread(preflight.look, settings.bundle, settings.cgroups)
    for problem in can.problems:
        log.warning("sessions cannot be moved to or from this node", why=problem)
    async with Kube(credentials.find(), agent="holdfast-node") as kube:
        with contextlib.suppress(asyncio.CancelledError):
            await Agent(settings, kube, can).run()


def main() -> int:
    try:
        settings = Settings.from_env(os.environ)
        log.configure(settings.log_level)
        asyncio.run(work(settings))
    except HoldfastError as error:
        print(f"holdfast-node: {error}", file=sys.stderr)
        return error.exit_code
    except Exception as error:  # the process's edge
        log.fault("the agent ends", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
