"""Real TLS over loopback, with certificates made here."""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from holdfast_node import growing, layer, link, receiving, transfer
from holdfast_node.link import Frame
from holdfast_node.pair import Facts, Fault, Keys, Manifest, Part, Unfit
from holdfast_node.progress import Progress, memory_of, told
from holdfast_node.transfer import LinkLost, Receiver, Sender
from holdfast_node.tree import Place
from holdfast_wire.errors import (
    BadRequest,
    HoldfastError,
    Internal,
    TooLarge,
    Unavailable,
)

from .conftest import Contexts
from .trees import furnish, looks

KEYS = Keys(b"0123456789abcdef0123456789abcdef")
FACTS = Facts(
    checkpoint="build-2-1",
    session="11111111-2222",
    namespace="default",
    name="build",
    epoch=2,
    source_pod="a",
    target_pod="b",
    image="sha256:1",
    architecture="x86_64",
    kernel="6.18",
    features=("avx", "sse2"),
    created=1.5,
)


Handler = Callable[[Receiver], Awaitable[None]]


def server(tls: Contexts, name: str = "a") -> Callable[[], ssl.SSLContext]:
    return partial(tls, ssl.Purpose.CLIENT_AUTH, name)


def at(port: int, node: str = "a") -> link.Place:
    return link.Place(node, ("127.0.0.1", port))


@asynccontextmanager
async def linked(tls: Contexts, handler: Handler, keys: Keys = KEYS) -> AsyncIterator[Sender]:
    async def keyed(receiver: Receiver) -> None:
        receiver.keys = keys
        await handler(receiver)

    async with transfer.serve("127.0.0.1", 0, server(tls), keyed) as port:
        client = tls(ssl.Purpose.SERVER_AUTH, "b")
        about = {"pod": "b"}
        async with transfer.connect(at(port), client, KEYS, FACTS.checkpoint, about) as sender:
            yield sender
        if isinstance(handler, Taking):
            async with asyncio.timeout(5):
                await handler.ended.wait()


async def raw(sender: Sender, *frames: tuple[Frame, bytes, int]) -> None:
    """Frames that a sender of ours would not send, until the receiver has had enough."""
    for kind, body, number in frames:
        await sender._run(partial(sender._link.send, kind, body, number))
    await sender.outcome()


async def whole(sender: Sender, *parts: tuple[str, bytes]) -> None:
    for name, data in parts:
        await sender.send_bytes(name, data)
    await sender.finish(FACTS)


class Taking:
    """A handler that receives and commits; keeps what it was given."""

    def __init__(self, directory: Path, limit: int | None = None) -> None:
        self.directory, self.limit = directory, limit
        self.manifest: Manifest | None = None
        self.error: HoldfastError | None = None
        self.about: dict[str, str] = {}
        self.signed = b""
        self.ended = asyncio.Event()

    async def __call__(self, receiver: Receiver) -> None:
        try:
            self.about = receiver.about
            self.manifest = await receiver.receive(self.directory, limit=self.limit)
            self.signed = receiver.signed
            await receiver.committed()
        except HoldfastError as error:
            self.error = error
            raise
        finally:
            self.ended.set()


async def test_the_sender_hears_when_the_receiver_has_all_it_needs(tls: Contexts) -> None:
    made, said = asyncio.Event(), asyncio.Event()

    async def makes(receiver: Receiver) -> None:
        await made.wait()
        await receiver.ready()
        await said.wait()
        raise Unfit(Fault.FOREIGN, "it was only to be ready")

    async with linked(tls, makes) as sender:
        waiting = asyncio.create_task(sender.ready())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        made.set()
        await waiting
        said.set()
        with pytest.raises(HoldfastError, match="only to be ready"):
            await sender.outcome()


