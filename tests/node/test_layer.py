"""Layers taken from one overlay and put into another: the two must then look the same."""

from __future__ import annotations

import mmap
import os
import shutil
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from holdfast_node import layer, tree
from holdfast_node.tree import Look, Place, Seen, changes
from holdfast_wire.errors import Unsupported

from .trees import furnish, looks, names, put, settle, taken, two_passes

# -- without root ---------------------------------------------------------------------------------


def dress(root: Path) -> None:
    """One of each that needs no privilege."""
    furnish(root)
    (root / "fifo").touch()
    (root / "fifo").unlink()
    os.mkfifo(root / "fifo", 0o640)
    (root / ("n" * 255)).write_text("long")
    Path(os.fsdecode(os.fsencode(root) + b"/\xff\xfe not text \n")).write_text("bytes")
    (root / "suid").write_text("x")
    (root / "suid").chmod(0o4755)
    (root / "dangling").symlink_to("/nowhere/at/all")
    os.utime(root / "suid", ns=(1, 1_234_567_891_987_654_321))
    deep = root / Path(*["d" * 40] * 120)  # a path longer than the kernel takes at once
    made = os.open(root, os.O_RDONLY)
    for part in deep.relative_to(root).parts:
        os.mkdir(part, dir_fd=made)
        inner = os.open(part, os.O_RDONLY, dir_fd=made)
        os.close(made)
        made = inner
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=made))
    os.close(made)


def depth(root: Path) -> int:
    here, count = os.open(root, os.O_RDONLY), 0
    while True:
        try:
            inner = os.open("d" * 40, os.O_RDONLY, dir_fd=here)
        except FileNotFoundError:
            os.stat("bottom", dir_fd=here)
            os.close(here)
            return count
        os.close(here)
        here, count = inner, count + 1


