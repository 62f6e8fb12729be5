"""Nothing below a container's root is opened by plain path (attacks 29, 31, 32)."""

from __future__ import annotations

import importlib.util
import os
import pty
import socket
import subprocess
from pathlib import Path

import pytest

from holdfast_node import peers, safe_open, terminal, unpack
from holdfast_node.archive import Kind, Record
from holdfast_node.peers import SidecarLink
from holdfast_node.safe_open import UnsafePath

ROOT = Path(__file__).parents[2]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    made = tmp_path / "state"
    made.mkdir()
    (tmp_path / "secret").write_text("of the node")
    return made


def below(path: Path) -> str:
    return str(path).lstrip("/")


@pytest.mark.parametrize("kind", ["absolute link", "relative link", "fifo", "folder"])
def test_a_state_file_that_is_no_file_is_refused(state: Path, kind: str) -> None:
    """Attack 29: a link in the sidecar's state is not followed to a file of the node."""
    ring = state / "ring"
    match kind:
        case "absolute link":
            ring.symlink_to(state.parent / "secret")
        case "relative link":
            ring.symlink_to("../secret")
        case "fifo":
            os.mkfifo(ring)
        case _:
            ring.mkdir()
    with (
        safe_open.folder(os.getpid(), below(state)) as folder,
        pytest.raises(UnsafePath) as refused,
    ):
        folder.read("ring")
    assert "ring" in str(refused.value)


@pytest.mark.parametrize("name", ["../secret", "/etc/shadow", "..", ".", "", "a/b", "a\0b"])
def test_a_name_of_a_state_file_has_one_component(state: Path, name: str) -> None:
    """Attack 29: names come from the sidecar and from another agent."""
    with safe_open.folder(os.getpid(), below(state)) as folder:
        for act in (folder.read, folder.create, folder.remove):
            with pytest.raises(UnsafePath):
                act(name)
    assert (state.parent / "secret").read_text() == "of the node"


def test_a_file_is_made_in_the_place_of_a_link(state: Path) -> None:
    """Attack 29: writing does not follow a link either."""
    (state / "ring").symlink_to(state.parent / "secret")
    with safe_open.folder(os.getpid(), below(state)) as folder:
        with os.fdopen(folder.create("ring"), "w") as out:
            out.write("state")
        with os.fdopen(folder.read("ring")) as back:
            assert back.read() == "state"
    assert not (state / "ring").is_symlink()
    assert (state.parent / "secret").read_text() == "of the node"


async def test_a_folder_that_is_a_link_is_refused(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack 29: an image whose /var/lib/holdfast is a link is refused with the reason."""
    (state.parent / "link").symlink_to(state)
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(state)
        listener.bind("agent.sock")
        listener.listen()
        monkeypatch.setattr(peers, "AGENT_SOCKET", below(state.parent / "link/agent.sock"))
        with pytest.raises(UnsafePath) as refused:
            await SidecarLink(os.getpid()).ask("status")
    assert "symbolic link" in str(refused.value)


def test_a_socket_that_is_a_link_is_refused(state: Path) -> None:
    (state / "agent.sock").symlink_to("/run/other.sock")
    with pytest.raises(UnsafePath):
        safe_open.connect(os.getpid(), below(state / "agent.sock"), socket.SOCK_STREAM, 1.0)


def test_a_process_that_ended_has_no_root() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
        with pytest.raises(ProcessLookupError), safe_open.root(process.pid):
            pass


def test_input_goes_to_the_terminal_of_the_master() -> None:
    """Attack 31: no path names the terminal; the kernel gives the other side of the master."""
    master, slave = pty.openpty()
    other, victim = pty.openpty()
    try:
        os.write(master, b"typed\n")
        taken = terminal.take(master)
        assert taken.seen == b"typed\n"
        assert terminal.take(other).seen == b""
        os.set_blocking(slave, False)
        with pytest.raises(BlockingIOError):
            os.read(slave, 10)
    finally:
        for one in (master, slave, other, victim):
            os.close(one)


def test_a_fifo_that_became_a_link_changes_nothing(state: Path) -> None:
    """Attack 32: the mode is set through the descriptor of the very FIFO, never by name."""
    victim = state.parent / "secret"
    victim.chmod(0o600)
    (state / "pipe").symlink_to(victim)
    opened = os.open(state / "pipe", os.O_PATH | os.O_NOFOLLOW)
    record = Record(Kind.FIFO, b"pipe", mode=0o666, uid=os.getuid(), gid=os.getgid())
    with pytest.raises(UnsafePath):
        unpack._dress_unopened(opened, record)
    os.close(opened)
    assert victim.stat().st_mode & 0o777 == 0o600
    os.mkfifo(state / "real", 0o600)
    opened = os.open(state / "real", os.O_PATH | os.O_NOFOLLOW)
    (state / "real").rename(state / "away")
    (state / "real").symlink_to(victim)  # swapped after it was opened
    unpack._dress_unopened(opened, record)
    os.close(opened)
    assert victim.stat().st_mode & 0o777 == 0o600
    assert (state / "away").stat().st_mode & 0o777 == 0o666


def test_the_lint_rule_finds_every_spelling() -> None:
    """Attack 29: nobody goes to a container's root by another way."""
    spec = importlib.util.spec_from_file_location("check_paths", ROOT / "scripts/check_paths.py")
    assert spec is not None
    assert spec.loader is not None
    rule = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rule)
    text = 'a = f"/proc/{pid}/root"\nb = b"/proc/%d/root%s"\nc = PROC / str(p) / "root"\nd = "/x"'
    assert rule.offences(text) == [1, 2, 3]
    assert rule.main(ROOT) == 0
