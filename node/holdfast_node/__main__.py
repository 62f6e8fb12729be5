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


async def serve(settings: Settings) -> None:
    """Until a signal."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is not None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
    can = await asyncio.to_thread(preflight.look, settings.bundle, settings.cgroups)
    for problem in can.problems:
        log.warning("sessions cannot be moved to or from this node", why=problem)
    async with Kube(credentials.find(), agent="holdfast-node") as kube:
        agent = asyncio.create_task(Agent(settings, kube, can).run())
        looking = agent
        if can.problems:
            looking = asyncio.create_task(preflight.fit(settings.bundle, settings.cgroups))
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({agent, looking}, return_when=asyncio.FIRST_COMPLETED)
        # Fit after all: the agent that is started in the place of this one says so.
        for work in (looking, agent):
            work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await agent


def main() -> int:
    try:
        settings = Settings.from_env(os.environ)
        log.configure(settings.log_level)
        asyncio.run(serve(settings))
    except HoldfastError as error:
        print(f"holdfast-node: {error}", file=sys.stderr)
        return error.exit_code
    except Exception as error:  # the process's edge
        log.fault("the agent ends", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
