"""One at a time works on a session, and who was killed over it left a mark."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from holdfast_node import hibernate
from holdfast_node.failure import Reason, RestoreFailed
from holdfast_node.resting import SUSPENDING, Resting
from holdfast_node.shelf import Shelf
from holdfast_wire.errors import Busy, Ended, HoldfastError


@pytest.fixture
def session(tmp_path: Path) -> Resting:
    (tmp_path / "build").mkdir()
    return Resting(tmp_path / "build", Shelf(tmp_path / "store" / "build"))


def test_one_at_a_time(session: Resting) -> None:
    with (
        session.locked(seconds=0),
        pytest.raises(Busy, match="build is being suspended or woken already"),
        session.locked(seconds=0.05),
    ):
        pass
    with session.locked(seconds=0):
        pass


def test_the_mark_names_the_shelf_and_is_locked(session: Resting) -> None:
    mark = session.folder / SUSPENDING
    with session.marked(SUSPENDING):
        assert mark.read_text() == str(session.shelf.path)
        with mark.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    assert not mark.exists()


async def test_one_without_a_hold_has_ended(session: Resting) -> None:
    with pytest.raises(Ended):
        await hibernate.suspend(session, "hold")
    assert (await hibernate.wake(session, "/bin/false"))["already"]


async def test_what_is_left_of_a_kill_is_removed(session: Resting) -> None:
    session.shelf.prepare()
    (session.shelf.begin() / "session.json").write_text("{}")
    (session.folder / SUSPENDING).touch()
    assert await hibernate.settle(session) == {"asleep": False}
    assert not session.shelf.new.exists()
    assert not (session.folder / SUSPENDING).exists()


async def test_what_is_left_of_one_that_sleeps_is_removed(session: Resting) -> None:
    session.shelf.prepare()
    session.shelf.begin()
    session.shelf.finish()
    (session.folder / SUSPENDING).touch()
    assert await hibernate.settle(session) == {"asleep": True}
    assert session.shelf.full()
    assert not session.folder.exists()


def test_reasons_are_not_about_containers() -> None:
    reason = Reason(
        "process 302 (vi) uses /etc/x, which is another file in the new container",
        "the container's image must be the same, by digest",
    )
    said = hibernate._told(RestoreFailed(reason))
    assert said["message"] == "process 302 (vi) uses /etc/x, which is not the file that it was"
    assert said["advice"] == "put it back as it was, and wake the session again"
    assert "container" not in str(hibernate._told(HoldfastError("plain")))
