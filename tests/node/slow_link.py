"""What goes between two agents in so many seconds, over a loopback of this process's own that the
kernel slows down. Run in a network namespace by test_packing.py; prints JSON."""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from holdfast_node import transfer
from holdfast_node.frames import Frames
from holdfast_node.link import CHUNK, Frame, Place
from holdfast_node.pages import Asked
from holdfast_node.pair import Facts, Keys
from holdfast_node.progress import Progress
from holdfast_node.transfer import Receiver, dialled

KEYS = Keys(bytes(32))
FACTS = Facts("c", "s", "n", "n", 1, "a", "b", "i", "x86_64", "6", (), 1.0)


def heap(size: int) -> bytes:
    """As objects lie in memory: a count, two pointers and a number each."""
    chosen = random.Random(1)
    block = b"".join(
        struct.pack("=QQQQ", 1, 0x7F3A_0040_1000, 0x7F39_0000_0000 + 16 * chosen.getrandbits(16), 7)
        for _ in range(1 << 15)
    )
    return block * (size // len(block))


def context(folder: Path, purpose: ssl.Purpose) -> ssl.SSLContext:
    made = ssl.create_default_context(purpose, cafile=str(folder / "ours.crt"))
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_cert_chain(folder / "agent.pem")
    return made


async def parts(folder: Path, data: bytes, *, may: bool = True) -> dict[str, float]:
    """As files of a checkpoint."""

    async def handler(receiver: Receiver) -> None:
        if may:
            await receiver.ready()
        with tempfile.TemporaryDirectory(dir="/dev/shm") as into:
            await receiver.receive(Path(into) / "parts")
            assert (Path(into) / "parts" / "part").read_bytes() == data
            await receiver.committed()

    server = partial(context, folder, ssl.Purpose.CLIENT_AUTH)
    client = context(folder, ssl.Purpose.SERVER_AUTH)
    async with transfer.serve("127.0.0.1", 0, server, handler) as port:
        to = Place("a", ("127.0.0.1", port))
        async with transfer.connect(to, client, None, FACTS.checkpoint) as sender:
            if may:
                await sender.ready()
            began = time.monotonic()
            await sender.send_bytes("part", data)
            await sender.finish(FACTS)
            seconds = time.monotonic() - began
            await sender.outcome()
    return {"seconds": seconds, "saved": sender.packer.saved / len(data)}


async def pages(folder: Path, data: bytes) -> dict[str, float]:
    """As memory, with its tag."""
    got = bytearray()
    done: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def handler(receiver: Receiver) -> None:
        frames = Frames(receiver.link, KEYS.tagger(bytes(32), "memory"))

        def work() -> None:
            view = memoryview(bytearray(CHUNK))
            while len(got) < len(data):
                got.extend(view[: frames.read(view)])
                frames.tick()
                if not frames.read(view[:0]):
                    receiver.link.waiting(0.01)
            frames.patient()
            frames.finish(b"?")

        await receiver.run(work)
        receiver.said = True
        done.set_result(time.monotonic())

    server = partial(context, folder, ssl.Purpose.CLIENT_AUTH)
    client = context(folder, ssl.Purpose.SERVER_AUTH)
    async with (
        transfer.serve("127.0.0.1", 0, server, handler) as port,
        dialled(Place("a", ("127.0.0.1", port)), client, "pages") as (link, worker),
    ):
        hello = transfer.greeting(FACTS.checkpoint, bytes(32), {})
        await asyncio.to_thread(link.send_json, Frame.HELLO, hello)
        source = Asked(link, worker, KEYS.tagger(bytes(32), "memory"), Progress())
        source.packer.allowed = True
        began = time.monotonic()

        def work() -> None:
            view = memoryview(data)
            for at in range(0, len(data), CHUNK):
                source.write(view[at : at + CHUNK])
            source.read(memoryview(bytearray(1)))
            source.end()

        await source.run(work)
        seconds = await done - began
    assert bytes(got) == data
    return {"seconds": seconds, "saved": source.packer.saved / len(data)}


async def main() -> None:
    folder, large, small = Path(sys.argv[1]), *sys.argv[3:]
    memory, noise = heap(int(large) << 20), os.urandom(int(small) << 20)
    found = {
        "parts": await parts(folder, memory),
        "pages": await pages(folder, memory),
        "noise": await parts(folder, noise),
        "noise_plain": await parts(folder, noise, may=False),
    }
    print(json.dumps(found))


subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
if (rate := sys.argv[2]) != "none":
    slow = f"tc qdisc add dev lo root tbf rate {rate} burst 256kb latency 50ms"
    subprocess.run(slow.split(), check=True)
asyncio.run(main())
