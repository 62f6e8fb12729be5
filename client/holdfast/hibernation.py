"""`suspend` and `wake` on this machine, without a cluster; `attach` wakes too.

The work is done by a process of its own (`holdfast_node.hibernate`), which goes on if this one is
killed. Whether a session sleeps is whether its shelf is there, and nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import IO, Any, Final

from holdfast import folders
from holdfast.arguments import Given
from holdfast.commands import no_more, write
from holdfast.folders import Life
from holdfast.paths import SessionFolder, state_dir
from holdfast.places import Machine
from holdfast.render import to_stderr
from holdfast_wire.errors import Busy, HoldfastError, Internal, Unsupported, from_json

_WORKER: Final = "holdfast_node.hibernate"
_MEBIBYTE: Final = 1 << 20
_ROOT: Final = (
    "only root's sessions can be suspended: CRIU needs root, and so does the PID namespace in which"
    " its processes have their numbers again"
)


def suspend(given: Given) -> int:
    folder = _chosen(given)
    match folders.life(folder):
        case Life.SUSPENDED:
            write(f"{folder.name} is suspended already\n")
            return 0
        case Life.LIVE:
            pass
        case _:
            raise folders.ended_error(folder)
    require_root(folder)
    done = _work(folder, "suspend", given.options.no_wait)
    if done is None:
        write(f"{folder.name} is to be suspended\n")
        return 0
    size = f" ({int(done.get('bytes', 0)) // _MEBIBYTE} MiB in {folder.shelf})"
    again = Machine().advise("attach", folder.name)
    write(f"{folder.name} is suspended{'' if done.get('already') else size}; go on with: {again}\n")
    return 0


def wake(given: Given) -> int:
    folder = _chosen(given)
    if folders.life(folder) is Life.LIVE:
        write(f"{folder.name} is not suspended: it runs\n")
        return 0
    if folders.life(folder) is not Life.SUSPENDED:
        raise folders.ended_error(folder)
    if given.options.no_wait:
        require_root(folder)
        _work(folder, "wake", True)
        write(f"{folder.name} is to wake\n")
        return 0
    woken(folder)
    from holdfast.local import ensure

    ensure(folder.name, to_stderr)
    write(f"{folder.name} goes on\n")
    return 0


def woken(folder: SessionFolder) -> None:
    """Returns when it runs again; also of one that somebody else is waking."""
    require_root(folder)
    began = time.monotonic()
    to_stderr(f"waking {folder.name} …")
    done = _work(folder, "wake", False) or {}
    if cut := done.get("cut"):
        to_stderr(f"{cut} connections to the outside were cut; their programs read an error")
    to_stderr(f"{folder.name} goes on, after {time.monotonic() - began:.1f} s")


def settle(folder: SessionFolder) -> None:
    """Somebody who suspended or woke it was killed over that; nothing if nobody was."""
    if any(_left(folder, mark) for mark in ("suspending", "waking")):
        _work(folder, "settle", False)


def _left(folder: SessionFolder, mark: str) -> bool:
    """Who works on it has a lock on its mark."""
    try:
        descriptor = os.open(folder.path / mark, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def forget(folder: SessionFolder) -> None:
    """It is given up, asleep as it is."""
    shelf = folder.shelf
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(shelf.with_name(f"{shelf.name}.lock").open("a"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(
                f"session {folder.name} is being suspended or woken", "wait until that is done"
            ) from None
        old = shelf.with_name(f"{shelf.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        shelf.rename(old)  # in one step: half of it must not be woken
        shutil.rmtree(old)
        folders.remove(folder)


def require_root(folder: SessionFolder) -> None:
    if os.geteuid() != 0:
        raise Unsupported(
            _ROOT,
            f"session {folder.name} is as it was; start sessions that are to sleep as root:"
            " sudo holdfast run",
        )


def _chosen(given: Given) -> SessionFolder:
    no_more(given.words[1:], given.after)
    return folders.find(state_dir(), Machine().pick(given.words))


def _work(folder: SessionFolder, act: str, no_wait: bool) -> dict[str, Any] | None:
    """What became of it; None if nobody waits."""
    from holdfast.local import find_hold
    from holdfast.supervisor import Supervisor

    if act != "settle":
        Supervisor(state_dir()).ensure()  # it brings sidecars back, and settles after a kill
    command = [sys.executable, "-P", "-m", _WORKER, act, "--folder", str(folder.path)]
    command += ["--shelf", str(folder.shelf), "--hold", find_hold()]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if no_wait else subprocess.PIPE,
        stderr=subprocess.DEVNULL if no_wait else None,
        start_new_session=True,
        cwd="/",
    )
    if process.stdout is None:
        return None
    with process.stdout:
        said = _heard(process.stdout, lambda doing: to_stderr(f"{folder.name}: {doing} …"))
    code = process.wait()
    if isinstance(said.get("error"), dict):
        raise _explained(folder, act, from_json(said["error"]))
    if not isinstance(said.get("done"), dict):
        raise Internal(
            f"to {act} {folder.name} was broken off (exit code {code})",
            "nothing of the session is lost: look with 'holdfast ls', and try again",
        )
    done: dict[str, Any] = said["done"]
    return done


def _heard(lines: IO[bytes], doing: Callable[[str], None]) -> dict[str, Any]:
    """The last word; what comes before it is passed on."""
    said: dict[str, Any] = {}
    for line in lines:
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if "doing" in said:
                doing(str(said["doing"]))
    return said


def _explained(folder: SessionFolder, act: str, error: HoldfastError) -> HoldfastError:
    now = "it runs on" if act == "suspend" else "it sleeps on, and nothing of it is lost"
    message = f"session {folder.name} cannot {'be suspended' if act == 'suspend' else act}"
    return type(error)(f"{message}: {error.message}; {now}", error.advice)
