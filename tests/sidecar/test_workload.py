"""What the workload can read of itself."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from holdfast_sidecar import workload


def test_the_epoch_replaces_what_a_killed_sidecar_left(tmp_path: Path) -> None:
    (tmp_path / "epoch.new").write_text("longer than the epoch")
    (tmp_path / "epoch.new").chmod(0o444)
    inode = (tmp_path / "epoch.new").stat().st_ino
    keep = (tmp_path / "epoch.new").open()
    with keep:
        workload.write_epoch(tmp_path, 12)
        assert (tmp_path / "epoch").stat().st_ino != inode  # it could not be written to
    assert (tmp_path / "epoch").read_text().split() == ["12"]


def test_a_fork_s_file_can_be_read_by_all_and_written_by_none(tmp_path: Path) -> None:
    workload.write_fork(tmp_path, {"session": "build", "epoch": 3})
    workload.write_fork(tmp_path, {"session": "build", "epoch": 4})
    assert json.loads((tmp_path / "fork").read_text()) == {"session": "build", "epoch": 4}
    assert stat.S_IMODE((tmp_path / "fork").stat().st_mode) == 0o444
    assert [path.name for path in tmp_path.iterdir()] == ["fork"]


def test_the_epoch_s_file_is_as_long_as_any_other_s(tmp_path: Path) -> None:
    """A program that was reading it when it was dumped finds it again."""
    sizes = set()
    for epoch in (9, 10, 123456789):
        workload.write_epoch(tmp_path, epoch)
        sizes.add((tmp_path / "epoch").stat().st_size)
        assert int((tmp_path / "epoch").read_text()) == epoch
    assert len(sizes) == 1
    inode = (tmp_path / "epoch").stat().st_ino
    workload.write_epoch(tmp_path, 123456789)
    assert (tmp_path / "epoch").stat().st_ino == inode, "what is right is left as it is"
