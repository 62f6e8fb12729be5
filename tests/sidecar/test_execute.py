"""How the end of a command is found at an unlucky moment, and where its text lies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast_sidecar import execute
from holdfast_sidecar.exec_folder import ExecFolder
from holdfast_sidecar.state import Activity, Observation


class Ring:
    oldest = 0

    def __init__(self) -> None:
        self.data = b""

    @property
    def head(self) -> int:
        return len(self.data)

    def slices(self, start: int, end: int) -> list[bytes]:
        return [self.data[start:end]]


async def test_a_mark_that_comes_while_we_look_counts() -> None:
    ring = Ring()
    looks = 0

    async def observe() -> Observation:
        """The shell prints the mark and its prompt just now."""
        nonlocal looks
        looks += 1
        ring.data = b"\x1b]7770;start;j\x07hello\x1b]7770;end;j;3\x07$ "
        return Observation(Activity.PROMPT, 1, "bash", "")

    async def silence() -> None:
        await asyncio.Event().wait()

    session: Any = SimpleNamespace(
        ring=ring, exit=None, parked=False, size=(80, 24), more_output=silence
    )
    result = await execute.Commands(session, observe)._follow("j", 0)
    assert looks == 1
    assert (result["exit_code"], result["output"]) == (3, "hello")


@pytest.mark.parametrize(("readable", "modes"), [(True, (0o711, 0o644)), (False, (0o700, 0o600))])
def test_a_script_is_there_as_long_as_it_is_needed(
    tmp_path: Path, readable: bool, modes: tuple[int, int]
) -> None:
    folder = ExecFolder(tmp_path / "exec", readable_by_all=readable)
    with folder.script("job", "echo ü\n") as path:
        assert path.read_text() == "echo ü\n"
        assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == modes
    assert not path.exists()


def test_a_script_is_written_through_no_link_and_over_no_file(tmp_path: Path) -> None:
    """Attack 36: a link in the place of a script had the journal overwritten."""
    folder = ExecFolder(tmp_path / "exec", readable_by_all=True)
    journal = tmp_path / "journal"
    journal.write_text("who did what")
    (tmp_path / "exec").mkdir()
    (tmp_path / "exec" / "job").symlink_to(journal)
    with pytest.raises(FileExistsError), folder.script("job", "rm -rf /"):
        pass
    (tmp_path / "exec" / "job").unlink()
    (tmp_path / "exec" / "job").write_text("another's")
    with pytest.raises(FileExistsError), folder.script("job", "rm -rf /"):
        pass
    folder.clear()
    assert list((tmp_path / "exec").iterdir()) == []
    (tmp_path / "exec").rmdir()
    (tmp_path / "exec").symlink_to(tmp_path)
    with pytest.raises(NotADirectoryError), folder.script("journal", "rm -rf /"):
        pass
    assert journal.read_text() == "who did what"
