"""What is known of each job, and the files that keep it: `job-ID` in the session's folder, a line
of JSON and after it, once it is done, its output.

Written before the job is asked for and when it has ended, each time whole: a kill leaves the old
one or the new one. The files go along where the session goes (`sealed.py`).
"""

from __future__ import annotations

import json
import os
import shlex
import signal
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from holdfast_wire.ids import Actor

PREFIX: Final = "job-"
KEPT: Final = 64  # jobs
KEPT_BYTES: Final = 32 << 20  # of the output of those that are done, together


class State(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"
    GONE = "gone"  # with the session, or what it was restored from does not have it


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    actor: str
    """The name, whole."""
    modality: str
    key: str
    """As latin-1: any bytes."""
    argv: tuple[str, ...]
    command: str | None
    """What `/bin/sh -c` was given; None: there was no shell."""
    cwd: str | None
    created: float
    state: State = State.STARTING
    pid: int | None = None
    started: float | None = None
    ended: float | None = None
    code: int | None = None
    signal: int | None = None
    error: str | None = None
    """Why it could not be started."""
    bytes: int = 0
    oldest: int = 0
    """The first byte of output that is still there."""
    uid: str = ""
    complete: bool = False
    """Nobody can print any more."""

    @property
    def by(self) -> Actor:
        return Actor(self.actor, self.uid)

    @property
    def title(self) -> str:
        """One line for people."""
        text = self.command if self.command is not None else shlex.join(self.argv)
        lines = text.strip().splitlines() or [""]
        clean = "".join(c if c.isprintable() else " " for c in lines[0])
        return clean + (" …" if len(lines) > 1 else "")

    @property
    def seconds(self) -> float:
        return max(0.0, (self.ended or 0.0) - (self.started or self.created))

    def how(self) -> str:
        if self.state is State.GONE:
            return "ended with the session"
        if self.error is not None:
            return f"could not be started: {self.error}"
        if self.signal is not None:
            return f"was ended by {_signal_name(self.signal)} in {self.seconds:.1f} s"
        return f"ended with {self.code} in {self.seconds:.1f} s"

    def to_json(self) -> dict[str, Any]:
        """For clients."""
        over = self.state in (State.ENDED, State.GONE)
        return {
            "id": self.id,
            "state": self.state.value,
            **self.by.shown(),
            "modality": self.modality,
            "key": self.key or None,
            "command": self.command,
            "argv": list(self.argv) if self.command is None else None,
            "title": self.title,
            "cwd": self.cwd,
            "pid": self.pid,
            "created": self.created,
            "started": self.started,
            "ended": self.ended,
            "exit": {"code": self.code, "signal": self.signal} if over else None,
            "error": self.error,
            "output": {"bytes": self.bytes, "oldest": self.oldest, "complete": self.complete},
        }


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.glob(PREFIX + "*") if p.suffix != ".new")


def save(folder: Path, job: Job, output: bytes = b"") -> None:
    new = folder / f"{PREFIX}{job.id}.new"
    new.write_bytes(json.dumps(asdict(job)).encode() + b"\n" + output)
    new.rename(folder / (PREFIX + job.id))


def load(folder: Path) -> list[Job]:
    """Oldest first. One that cannot be read is left out: its job may run, but nobody's it is."""
    for left in folder.glob(f"{PREFIX}*.new"):  # by a kill
        left.unlink()
    found = []
    for name in files(folder):
        with (folder / name).open("rb") as file:
            try:
                body = json.loads(file.readline())
                body["argv"], body["state"] = tuple(body["argv"]), State(body["state"])
                found.append(Job(**body))
            except (ValueError, TypeError, KeyError):
                continue
    return sorted(found, key=lambda job: job.created)


def output(folder: Path, job: Job, after: int, limit: int) -> tuple[int, bytes]:
    """Of one that is complete."""
    start = min(max(after, job.oldest), job.bytes)
    try:
        with (folder / (PREFIX + job.id)).open("rb") as file:
            begin = len(file.readline())
            return start, os.pread(file.fileno(), limit, begin + start - job.oldest)
    except FileNotFoundError:
        return job.bytes, b""


def to_drop(jobs: list[Job]) -> tuple[list[Job], list[Job]]:
    """Those whose record is one too many, and those whose output is. Oldest first in `jobs`; one
    that is not complete is never among them. Pure."""
    spare = len(jobs) - KEPT
    gone = [job for job in jobs if job.complete][: max(0, spare)]
    emptied, size = [], 0
    for job in reversed([job for job in jobs if job.complete and job not in gone]):
        size += job.bytes - job.oldest
        if size > KEPT_BYTES and job.bytes > job.oldest:
            emptied.append(replace(job, oldest=job.bytes))
    return gone, emptied