def test_a_volume_arrives_as_it_was(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir(mode=0o2770)
    dress(source)
    target.mkdir()
    (target / "left by an init container").write_text("x")
    archive, _, _ = taken(Place(source))
    report = put(archive, Place(target))
    assert report.notes == []
    assert depth(target) == depth(source) == 120
    for root in (source, target):
        subprocess.run(["rm", "-rf", root / ("d" * 40)], check=True)
        os.utime(root, ns=(5, 5))
    assert looks(target) == looks(source)
    assert "left by an init container" not in names(target)


def test_holes_stay_holes(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    with (source / "disk").open("wb") as file:
        file.write(b"head")
        file.seek(300 << 20)
        file.write(b"middle")
        file.truncate(1 << 30)
    archive, _, report = taken(Place(source))
    assert len(archive) < 1 << 20
    assert report.bytes < 1 << 20
    put(archive, Place(target))
    status = (target / "disk").stat()
    assert status.st_size == 1 << 30
    assert status.st_blocks * 512 < 1 << 20
    with (target / "disk").open("rb") as file:
        assert file.read(4) == b"head"
        file.seek(300 << 20)
        assert file.read(8) == b"middle\0\0"


def test_sockets_are_named_in_the_report(tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    source.mkdir()
    target.mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(source / "agent.sock"))
        archive, _, report = taken(Place(source))
    assert report.notes == ["'agent.sock' is a socket: left out"]
    put(archive, Place(target))
    assert names(target) == []


def test_what_is_mounted_is_left_out(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for root in (source, target):
        (root / "etc").mkdir(parents=True)
    (source / "etc/hosts").write_text("placeholder")
    (source / "etc/kept").write_text("kept")
    place = Place(source, mounts=frozenset({b"etc/hosts"}))
    put(taken(place)[0], Place(target))
    assert names(target / "etc") == ["kept"]


def test_too_deep_is_said(tmp_path: Path) -> None:
    here = tmp_path / "source"
    here.mkdir()
    (here / Path(*["d"] * (tree.DEPTH + 2))).mkdir(parents=True)
    with pytest.raises(Unsupported, match="inside each other"):
        taken(Place(here))


@pytest.mark.parametrize("seed", range(0, 60, 2))
def test_two_passes_make_what_one_makes(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    places = [Place(tmp_path / name) for name in ("source", "target", "once")]
    for place in places:
        place.root.mkdir()
    furnish(places[0].root)
    two_passes(places[0], places[1], places[2], seed)


def test_nothing_changed_sends_next_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    furnish(source)
    settle(monkeypatch)
    _, look, _ = taken(Place(source))
    archive, look, report = taken(Place(source), look)
    assert report.files == 0
    assert len(archive) < 200
    (source / "etc/passwd").write_text("changed")
    _, _, report = taken(Place(source), look)
    # Both names of the file, and the directories on the way.
    assert report.files == 4


def test_what_was_touched_just_before_is_sent_again(tmp_path: Path) -> None:
    """The kernel's clock may not tell a later write apart."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "log").write_text("one")
    _, look, _ = taken(Place(source))
    archive, _, _ = taken(Place(source), look)
    assert b"one" in archive


@pytest.mark.parametrize("still_mapped", [True, False])
def test_what_is_mapped_for_writing_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, still_mapped: bool
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "database").write_bytes(b"before" + bytes(4096))
    with (source / "database").open("r+b") as file, mmap.mmap(file.fileno(), 4096) as mapped:
        mapped[:6] = b"middle"
        settle(monkeypatch)
        place, pids = Place(source), [os.getpid()]
        look, _ = layer.capture(place, lambda _view: None, pids)
        mapped[:6] = b"after!"
        if not still_mapped:
            mapped.close()
        pieces: list[bytes] = []
        layer.difference(place, look, lambda view: pieces.append(bytes(view)), pids)
        assert b"after!" in b"".join(pieces)


def test_a_tree_that_changes_while_it_is_captured_is_right_in_the_end(tmp_path: Path) -> None:
    """Whatever is swapped between the look and the copy is left out or sent, and sent later."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    furnish(source)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("host's secret")
    pieces: list[bytes] = []
    look = tree.scan(Place(source))
    shutil.rmtree(source / "home")
    (source / "home").symlink_to(outside)
    (source / "etc/passwd").unlink()
    (source / "etc/passwd").symlink_to(outside / "secret")
    (source / "usr/lib/python/module5.py").unlink()
    (source / "usr/lib/python/module5.py").symlink_to(outside / "secret")
    (source / "usr/bin/tool").unlink()
    os.mkfifo(source / "usr/bin/tool")
    layer._send(Place(source), None, look, lambda view: pieces.append(bytes(view)))
    first = b"".join(pieces)
    assert b"host's secret" not in first
    second, _, _ = taken(Place(source), look)
    put(first, Place(target))
    put(second, Place(target))
    assert looks(target) == looks(source)


# -- deciding what changed (pure) -----------------------------------------------------------------


def file(ino: int, **fields: object) -> Seen:
    base = Seen(stat.S_IFREG | 0o644, 1, ino, 1, 0, 0, 10, 5, 5, 0)
    return base._replace(**fields)  # type: ignore[arg-type]


def folder(ino: int, **fields: object) -> Seen:
    return file(ino, **({"mode": stat.S_IFDIR | 0o755, "nlink": 2} | fields))


LATER = 10_000_000_000


def test_a_directory_that_newly_hides_the_image_is_sent_whole() -> None:
    before = Look(LATER, {b"": folder(1), b"d": folder(2), b"d/kept": file(3)})
    after = Look(LATER, {b"": folder(1), b"d": folder(2, opaque=True), b"d/kept": file(3)})
    found = changes(before, after)
    assert found.replaced == {b"d"}
    assert [path for path, _ in found.names] == [b"", b"d", b"d/kept"]


def test_a_directory_copied_up_since_keeps_what_the_image_has() -> None:
    after = Look(LATER, {b"": folder(1), b"usr": folder(2), b"usr/new": file(3)})
    found = changes(Look(LATER, {b"": folder(1)}), after)
    assert found.replaced == set()


def test_what_is_mapped_at_either_look_is_in_doubt() -> None:
    names = {b"": folder(1), b"database": file(2), b"other": file(3)}
    for first, second in ({(1, 2)}, set()), (set(), {(1, 2)}):
        found = changes(Look(LATER, names, frozenset(first)), Look(LATER, names, frozenset(second)))
        assert [path for path, _ in found.names] == [b"", b"database"]
    assert changes(Look(LATER, names), Look(LATER, names)).names == []


def test_all_names_of_a_file_or_none() -> None:
    before = Look(LATER, {b"": folder(1), b"a": file(2, nlink=2), b"d": folder(3)})
    before.names[b"d/b"] = file(2, nlink=2)
    after = Look(LATER, {b"": folder(1), b"a": file(2, nlink=2), b"e": folder(3)})
    after.names[b"e/b"] = file(2, nlink=2)
    found = changes(before, after)
    assert [path for path, _ in found.names] == [b"", b"a", b"e", b"e/b"]
    assert found.gone == {b"d"}


def test_mountinfo_is_read_with_its_escapes() -> None:
    text = (
        rb"36 35 0:50 / / rw,relatime - overlay overlay rw,lowerdir=/l\0541:/l2,"
        rb"upperdir=/var/lib/a\040b/fs,workdir=/w,userxattr"
        b"\n"
        rb"37 36 0:51 /x /mnt/a\040b rw master:1 - ext4 /dev/vda rw"
    )
    root, other = layer.parse_mountinfo(text)
    assert b"upperdir=/var/lib/a b/fs" in root.options
    assert b"lowerdir=/l,1:/l2" in root.options
    assert other.point == b"/mnt/a b"


def test_a_root_that_is_no_overlay_is_said() -> None:
    try:
        place = layer.root_of(os.getpid())
    except Unsupported as error:
        assert "not overlayfs" in str(error)  # noqa: PT017
    else:
        assert place.overlay


@pytest.mark.parametrize("size", [0, 3, 16 << 20])
def test_a_file_is_copied_with_its_holes(tmp_path: Path, size: int) -> None:
    with (tmp_path / "source").open("w+b") as source, (tmp_path / "target").open("wb") as target:
        if size > 8 << 20:
            source.write(b"head")
            source.seek(8 << 20)
        source.write(b"ab" if size else b"")
        source.truncate(size)
        layer.copy(source.fileno(), target.fileno())
    copied = tmp_path / "target"
    assert copied.read_bytes() == (tmp_path / "source").read_bytes()
    assert copied.stat().st_blocks * 512 < 1 << 20