async def test_parts_arrive_whole_and_the_sender_hears_of_it(tls: Contexts, tmp_path: Path) -> None:
    big = os.urandom((3 << 20) + 17)
    (tmp_path / "pages").write_bytes(big)
    taking = Taking(tmp_path / "in")
    async with linked(tls, taking) as sender:
        await sender.send_file("images/pages-1.img", tmp_path / "pages")
        await sender.send_bytes("queued", b"ls\n")
        await sender.send_bytes("state/empty", b"")
        manifest = await sender.finish(FACTS)
        await sender.outcome()
        assert sender.progress.sent == sender.progress.taken == len(big) + 3
    assert taking.about == {"pod": "b"}
    assert (tmp_path / "in/images/pages-1.img").read_bytes() == big
    assert (tmp_path / "in/queued").read_bytes() == b"ls\n"
    assert (tmp_path / "in/state/empty").read_bytes() == b""
    assert taking.manifest == manifest == Manifest.read(taking.signed, KEYS)
    assert set(manifest.parts) == {"images/pages-1.img", "queued", "state/empty"}
    assert (tmp_path / "in").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "in/queued").stat().st_mode & 0o777 == 0o600


async def sent(sender: Sender, total: int) -> None:
    for pause in itertools.repeat(0.001):
        if sender.progress.sent >= total:
            return
        await asyncio.sleep(pause)


