"""One address for all replicas of the gateway, as a load balancer in front of a cluster is one.

It looks for ready replicas at every connection, takes each in turn, and the next one if one does
not answer. It reads nothing of what goes through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from e2e.lab import OPERATOR_NAMESPACE, Lab, until

GATEWAYS: Final = ("-l", "app.kubernetes.io/component=gateway")
_CONNECT_SECONDS: Final = 2.0


def replicas(lab: Lab) -> list[dict[str, Any]]:
    """Pods of the gateway that serve."""
    pods = lab.get("pods", "-n", OPERATOR_NAMESPACE, *GATEWAYS)["items"]
    return [pod for pod in pods if _serves(pod)]


def spread(lab: Lab) -> None:
    """One on each node, also if a drain before has brought them together."""
    every = lab.get("pods", "-n", OPERATOR_NAMESPACE, *GATEWAYS)["items"]
    if len({pod["spec"].get("nodeName") for pod in every}) == 1:
        name = every[0]["metadata"]["name"]
        lab.kubectl("delete", "pod", name, "-n", OPERATOR_NAMESPACE, "--wait=false")
    until(
        lambda: len({pod["spec"]["nodeName"] for pod in replicas(lab)}) == 2,
        "a gateway is ready on each node",
        90,
    )


def _serves(pod: dict[str, Any]) -> bool:
    conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions") or ()}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


class Balancer:
    """`port`: on 127.0.0.1, for each port of the gateway that is balanced."""

    def __init__(self, lab: Lab, *targets: int) -> None:
        self._lab = lab
        self._turn = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._open: dict[asyncio.Task[None], str] = {}
        self._servers: list[asyncio.Server] = []
        self.only: Callable[[dict[str, Any]], bool] = lambda pod: True
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = {target: self._soon(self._listen(target)) for target in targets}

    def _soon(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self, target: int) -> int:
        async def come(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            try:
                await self._serve(task, target, reader, writer)
            finally:
                self._open.pop(task, None)
                writer.close()

        server = await asyncio.start_server(come, "127.0.0.1", 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _serve(
        self,
        task: asyncio.Task[None],
        target: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        pods = [pod for pod in await asyncio.to_thread(replicas, self._lab) if self.only(pod)]
        first = next(self._turn)
        for number in range(len(pods)):
            pod = pods[(first + number) % len(pods)]
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CONNECT_SECONDS):
                    there = await asyncio.open_connection(pod["status"]["podIP"], target)
                self._open[task] = pod["metadata"]["name"]
                await _both_ways((reader, writer), there)
                return

    def serving(self) -> list[str]:
        """The pods that have connections of ours, one name for each."""
        return list(self._open.values())

    def close(self) -> None:
        async def stop() -> None:
            for server in self._servers:
                server.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.1)  # what was closed says so to the loop

        self._soon(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


_Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _both_ways(here: _Ends, there: _Ends) -> None:
    """Until either side ends, and then neither has it any more."""
    ways = [
        asyncio.create_task(_copy(here[0], there[1])),
        asyncio.create_task(_copy(there[0], here[1])),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        there[1].close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


@contextlib.contextmanager
def balanced(lab: Lab, *targets: int) -> Iterator[Balancer]:
    made = Balancer(lab, *targets)
    try:
        yield made
    finally:
        made.close()
