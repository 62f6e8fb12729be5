"""A checkpoint is whole, signed and of the right session, or it is refused in plain words."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_node.pair import (
    Expected,
    Facts,
    Fault,
    Keys,
    Manifest,
    Part,
    Unfit,
    check,
    check_part,
    verify,
)
from holdfast_node.seal import Sealing, sealed_size, unseal
from holdfast_wire.errors import BadRequest

KEYS = Keys(b"0123456789abcdef0123456789abcdef")
OTHER = Keys(b"another secret of the same length")
FACTS = Facts(
    checkpoint="build-2-1",
    session="11111111-2222",
    namespace="default",
    name="build",
    epoch=2,
    source_pod="pod-a",
    target_pod="pod-b",
    image="sha256:1",
    architecture="x86_64",
    kernel="6.18",
    features=("avx", "sse2"),
    created=1.5,
)
PARTS = {"images/pages-1.img": Part(4096, "aa"), "layer": Part(10, "bb"), "queued": Part(0, "cc")}
MANIFEST = Manifest(FACTS, b"s" * 32, PARTS)
EXPECTED = Expected(
    session="11111111-2222",
    namespace="default",
    name="build",
    epoch=2,
    image="sha256:1",
    architecture="x86_64",
    features=frozenset({"avx", "avx2", "sse2"}),
    target_pod="pod-b",
)


def test_a_manifest_survives_the_way() -> None:
    read = Manifest.read(MANIFEST.signed(KEYS), KEYS)
    assert read == MANIFEST
    assert read.digest == MANIFEST.digest
    assert read.size == 4106
    check(read, EXPECTED)
    verify(read, PARTS)


def test_the_secret_is_not_shown() -> None:
    assert "0123" not in repr(KEYS)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(BadRequest, match="shorter"):
        Keys(b"short")


@given(data=st.data())
def test_any_change_of_a_manifest_is_refused(data: st.DataObject) -> None:
    raw = bytearray(MANIFEST.signed(KEYS))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Unfit):
        Manifest.read(bytes(raw), KEYS)


@given(length=st.integers(0, len(MANIFEST.signed(KEYS)) - 1))
def test_a_manifest_cut_short_is_refused(length: int) -> None:
    with pytest.raises(Unfit):
        Manifest.read(MANIFEST.signed(KEYS)[:length], KEYS)


@given(raw=st.binary(max_size=400))
def test_anything_else_is_refused(raw: bytes) -> None:
    with pytest.raises(Unfit):
        Manifest.read(raw, KEYS)


def test_another_clusters_signature_is_refused() -> None:
    with pytest.raises(Unfit, match="signed") as raised:
        Manifest.read(MANIFEST.signed(OTHER), KEYS)
    assert raised.value.fault is Fault.UNSIGNED


@pytest.mark.parametrize("body", [b"[]", b"{}", b"nothing", b'{"format":1,"facts":{}}'])
def test_a_signed_manifest_that_lacks_something_is_refused(body: bytes) -> None:
    raw = b"holdfast-checkpoint 1 " + KEYS.signature(body) + b"\n" + body
    with pytest.raises(Unfit, match="lacks something") as raised:
        Manifest.read(raw, KEYS)
    assert raised.value.fault is Fault.CORRUPT


def test_a_part_may_not_lead_out_of_its_folder() -> None:
    body = json.loads(MANIFEST.signed(KEYS).split(b"\n", 1)[1])
    body["parts"]["../../etc/passwd"] = {"size": 1, "tag": ""}
    packed = json.dumps(body).encode()
    with pytest.raises(BadRequest):
        Manifest.read(b"holdfast-checkpoint 1 " + KEYS.signature(packed) + b"\n" + packed, KEYS)


@pytest.mark.parametrize(
    ("change", "fault", "words"),
    [
        ({"session": "other"}, Fault.FOREIGN, "another session"),
        ({"namespace": "other"}, Fault.FOREIGN, "another session"),
        ({"name": "other"}, Fault.FOREIGN, "another session"),
        ({"target_pod": "pod-c"}, Fault.FOREIGN, "another pod"),
        ({"epoch": 1}, Fault.OLDER, "epoch 1, older than 2"),
        ({"epoch": 3}, Fault.NEWER, "epoch 3, newer than 2"),
        ({"architecture": "aarch64"}, Fault.ARCHITECTURE, "ran on aarch64"),
        ({"image": "sha256:2"}, Fault.IMAGE, "image sha256:2"),
        ({"features": ("avx", "avx512f", "sse2")}, Fault.CPU, "lacks .*: avx512f"),
    ],
)
def test_why_it_does_not_fit_is_said(change: dict[str, object], fault: Fault, words: str) -> None:
    manifest = replace(MANIFEST, facts=replace(FACTS, **change))  # type: ignore[arg-type]
    with pytest.raises(Unfit, match=words) as raised:
        check(manifest, EXPECTED)
    assert raised.value.fault is fault


def test_one_that_was_kept_fits_whichever_pod() -> None:
    check(replace(MANIFEST, facts=replace(FACTS, target_pod="")), EXPECTED)


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        ({}, Fault.TRUNCATED),
        (PARTS | {"layer": Part(9, "bb")}, Fault.TRUNCATED),
        (PARTS | {"layer": Part(11, "bb")}, Fault.CORRUPT),
        (PARTS | {"layer": Part(10, "bc")}, Fault.CORRUPT),
        (PARTS | {"more": Part(1, "dd")}, Fault.CORRUPT),
    ],
)
def test_parts_must_be_those_of_the_manifest(found: dict[str, Part], fault: Fault) -> None:
    with pytest.raises(Unfit) as raised:
        verify(MANIFEST, found)
    assert raised.value.fault is fault


def test_each_part_of_each_checkpoint_has_its_own_key() -> None:
    def tag(keys: Keys, salt: bytes, part: str) -> bytes:
        tagger = keys.tagger(salt, part)
        tagger.update(b"the same bytes")
        return tagger.finalize()

    tags = {
        tag(keys, salt, part)
        for keys in (KEYS, OTHER)
        for salt in (b"a" * 32, b"b" * 32)
        for part in ("layer", "queued")
    }
    assert len(tags) == 8


def test_keys_are_made_by_hkdf() -> None:
    """RFC 5869, one block."""
    extracted = hmac.new(b"salt", KEYS.secret, hashlib.sha256).digest()
    expanded = hmac.new(extracted, b"holdfast x\x01", hashlib.sha256).digest()
    assert KEYS.derive(b"x", b"salt") == expanded


@pytest.mark.parametrize("name", ["images/pages-1.img", "state/.journal", "volumes/data.later"])
def test_names_of_parts(name: str) -> None:
    assert check_part(name) == name


# -- at rest --------------------------------------------------------------------------------------

PIECE = 1 << 20


def sealed(data: bytes, what: str = "c/layer") -> bytes:
    out = io.BytesIO()
    sealing, view = Sealing(out.write, KEYS, what), memoryview(data)
    for at in range(0, len(view), 300_007):  # as it comes: not in pieces of a round size
        sealing.update(view[at : at + 300_007])
    sealing.finish()
    return out.getvalue()


def opened(data: bytes, what: str = "c/layer", keys: Keys = KEYS) -> bytes:
    return b"".join(unseal(io.BytesIO(data), keys, what))


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_what_is_sealed_is_opened_again(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    hidden = sealed(data[:size])
    assert len(hidden) == sealed_size(size)
    assert opened(hidden) == data[:size]
    assert size < 100 or data[:64] not in hidden


def test_the_same_file_is_never_sealed_the_same() -> None:
    assert sealed(b"x") != sealed(b"x")


@pytest.mark.parametrize("keep", [0, 10, 48, 60, 48 + PIECE + 16, 48 + 2 * (PIECE + 16)])
def test_a_sealed_file_cut_short_is_refused(keep: int) -> None:
    with pytest.raises(Unfit):
        opened(sealed(bytes(3 * PIECE))[:keep])


def test_pieces_cannot_be_swapped_or_added() -> None:
    hidden = sealed(bytes(3 * PIECE))
    size = PIECE + 16
    starts = range(48, 48 + 3 * size, size)
    head, pieces = hidden[:48], [hidden[start : start + size] for start in starts]
    for order in ([1, 0, 2], [0, 2], [0, 1, 2, 2], [2]):
        with pytest.raises(Unfit):
            opened(head + b"".join(pieces[place] for place in order))


@given(at=st.integers(0, 300), value=st.integers(1, 255))
def test_any_change_of_a_sealed_file_is_refused(at: int, value: int) -> None:
    hidden = bytearray(sealed(bytes(250)))
    hidden[at] ^= value
    with pytest.raises(Unfit):
        opened(bytes(hidden))


def test_a_sealed_file_is_bound_to_its_place_and_secret() -> None:
    with pytest.raises(Unfit):
        opened(sealed(b"x"), "c/queued")
    with pytest.raises(Unfit):
        opened(sealed(b"x"), keys=OTHER)