async def test_zeros_are_not_sent_and_are_holes_there(
    tls: Contexts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = b"head" + bytes(8 << 20) + b"tail" + bytes(2 << 20)
    taking, sent = Taking(tmp_path / "in"), 0
    async with linked(tls, taking) as sender:
        send = sender._link.send

        def counted(kind: Frame, body: bytes | memoryview = b"", part: int = 0) -> None:
            nonlocal sent
            sent += len(body)
            send(kind, body, part)

        monkeypatch.setattr(sender._link, "send", counted)
        await sender.send_bytes("state/ring", ring)
        await sender.finish(FACTS)
        await sender.outcome()
        assert sender.progress.sent == sender.progress.taken == len(ring)
    assert sent < 1 << 20
    assert (tmp_path / "in" / "state" / "ring").read_bytes() == ring
    assert (tmp_path / "in" / "state" / "ring").stat().st_blocks * 512 < 1 << 20


async def test_growing_files_are_sent_while_they_grow_and_freed(
    tls: Contexts, tmp_path: Path
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    taking, done = Taking(tmp_path / "in"), asyncio.Event()
    pieces = [os.urandom(300_001) for _ in range(8)]
    async with linked(tls, taking) as sender:
        following = asyncio.create_task(sender.follow("images", images, done))
        with (images / "pages-1.img").open("wb", buffering=0) as pages:
            total = 0
            for piece in pieces:
                pages.write(piece)
                total += len(piece)
                async with asyncio.timeout(5):
                    await sent(sender, total)  # before `done`
            kept = os.fstat(pages.fileno()).st_blocks * 512
        (images / "core-301.img").write_bytes(b"core")
        (images / "pages-2.img").write_bytes(b"second")
        await asyncio.sleep(0.02)
        assert "images/core-301.img" not in sender.parts
        done.set()
        await following
        await sender.finish(FACTS)
        await sender.outcome()
    assert kept < total // 4
    assert (tmp_path / "in/images/pages-1.img").read_bytes() == b"".join(pieces)
    assert (tmp_path / "in/images/pages-2.img").read_bytes() == b"second"
    assert (tmp_path / "in/images/core-301.img").read_bytes() == b"core"


async def test_a_part_can_be_used_before_the_others_are_there(
    tls: Contexts, tmp_path: Path
) -> None:
    early: asyncio.Queue[bytes] = asyncio.Queue()

    def produce(write: Callable[[memoryview], None]) -> int:
        write(memoryview(b"files"))
        return 7

    async def handler(receiver: Receiver) -> None:
        receiving_all = asyncio.create_task(receiver.receive(tmp_path / "in"))
        early.put_nowait((await receiver.arrived("layer")).read_bytes())
        await receiving_all
        await receiver.committed()

    async with linked(tls, handler) as sender:
        assert await sender.send_from("layer", produce) == 7
        assert await early.get() == b"files"
        await sender.finish(FACTS)
        await sender.outcome()


async def test_a_layer_goes_ahead_and_its_difference_follows(tls: Contexts, tmp_path: Path) -> None:
    source, target = Place(tmp_path / "source"), Place(tmp_path / "target")
    for place in (source, target):
        place.root.mkdir()
    furnish(source.root)
    taking = Taking(tmp_path / "in")
    async with linked(tls, taking) as sender:
        look, _ = await sender.send_from("layer", partial(layer.capture, source))
        (source.root / "etc/passwd").unlink()
        (source.root / "etc/group").write_text("new")
        await sender.send_from("layer.later", partial(layer.difference, source, look))
        await sender.finish(FACTS)
        await sender.outcome()
    for part in ("layer", "layer.later"):
        with (tmp_path / "in" / part).open("rb") as archive:
            layer.apply(archive, target)
    assert looks(target.root) == looks(source.root)


async def test_the_senders_call_raises_the_receivers_reason(tls: Contexts, tmp_path: Path) -> None:
    async def handler(receiver: Receiver) -> None:
        await receiver.receive(tmp_path / "in")
        raise Unfit(Fault.CPU, "this node's processor lacks avx512f")

    async with linked(tls, handler) as sender:
        await sender.send_bytes("queued", b"")
        await sender.finish(FACTS)
        with pytest.raises(HoldfastError, match="lacks avx512f"):
            await sender.outcome()


async def test_a_handler_that_forgets_to_say_has_failed(tls: Contexts, tmp_path: Path) -> None:
    async def handler(receiver: Receiver) -> None:
        await receiver.receive(tmp_path / "in")

    async with linked(tls, handler) as sender:
        await sender.finish(FACTS)
        with pytest.raises(Internal, match="did not say"):
            await sender.outcome()


async def test_a_receiver_that_gives_up_is_heard_in_mid_stream(
    tls: Contexts, tmp_path: Path
) -> None:
    taking = Taking(tmp_path / "in", limit=1 << 20)
    async with linked(tls, taking) as sender:
        with pytest.raises(TooLarge, match="larger than 1 MiB"):
            await whole(sender, *((f"state/{number}", bytes(1 << 20)) for number in range(2000)))
    assert not (tmp_path / "in").exists()


async def test_a_sender_that_leaves_leaves_nothing_behind(tls: Contexts, tmp_path: Path) -> None:
    taking = Taking(tmp_path / "in")
    async with linked(tls, taking) as sender:
        await sender.send_bytes("queued", b"x")
    assert isinstance(taking.error, LinkLost)
    assert not (tmp_path / "in").exists()


async def test_another_secret_is_refused(tls: Contexts, tmp_path: Path) -> None:
    taking = Taking(tmp_path / "in")
    async with linked(tls, taking, Keys(b"x" * 32)) as sender:
        with pytest.raises(HoldfastError, match=r"altered|signed"):
            await whole(sender, ("queued", b"x"))
    assert taking.manifest is None


async def test_a_manifest_of_another_checkpoint_is_refused(tls: Contexts, tmp_path: Path) -> None:
    async with linked(tls, Taking(tmp_path / "in")) as sender:
        with pytest.raises(HoldfastError, match="another checkpoint"):
            await sender.finish(replace(FACTS, checkpoint="build-2-0"))


async def test_a_manifest_that_lists_more_is_refused(tls: Contexts, tmp_path: Path) -> None:
    async with linked(tls, Taking(tmp_path / "in")) as sender:
        sender.parts["images/pages-1.img"] = Part(4, "00" * 16)
        with pytest.raises(HoldfastError, match="lacks its part"):
            await sender.finish(FACTS)


async def test_silence_is_a_lost_link(
    tls: Contexts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "SILENCE", 0.3)

    async def handler(receiver: Receiver) -> None:
        await asyncio.sleep(3600)  # takes nothing and says nothing

    async with linked(tls, handler) as sender:
        with pytest.raises(LinkLost, match="nothing from the other agent"):
            await sender.send_bytes("layer", b"x" * (64 << 20))


async def test_a_pause_of_either_side_is_no_silence(
    tls: Contexts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "SILENCE", 0.5)
    for module in (transfer, receiving, growing):
        monkeypatch.setattr(module, "TICK", 0.05)

    async def handler(receiver: Receiver) -> None:
        await receiver.receive(tmp_path / "in")
        await asyncio.sleep(1.2)  # restoring
        await receiver.committed()

    done = asyncio.Event()
    (tmp_path / "images").mkdir()
    async with linked(tls, handler) as sender:
        await asyncio.sleep(1.2)  # between two calls
        asyncio.get_running_loop().call_later(1.2, done.set)
        await sender.follow("images", tmp_path / "images", done)
        await sender.finish(FACTS)
        await sender.outcome()


async def test_a_cancelled_call_ends_at_once(tls: Contexts, tmp_path: Path) -> None:
    taking = Taking(tmp_path / "in")
    (tmp_path / "images").mkdir()
    async with linked(tls, taking) as sender:
        following = asyncio.create_task(
            sender.follow("images", tmp_path / "images", asyncio.Event())
        )
        await asyncio.sleep(0.05)
        following.cancel()
        async with asyncio.timeout(2):
            with pytest.raises(asyncio.CancelledError):
                await following
            await taking.ended.wait()
    assert not (tmp_path / "in").exists()


@pytest.mark.parametrize("part", ["../x", "/x", "a//b", "a/../b", "", "x" * 300, "a/b/c/d"])
async def test_impossible_names_are_refused_by_both_sides(
    tls: Contexts, tmp_path: Path, part: str
) -> None:
    taking = Taking(tmp_path / "in")
    async with linked(tls, taking) as sender:
        with pytest.raises(BadRequest):
            await sender.send_bytes(part, b"x")
        with pytest.raises(HoldfastError, match="name"):
            await raw(sender, (Frame.BEGIN, part.encode(), 1))
    assert isinstance(taking.error, BadRequest)


@pytest.mark.parametrize(
    "frames",
    [
        [(Frame.DATA, b"x", 9)],
        [(Frame.END, b"{}", 9)],
        [(Frame.BEGIN, b"a", 1), (Frame.BEGIN, b"a", 2)],
        [(Frame.BEGIN, b"a", 1), (Frame.BEGIN, b"b", 1)],
        [(Frame.BEGIN, b"a", 1), (Frame.BEGIN, b"a/b", 2)],
        [(Frame.BEGIN, b"a", 1), (Frame.DATA, b"x", 1), (Frame.END, b'{"size":1}', 1)],
        [(Frame.BEGIN, b"a", 1), (Frame.ZEROS, b"x", 1)],
        [(Frame.ZEROS, b"", 1)],
        [(Frame.BEGIN, b"a", 1), (Frame.MANIFEST, b"", 0)],
        [(Frame.MANIFEST, b"", 0)],
        [(Frame.COMMITTED, b"", 0)],
        [(Frame.HELLO, b"{}", 0)],
    ],
)
async def test_frames_out_of_turn_are_refused(
    tls: Contexts, tmp_path: Path, frames: list[tuple[Frame, bytes, int]]
) -> None:
    taking = Taking(tmp_path / "in")
    async with linked(tls, taking) as sender:
        with pytest.raises(HoldfastError):
            await raw(sender, *frames)
    assert taking.error is not None
    assert not isinstance(taking.error, LinkLost)
    assert not (tmp_path / "in").exists()


async def test_bytes_that_are_no_tls_end_only_their_own_connection(
    tls: Contexts, tmp_path: Path
) -> None:
    taking = Taking(tmp_path / "in")
    serving = transfer.serve("127.0.0.1", 0, server(tls), taking)
    async with serving as port:
        with socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        client = tls(ssl.Purpose.SERVER_AUTH)
        checkpoint = FACTS.checkpoint
        async with transfer.connect(at(port), client, None, checkpoint) as sender:
            await sender.finish(FACTS)
            await sender.outcome()
    assert taking.manifest is not None


async def test_what_was_sent_so_far_is_told_although_nobody_hears() -> None:
    progress, again = Progress(sent=5), asyncio.Event()
    heard: list[int] = []

    async def tell(now: Progress) -> None:
        heard.append(now.all_sent)
        progress.sent, progress.memory = 6, 1
        if len(heard) == 1:
            raise Unavailable("no answer")
        again.set()

    async with told(progress, tell, every=0.001):
        await again.wait()
    assert heard == [5, 7]


def test_what_a_move_will_be_is_about_what_its_processes_have() -> None:
    had = memory_of(os.getpid())
    kept = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    kept.write(b"x" * len(kept))
    progress = Progress(sent=3)
    progress.expect([os.getpid(), 1 << 30])
    assert progress.expected - 3 - had >= len(kept) - (8 << 20)
    assert memory_of(1 << 30) == 0
