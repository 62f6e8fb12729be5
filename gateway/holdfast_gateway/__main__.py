"""`python -m holdfast_gateway --dir STATE`: the embedded gateway."""

from __future__ import annotations

import argparse
import asyncio
import errno
import getpass
import ipaddress
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from aiohttp import web

from holdfast_gateway import log, runfile
from holdfast_gateway.assets import Assets
from holdfast_gateway.door import TokenDoor
from holdfast_gateway.http import Http
from holdfast_gateway.sessions import Sessions
from holdfast_gateway.supervise import Supervisor
from holdfast_wire.errors import AlreadyExists, BadRequest, HoldfastError
from holdfast_wire.ids import Actor

# Open streams are told to come back; nobody needs longer to hear that.
_STOP_SECONDS: Final = 2.0


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="holdfast_gateway", description=__doc__)
    parser.add_argument("--dir", required=True, type=Path, help="the state folder")
    parser.add_argument("--port", type=int, default=0, help="0: the last one, else any free one")
    parser.add_argument("--host", default="127.0.0.1", help="a loopback address")
    parser.add_argument("--ssh-port", type=int, help="serve SSH there too; 0: any free one")
    parser.add_argument(
        "--ssh-keys",
        type=Path,
        default=Path("~/.ssh/authorized_keys"),
        help="whose keys are let in by SSH (%(default)s)",
    )
    given = parser.parse_args(argv)
    if not all(0 <= port < 65536 for port in (given.port, given.ssh_port or 0)):
        parser.error("a port is a number from 0 to 65535")
    given.ssh_keys = given.ssh_keys.expanduser().absolute()
    return given


def _loopback(host: str) -> str:
    name = "127.0.0.1" if host == "localhost" else host
    with suppress(ValueError):
        if ipaddress.ip_address(name).is_loopback:
            return name
    raise BadRequest(
        f"{host} is not a loopback address",
        "the embedded gateway is for this machine alone; reach it from elsewhere through"
        " 'ssh -L PORT:127.0.0.1:PORT'",
    )


async def _listen(runner: web.AppRunner, host: str, asked: int, earlier: int) -> int:
    """Returns the port. One asked for must be had; the earlier run's is only a wish."""
    for port in [asked] if asked else [earlier, 0] if earlier else [0]:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            await site.stop()
            if error.errno != errno.EADDRINUSE:
                raise
            if port == asked:
                raise AlreadyExists(
                    f"port {port} of {host} is taken", "choose another with --port, or none"
                ) from None
            continue
        return int(runner.addresses[0][1])
    raise AssertionError("port 0 is never in use")


@asynccontextmanager
async def _ssh(
    sessions: Sessions, state: Path, host: str, port: int | None, keys: Path
) -> AsyncIterator[None]:
    if port is None:
        yield
        return
    # Not imported where it is not served: it is large.
    from holdfast_gateway.ssh import Server
    from holdfast_gateway.ssh_keys import Keys, host_key

    server = Server(sessions, Keys([keys], getpass.getuser()))
    own = host_key(state / "ssh_host_key", make=True)
    async with server.listening(host, port, own) as got:
        log.info("listening_ssh", host=host, port=got)
        yield


async def _serve(given: argparse.Namespace, state: Path, host: str) -> None:
    earlier = runfile.read(state)
    token = earlier.token if earlier else runfile.new_token()
    supervisor = Supervisor(state)
    assets = Assets()
    if not assets.complete:
        log.warning("page_incomplete", advice="run 'npm ci && node vendor.mjs' in gateway/")
    door = TokenDoor(Actor(getpass.getuser()), token)
    sessions = Sessions(state, supervisor.poke)
    http = Http(door, sessions, assets, supervisor.poke, mcp=True)
    # No access log: it would write whole URLs. http.py logs paths.
    runner = web.AppRunner(http.application(), access_log=None, shutdown_timeout=_STOP_SECONDS)
    await runner.setup()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        port = await _listen(runner, host, given.port, earlier.port if earlier else 0)
        url = runfile.write(state, host, port, token)
        log.info("listening", url=url, pid=os.getpid(), state=str(state))
        async with (
            _ssh(sessions, state, host, given.ssh_port, given.ssh_keys),
            asyncio.TaskGroup() as tasks,
        ):
            watch = tasks.create_task(supervisor.run())
            await stop.wait()
            log.info("stopping", note="sessions and their sidecars go on")
            watch.cancel()
    finally:
        await runner.cleanup()


def main(argv: list[str] | None = None) -> int:
    given = _arguments(sys.argv[1:] if argv is None else argv)
    log.to_stderr()
    try:
        host = _loopback(given.host)
        state = runfile.own_folder(given.dir)
        lock = runfile.take_lock(state)
        if lock is None:
            print("a gateway already serves this folder", file=sys.stderr)
            return 0
        # A long-lived process keeps no folder busy, and '-m' finds no module in it by accident.
        os.chdir("/")
        asyncio.run(_serve(given, state, host))
    except HoldfastError as error:
        print(f"holdfast gateway: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
