"""Layers between real overlays, and real processes that have them for a root."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast_node import layer
from holdfast_node.archive import REPLACE, Kind, Record
from holdfast_node.tree import Place
from holdfast_wire.errors import Unsupported

from .trees import (
    archive_of,
    furnish,
    looks,
    mine,
    names,
    needs_root,
    overlay,
    put,
    seen_at,
    settle,
    taken,
    two_passes,
)

TRUSTED = b"trusted.overlay."


class Overlays:
    """As many containers of one image as a test asks for."""

    def __init__(self, folder: Path, stack: ExitStack, options: str, prefix: bytes) -> None:
        self._folder, self._stack, self._options, self._prefix = folder, stack, options, prefix
        self.lower = folder / "lower"
        self.lower.mkdir()
        furnish(self.lower)
        self._count = 0

    def __call__(self) -> Place:
        self._count += 1
        folder = self._folder / f"container{self._count}"
        upper, merged = self._stack.enter_context(overlay(folder, self.lower, self._options))
        return Place(upper, b"", merged, self._prefix)


@contextmanager
def overlays(folder: Path, options: str = "", prefix: bytes = TRUSTED) -> Iterator[Overlays]:
    with ExitStack() as stack:
        yield Overlays(folder, stack, options, prefix)


@needs_root
@pytest.mark.parametrize(
    ("options", "prefix"),
    [
        ("", TRUSTED),
        (",userxattr", b"user.overlay."),
        (",redirect_dir=on,metacopy=on", TRUSTED),
    ],
)
@pytest.mark.parametrize("seed", range(0, 24, 2))
def test_overlays_in_two_passes(
    tmp_path: Path, options: str, prefix: bytes, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    with overlays(tmp_path, options, prefix) as container:
        links = "redirect_dir=on" not in options
        two_passes(container(), container(), container(), seed, links=links)


@needs_root
def test_an_overlay_with_one_of_each(tmp_path: Path) -> None:
    with overlays(tmp_path) as container:
        source, target = container(), container()
        root = seen_at(source)
        (root / "usr/lib/python/module3.py").unlink()
        shutil.rmtree(root / "home/user/src")
        (root / "home/user/src").mkdir()
        (root / "home/user/src/new").write_text("new")
        os.chown(root / "etc/passwd", 1000, 2000)
        os.setxattr(root / "usr/bin", "trusted.mine", b"1")
        tool = root / "usr/bin/tool"
        tool.chmod(0o4755)
        capability = bytes.fromhex("0100000202000000000000000000000000000000")
        os.setxattr(tool, "security.capability", capability)
        os.mknod(root / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        archive, _, report = taken(source)
        assert report.notes == ["'device' is a device node: left out"]
        put(archive, target)
        (root / "device").unlink()
        os.utime(root, ns=(9, 9))
        os.utime(seen_at(target), ns=(9, 9))
        assert looks(seen_at(target)) == looks(root)
        assert os.getxattr(seen_at(target) / "usr/bin/tool", "security.capability") == capability
        assert not (seen_at(target) / "home/user/src/file1").exists()


@needs_root
def test_a_renamed_directory_and_a_bare_file_are_read_whole(tmp_path: Path) -> None:
    with overlays(tmp_path, ",redirect_dir=on,metacopy=on") as container:
        source, target = container(), container()
        (seen_at(source) / "home/user/src").rename(seen_at(source) / "moved")
        (seen_at(source) / "usr/bin/tool").chmod(0o700)
        assert "trusted.overlay.redirect" in os.listxattr(source.root / "moved")
        assert "trusted.overlay.metacopy" in os.listxattr(source.root / "usr/bin/tool")
        put(taken(source)[0], target)
        assert looks(seen_at(target)) == looks(seen_at(source))
        assert (seen_at(target) / "moved/file5").read_bytes() == bytes([5]) * 1000


@needs_root
def test_names_that_change_unseen_are_refused(tmp_path: Path) -> None:
    with overlays(tmp_path, ",index=on") as container:
        source = container()
        (seen_at(source) / "usr/bin/tool").write_text("changed")
        taken(source)
        (seen_at(source) / "etc/passwd").write_text("changed")
        assert (seen_at(source) / "etc/passwd-").read_text() == "changed"
        with pytest.raises(Unsupported, match="other names in the image"):
            taken(source)


@needs_root
def test_deletions_told_by_attribute(tmp_path: Path) -> None:
    upper, target = tmp_path / "upper", tmp_path / "target"
    (upper / "d").mkdir(parents=True)
    (upper / "d/gone").touch()
    (upper / "d/empty").touch()
    os.setxattr(upper / "d", "trusted.overlay.opaque", b"x")
    os.setxattr(upper / "d/gone", "trusted.overlay.whiteout", b"")
    (target / "d").mkdir(parents=True)
    for name in ("gone", "stays"):
        (target / "d" / name).write_text("from the image")
    put(taken(Place(upper, b"", target, TRUSTED))[0], Place(target))
    assert names(target / "d") == ["empty", "stays"]
    assert os.listxattr(target / "d") == []


CLONE_NEWNS, MNT_DETACH, PIVOT_ROOT = 0x20000, 2, {"x86_64": 155, "aarch64": 41}


def _become_container(merged: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result != 0:
            os._exit(ctypes.get_errno() or 1)

    subprocess.run(["mount", "--bind", merged, merged], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "volume", merged / "home/user"], check=True)
    (merged / "etc/hosts").touch()
    subprocess.run(["mount", "--bind", "/proc/version", merged / "etc/hosts"], check=True)
    (merged / "home/user/in the volume").write_text("volume")
    (merged / "old").mkdir()
    check(libc.syscall(PIVOT_ROOT[os.uname().machine], bytes(merged), bytes(merged / "old")))
    os.chdir("/")
    check(libc.umount2(b"/old", MNT_DETACH))
    Path("/old").rmdir()


@contextmanager
def container_process(merged: Path) -> Iterator[int]:
    """A process whose root is that overlay, with things mounted in it, as a runtime does it."""
    libc = ctypes.CDLL(None, use_errno=True)
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if libc.unshare(CLONE_NEWNS) == 0:
                subprocess.run(["mount", "--make-rprivate", "/"], check=True)
                _become_container(merged)
                os.write(tell, b"x")
                signal.pause()
        finally:
            os._exit(1)
    os.close(tell)
    try:
        assert os.read(ready, 1) == b"x"
        yield pid
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@needs_root
def test_a_containers_layer_is_found_and_its_mounts_are_left_alone(tmp_path: Path) -> None:
    with overlays(tmp_path) as container, ExitStack() as stack:
        first, second = container(), container()
        pids = [stack.enter_context(container_process(seen_at(place))) for place in (first, second)]
        source, target = (layer.root_of(pid, Path("/")) for pid in pids)
        assert source.root == first.root
        assert source.overlay == TRUSTED
        assert {b"home/user", b"etc/hosts", b"proc"} <= source.mounts
        inside = Path(f"/proc/{pids[0]}/root")
        (inside / "etc/passwd").write_text("changed")
        (inside / "home/user/in the volume").write_text("of the source")
        shutil.rmtree(inside / "usr/lib")
        archive, _, _ = taken(source)
        report = put(archive, target)
        other = Path(f"/proc/{pids[1]}/root")
        assert report.notes == []
        assert (other / "etc/passwd").read_text() == "changed"
        assert not (other / "usr/lib").exists()
        assert (other / "home/user/in the volume").read_text() == "volume"
        # And the volume by itself.
        volumes = [layer.volume_of(pid, "/home/user") for pid in pids]
        put(taken(volumes[0])[0], volumes[1])
        assert (other / "home/user/in the volume").read_text() == "of the source"
        # A lying archive gets at no mount.
        hosts, version = (other / "etc/hosts").read_text(), Path("/proc/version").read_text()
        lies = archive_of(
            (mine(Kind.DIRECTORY, b"etc", REPLACE), None),
            (mine(Kind.FILE, b"hosts"), b"evil"),
            (Record(Kind.UP), None),
            (mine(Kind.DIRECTORY, b"home"), None),
            (mine(Kind.DIRECTORY, b"user", REPLACE), None),
            (mine(Kind.FILE, b"evil"), b"evil"),
            (Record(Kind.UP), None),
            (Record(Kind.UP), None),
            (mine(Kind.GONE, b"home"), None),
        )
        report = put(lies, target)
        assert len(report.notes) >= 3
        assert (other / "etc/hosts").read_text() == hosts == version
        assert names(other / "home/user") == ["in the volume"]


@needs_root
def test_a_volume_behind_a_link_is_not_entered(tmp_path: Path) -> None:
    with overlays(tmp_path, ",redirect_dir=on") as container:
        place = container()
        with container_process(seen_at(place)) as pid:
            root = Path(f"/proc/{pid}/root")
            (root / "home").rename(root / "elsewhere")
            (root / "home").symlink_to("/root")
            with pytest.raises(OSError, match=r"symbolic|loop"):
                taken(layer.volume_of(pid, "/home/user"))
