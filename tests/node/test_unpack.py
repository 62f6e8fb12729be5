"""What arrives is not trusted: it can harm nothing outside the tree that it is put into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast_node.archive import REPLACE, BadArchive, Kind, Record, Writer
from holdfast_node.tree import Place
from holdfast_wire.errors import HoldfastError

from .trees import archive_of, furnish, looks, mine, names, put, taken


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Path]:
    """A root with links that lead out of it; whatever is outside stays as it is."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (outside / "precious").write_text("precious")
    (root / "out").symlink_to(outside)
    (root / "file").symlink_to(outside / "precious")
    before = looks(outside)
    yield root
    assert looks(outside) == before


@pytest.mark.parametrize("name", [b"..", b".", b"a/b", b"/etc", b"../outside/new", b"a\0b"])
@pytest.mark.parametrize("kind", [Kind.FILE, Kind.DIRECTORY, Kind.GONE, Kind.SYMLINK])
def test_impossible_names_are_refused(trap: Path, name: bytes, kind: Kind) -> None:
    body = b"x" if kind in (Kind.FILE, Kind.SYMLINK) else None
    with pytest.raises(BadArchive, match="impossible"):
        put(archive_of((mine(kind, name), body)), Place(trap))


def test_nothing_changed(trap: Path) -> None:
    """A difference of which there is none has not even a root."""
    before = looks(trap)
    pieces: list[bytes] = []
    Writer(lambda view: pieces.append(bytes(view))).close()
    put(b"".join(pieces), Place(trap))
    assert looks(trap) == before


def test_links_are_replaced_not_followed(trap: Path) -> None:
    archive = archive_of(
        (mine(Kind.DIRECTORY, b"out", REPLACE), None),
        (mine(Kind.FILE, b"precious"), b"overwritten"),
        (Record(Kind.UP), None),
        (mine(Kind.FILE, b"file"), b"overwritten"),
    )
    put(archive, Place(trap))
    assert not (trap / "out").is_symlink()
    assert (trap / "out/precious").read_text() == "overwritten"
    assert not (trap / "file").is_symlink()


def test_removing_follows_no_link(trap: Path) -> None:
    (trap / "sub").mkdir()
    (trap / "sub/out").symlink_to(trap.parent / "outside")
    put(archive_of((mine(Kind.GONE, b"sub"), None), (mine(Kind.GONE, b"out"), None)), Place(trap))
    assert names(trap) == ["file"]


@pytest.mark.parametrize(
    "target", [b"../outside/precious", b"/etc/passwd", b"out/precious", b"nowhere", b""]
)
def test_hard_links_lead_nowhere_else(trap: Path, target: bytes) -> None:
    with pytest.raises(BadArchive):
        put(archive_of((mine(Kind.LINK, b"new"), target)), Place(trap))


@pytest.mark.parametrize(
    "records",
    [
        [(mine(Kind.DIRECTORY, b""), None)],
        [(mine(Kind.UP, b""), None), (mine(Kind.FILE, b"x"), b"y")],
        [(mine(Kind.DIRECTORY, b"d"), None)],
    ],
)
def test_records_out_of_place_are_refused(
    trap: Path, records: list[tuple[Record, bytes | None]]
) -> None:
    with pytest.raises(BadArchive):
        put(archive_of(*records), Place(trap))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    source = tmp_path_factory.mktemp("whole")
    furnish(source)
    return taken(Place(source))[0]


FEW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@FEW
@given(at=st.floats(0, 1, exclude_max=True))
def test_an_archive_cut_short_is_refused(whole: bytes, trap: Path, at: float) -> None:
    with pytest.raises(BadArchive):
        put(whole[: int(len(whole) * at)], Place(trap))


@FEW
@given(at=st.floats(0, 1, exclude_max=True), value=st.integers(1, 255))
def test_a_damaged_archive_harms_nothing_outside(
    whole: bytes, trap: Path, at: float, value: int
) -> None:
    damaged = bytearray(whole)
    damaged[int(len(whole) * at)] ^= value
    try:
        put(bytes(damaged), Place(trap))
    except (HoldfastError, OSError):
        return
