"""A keyframe is whole or not there."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_sidecar import emulator, keyframe, snapshot
from holdfast_sidecar.ghostty import Terminal
from holdfast_sidecar.keyframe import Form, Keyframe
from holdfast_sidecar.ring import GUARD, Ring

HEADER = struct.Struct("<8sIQ")


def frame(seq: int, state: bytes | None, form: Form = Form.ENCODED) -> Keyframe:
    assert state is not None
    return Keyframe(seq, form, 20, 5, state)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keyframe"


def test_what_was_saved_is_loaded(path: Path) -> None:
    for one in (frame(0, b""), frame(7, b"state"), frame(2**64 - 1, bytes(1 << 20))):
        keyframe.save(path, one)
        assert keyframe.load(path) == one


@given(st.integers(0, 2**64 - 1), st.binary(max_size=200))
def test_any_keyframe(tmp_path_factory: pytest.TempPathFactory, seq: int, state: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any-keyframe"
    keyframe.save(path, frame(seq, state))
    assert keyframe.load(path) == frame(seq, state)


def test_none_is_none(path: Path) -> None:
    assert keyframe.load(path) is None


def test_cut_short_anywhere_it_is_none(path: Path) -> None:
    keyframe.save(path, frame(9, b"a terminal's state"))
    blob = path.read_bytes()
    for length in range(len(blob)):
        path.write_bytes(blob[:length])
        assert keyframe.load(path) is None
    path.write_bytes(blob + b"\0")
    assert keyframe.load(path) is None


def test_damaged_anywhere_it_is_none(path: Path) -> None:
    keyframe.save(path, frame(9, b"a terminal's state"))
    blob = path.read_bytes()
    for at in range(len(blob)):
        for bit in (1, 128):
            damaged = bytearray(blob)
            damaged[at] ^= bit
            path.write_bytes(damaged)
            assert keyframe.load(path) is None, f"byte {at}"


def test_a_length_that_lies_costs_nothing(path: Path) -> None:
    path.write_bytes(HEADER.pack(b"HFKEYF1\n", 0, 2**63) + b"x")
    assert keyframe.load(path) is None


@pytest.mark.parametrize("left", [b"", b"half a header", bytes(10 << 10)])
def test_what_a_kill_left_half_written_changes_nothing(path: Path, left: bytes) -> None:
    keyframe.save(path, frame(1, b"first"))
    new = path.with_suffix(".new")
    new.write_bytes(left)
    assert keyframe.load(path) == frame(1, b"first")
    keyframe.save(path, frame(2, b"2"))
    assert keyframe.load(path) == frame(2, b"2")
    assert not new.exists()


def test_the_one_that_is_there_is_never_opened_for_writing(path: Path) -> None:
    keyframe.save(path, frame(1, b"first"))
    kept = path.with_name("kept")
    os.link(path, kept)
    keyframe.save(path, frame(2, b"second"))
    assert keyframe.load(kept) == frame(1, b"first")
    assert keyframe.load(path) == frame(2, b"second")


def test_it_is_private(path: Path) -> None:
    before = os.umask(0)
    try:
        keyframe.save(path, frame(1, b"x"))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


# -- recovery: keyframe and ring together ---------------------------------------------------------


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    return Ring(tmp_path / "ring", 4 * GUARD)


def shown(ring: Ring, terminal: Terminal, seq: int) -> bytes:
    for view in ring.slices(seq, ring.head):
        terminal.feed(view)
    return terminal.format((0, 0), (terminal.columns - 1, terminal.history + 4), plain=True)


def test_a_keyframe_the_ring_goes_on_from_is_used(ring: Ring, path: Path) -> None:
    terminal = Terminal(20, 5, 100)
    terminal.feed(b"before")
    ring.append(b"before")
    keyframe.save(path, frame(ring.head, terminal.encode()))
    ring.append(b" after")
    found, seq = emulator.recover(ring, path, (20, 5), 100)
    assert seq == 6
    assert shown(ring, found, seq) == b"before after"


@pytest.mark.parametrize("seq", [5000, 2**63])
def test_a_keyframe_from_beyond_the_head_is_not(ring: Ring, path: Path, seq: int) -> None:
    keyframe.save(path, frame(seq, Terminal(20, 5, 100).encode()))
    ring.append(b"all there is")
    found, start = emulator.recover(ring, path, (20, 5), 100)
    assert start == 0
    assert shown(ring, found, start) == b"all there is"


def test_nor_one_whose_bytes_the_ring_has_lost(ring: Ring, path: Path) -> None:
    keyframe.save(path, frame(10, Terminal(20, 5, 100).encode()))
    ring.append(b"x" * ring.size + b"\r\nthe end")
    _, start = emulator.recover(ring, path, (20, 5), 100)
    assert start == ring.oldest > 10


def test_without_one_the_first_size_in_the_ring_is_taken(ring: Ring, path: Path) -> None:
    ring.mark(30, 5)
    ring.append(b"abc")
    ring.mark(40, 6)
    found, _ = emulator.recover(ring, path, (20, 5), 100)
    assert (found.columns, found.rows) == (30, 5)


def test_one_that_cannot_be_decoded_is_not_used(ring: Ring, path: Path) -> None:
    ring.append(b"from the ring")
    keyframe.save(path, frame(5, b"of another version"))
    found, start = emulator.recover(ring, path, (20, 5), 100)
    assert (start, shown(ring, found, start)) == (0, b"from the ring")


@pytest.mark.parametrize(
    ("stream", "columns"),
    [(b"\x1b[?1049ha" + "日本".encode(), 4), (b"text\x1b]2;" + b"1" * (5 << 20), 20)],
)
def test_what_cannot_be_encoded_is_written(
    tmp_path: Path, path: Path, stream: bytes, columns: int
) -> None:
    """A wide character cut by a resize, and a sequence that does not end."""
    big = Ring(tmp_path / "big", 256 * GUARD)
    terminal = Terminal(20, 5, 100)
    terminal.feed(stream)
    terminal.resize(6, 5)
    terminal.resize(columns, 5)
    big.append(stream)
    made = emulator.Emulator(big, terminal, big.head, path, "test")
    made.save()
    found, seq = emulator.recover(big, path, (20, 5), 100)
    assert (seq, found.columns) == (big.head, columns)
    assert snapshot.text(found, scrollback=True) != ""


def test_on_a_full_disk_there_is_none_and_the_session_goes_on(
    ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_path: Path, _keyframe: Keyframe) -> None:
        raise OSError(28, "No space left on device")

    ring.append(b"x" * 1000)
    path = tmp_path / "keyframe"
    path.write_bytes(b"an older one")
    made = emulator.Emulator(ring, Terminal(20, 5, 100), 1000, path, "test")
    made.keyframe_seq = 0
    monkeypatch.setattr(keyframe, "save", full)
    made.save()
    assert (made.keyframe_seq, path.exists()) == (1000, False)
