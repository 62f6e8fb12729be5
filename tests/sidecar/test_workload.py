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
    assert (tmp_path / "epoch").read_text() == "12\n"


def test_a_fork_s_file_can_be_read_by_all_and_written_by_none(tmp_path: Path) -> None:
    workload.write_fork(tmp_path, {"session": "build", "epoch": 3})
    workload.write_fork(tmp_path, {"session": "build", "epoch": 4})
    assert json.loads((tmp_path / "fork").read_text()) == {"session": "build", "epoch": 4}
    assert stat.S_IMODE((tmp_path / "fork").stat().st_mode) == 0o444
    assert [path.name for path in tmp_path.iterdir()] == ["fork"]
