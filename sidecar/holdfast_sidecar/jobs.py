"""Jobs: commands that run in the session, beside what is on its terminal.

    start ─ record written ─ asked for in the keeper's file ─ hold nudges the keeper ─ it runs
    watch ─ what the keeper tells → record, journal, news, a line in the terminal

Invariants
- A job is asked for after its record is there, and its record is found by its key: so whoever is
  killed, one key is one job, and it runs once.
- Nothing is written while the session is sealed, neither our files nor the keeper's.
- A slot is given back after its job's output is in our own file.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import time
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

from holdfast_sidecar import job_records
from holdfast_sidecar.hold import HoldError, HoldLink
from holdfast_sidecar.job_records import PREFIX, Job, State
from holdfast_sidecar.jobs_file import JobsFile, Slot, Told, specification
from holdfast_sidecar.session import Session
from holdfast_sidecar.state import Activity, Graph, observe
from holdfast_wire.errors import Busy, Ended, Internal, NotFound, Unsupported
from holdfast_wire.ids import Actor

# How often what the keeper tells is looked at, while there is something it could tell.
_LOOK_SECONDS: Final = 0.05
_LOOK_LONG_SECONDS: Final = 0.25
_YOUNG_SECONDS: Final = 30.0
# How long a signal may take to be passed on: the keeper does it at once, unless it is frozen.
_SIGNAL_SECONDS: Final = 0.01
_SIGNAL_LOOKS: Final = 200
# The keeper starts a job as soon as it runs at all.
_BEGIN_SECONDS: Final = 3.0
OUTPUT_LIMIT: Final = 512 << 10  # in base64 it still fits in a frame


class Notice(Protocol):
    def __call__(self, before: str, title: str, after: str = "") -> None:
        """A line in the terminal; see notices.py."""


class Wanted(NamedTuple):
    argv: tuple[str, ...]
    command: str | None
    cwd: str | None
    env: dict[str, str]


def shell_of(graph: Graph) -> int:
    """The process whose directory and environment a job gets: the shell at its prompt, or the one
    that started what is in the foreground. Pure."""
    by_pid = {p.pid: p for p in graph.processes}
    leader, command = by_pid.get(graph.foreground_pgid), by_pid.get(graph.command_pid)
    if leader is None or command is None or leader.pid == command.pid:
        return graph.command_pid
    seen = observe(graph)
    parent = by_pid.get(leader.ppid)
    shell = leader if seen.activity is Activity.PROMPT and seen.pid == leader.pid else parent
    if shell is None or shell.sid != leader.sid or shell.uid != command.uid:
        return graph.command_pid
    return shell.pid


class Jobs:
    def __init__(
        self, session: Session, hold: HoldLink, descriptor: int | None, notice: Notice
    ) -> None:
        """`descriptor`: the keeper's file; None if it has none."""
        self._session, self._hold, self._notice = session, hold, notice
        self._folder = session.folder
        self._file = None if descriptor is None else JobsFile(descriptor)
        self._jobs = {job.id: _own(job, session) for job in job_records.load(self._folder)}
        self._slots: dict[str, int] = {}
        self._one = asyncio.Lock()
        self._active, self._changed = asyncio.Event(), asyncio.Event()
        self._found = False

    @classmethod
    async def open(cls, session: Session, hold: HoldLink, notice: Notice) -> Jobs:
        try:
            descriptor = await hold.jobs()
        except HoldError as error:
            if error.code not in ("no_jobs", "bad_request"):  # an older hold knows no such request
                raise
            descriptor = None
        return cls(session, hold, descriptor, notice)

    def _find(self) -> None:
        """Goes on where an earlier sidecar, here or elsewhere, was. Not while it is sealed."""
        if self._found:
            return
        self._found = True
        slots = self._file.slots() if self._file is not None else []
        by_id = {slot.id: index for index, slot in enumerate(slots) if slot.id}
        for job in list(self._jobs.values()):
            index = by_id.pop(job.id, None)
            if job.complete and index is not None and self._file is not None:
                self._file.want(index, False)  # it was saved, and the slot not yet given back
            elif not job.complete and index is not None and self._file is not None:
                self._slots[job.id] = index
                self._file.want(index, True)  # a kill may have come before this was said
            elif not job.complete:
                self._keep(replace(job, state=_over(job), complete=True))
        for index in by_id.values():
            if self._file is not None and slots[index].state is Told.DONE:
                self._file.want(index, False)

    # -- asking -----------------------------------------------------------------------------------

    async def start(
        self, actor: Actor, modality: str, key: bytes, wanted: Wanted
    ) -> tuple[Job, bool]:
        """The job, and whether it was there already, under this key."""
        async with self._one:
            if (known := self._seen(actor, key)) is not None:
                return known, True
            self._check()
            like = shell_of(await self._hold.graph())
            self._check()  # from here on nothing is waited for until it is asked for
            self._find()
            job = self._ask(actor, modality, key, wanted, self._free(), like)
            await self.nudge()
            return job, False

    def _seen(self, actor: Actor, key: bytes) -> Job | None:
        text = key.decode("latin-1")
        if not text:
            return None
        return next((j for j in self._jobs.values() if (j.by, j.key) == (actor, text)), None)

    def _check(self) -> None:
        if self._session.exit is not None:
            raise Ended(f"{self._session.spec.name} has ended")
        if self._file is None:
            raise Unsupported(
                "this session was begun by an older hold, which runs no jobs",
                "use exec, or start the session anew",
            )
        self._session.parking.check()

    def _free(self) -> int:
        slots = self._files().slots()
        for index, slot in enumerate(slots):
            if slot.state is Told.FREE and not slot.wanted and index not in self._slots.values():
                return index
        raise Busy(f"{len(slots)} jobs are running already", "wait for one, or end one")

    def _files(self) -> JobsFile:
        if self._file is None:
            raise Internal("there is no file of jobs")
        return self._file

    def _ask(
        self, actor: Actor, modality: str, key: bytes, wanted: Wanted, index: int, like: int
    ) -> Job:
        file = self._files()
        job = Job(
            id=os.urandom(8).hex(),
            actor=actor.name,
            uid=actor.uid,
            modality=modality,
            key=key.decode("latin-1"),
            argv=wanted.argv,
            command=wanted.command,
            cwd=wanted.cwd,
            created=round(time.time(), 3),
        )
        settings = {**wanted.env, "HOLDFAST_JOB": job.id}
        spec = specification(like, wanted.argv, wanted.cwd or "", settings, file.spec_bytes)
        file.prepare(index, job.id, spec)
        job_records.save(self._folder, job)
        self._slots[job.id] = index
        self._jobs[job.id] = job
        file.want(index, True)
        said = {"argv": list(job.argv)} if job.command is None else {"command": job.command}
        self._journal("job", job, **said)
        self._notice(f"{actor} runs ({modality}): ", job.title)
        self._tell(job)
        self._drop()
        self._active.set()
        return job

    async def nudge(self) -> None:
        with contextlib.suppress(HoldError):  # gone: then there is nobody to nudge
            await self._hold.nudge()

    async def _begun(self, identity: str) -> None:
        """One that was asked for a moment ago is waited for."""
        for _ in range(100):
            if self.get(identity).state is not State.STARTING:
                return
            await asyncio.sleep(_BEGIN_SECONDS / 100)

    async def signal(self, asker: Actor, identity: str, number: int) -> Job:
        await self._begun(identity)
        async with self._one:
            job = self.get(identity)
            self._check()
            index = self._slots.get(job.id)
            if index is None or job.state is not State.RUNNING:
                raise Busy(f"job {job.id} is not running but {job.state}", "look at it again")
            file = self._files()
            file.signal(index, number)
            self._journal("job_signal", job, by=asker.name, by_uid=asker.uid, signal=number)
            await self.nudge()
            for _ in range(_SIGNAL_LOOKS):  # the next one must not take its place
                if (slot := file.slot(index)).signals == slot.signalled:
                    break
                await asyncio.sleep(_SIGNAL_SECONDS)
            return job

    # -- looking ----------------------------------------------------------------------------------

    def list(self) -> list[Job]:
        """Oldest first."""
        return list(self._jobs.values())

    def get(self, identity: str) -> Job:
        try:
            return self._jobs[identity]
        except KeyError:
            raise NotFound(
                f"there is no job {identity[:40]!r}",
                f"the last {job_records.KEPT} are kept; list them",
            ) from None

    async def output(self, identity: str, after: int, limit: int, seconds: float) -> dict[str, Any]:
        """From `after` on, at once if there is any; else when some comes, or after `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._nothing_yet(identity, after):
                    changed = self._changed
                    await changed.wait()
        job = self.get(identity)
        start, data = self._read(job, after, limit)
        job = self.get(identity)
        return {
            "job": job.to_json(),
            "start": start,
            "end": start + len(data),
            "lost": max(0, start - after),
            "base64": base64.b64encode(data).decode(),
            "complete": job.complete and start + len(data) >= job.bytes,
        }

    def _nothing_yet(self, identity: str, after: int) -> bool:
        job = self.get(identity)
        return not job.complete and job.bytes <= after

    def _read(self, job: Job, after: int, limit: int) -> tuple[int, bytes]:
        index = self._slots.get(job.id)
        if index is None:
            return job_records.output(self._folder, job, after, limit)
        return self._files().read(index, after, limit)

    # -- watching ---------------------------------------------------------------------------------

    async def watch(self) -> None:
        while True:
            if self._found and not self._slots:
                self._active.clear()
                await self._active.wait()
            if not self._session.sealed:
                self._find()
                if self._look():
                    await self.nudge()
                self._changed.set()
                self._changed = asyncio.Event()
            now = time.time()
            young = any(now - self._jobs[j].created < _YOUNG_SECONDS for j in self._slots)
            await asyncio.sleep(_LOOK_SECONDS if young else _LOOK_LONG_SECONDS)

    def _look(self) -> bool:
        """Takes note of what the keeper tells. True if it has to be nudged."""
        again = False
        for identity, index in list(self._slots.items()):
            slot, job = self._files().slot(index), self._jobs[identity]
            if slot.state is Told.FREE:  # not begun yet
                again = True
                continue
            now = _told(job, slot, self._files().ring_bytes)
            if now.bytes > job.bytes:
                self._session.last_active = time.time()
            self._jobs[identity] = now
            if now.state is not job.state:
                self._news(now)
            if slot.state is Told.DONE:
                again = True
                self._take(now, index)
        return again

    def _news(self, job: Job) -> None:
        self._tell(job)
        if job.state is State.ENDED:
            self._journal("job_ended", job, code=job.code, signal=job.signal, error=job.error)
            self._notice(f"{job.by}: ", job.title, f" {job.how()}")
            self._keep(job)  # told once, though its output may go on

    def _take(self, job: Job, index: int) -> None:
        """Its output is ours from here on, and its slot another's."""
        start, data = self._files().read(index, job.oldest, self._files().ring_bytes)
        done = replace(job, complete=True, oldest=start, bytes=start + len(data))
        self._keep(done, data)
        del self._slots[job.id]
        self._files().want(index, False)
        self._tell(done)
        self._drop()

    def _keep(self, job: Job, output: bytes = b"") -> None:
        self._jobs[job.id] = job
        try:
            job_records.save(self._folder, job, output)
        except OSError:  # a full disk: that it ended is known as long as this sidecar lives
            self._jobs[job.id] = replace(job, oldest=job.bytes)

    def _drop(self) -> None:
        gone, emptied = job_records.to_drop(self.list())
        for job in gone:
            del self._jobs[job.id]
            (self._folder / (PREFIX + job.id)).unlink(missing_ok=True)
        for job in emptied:
            self._keep(job)

    def _journal(self, kind: str, job: Job, **fields: Any) -> None:
        facts = {"job": job.id, **job.by.to_json(), "modality": job.modality, **fields}
        self._session.journal.add(kind, **facts)

    def _tell(self, job: Job) -> None:
        self._session.tell({"kind": "job", "job": job.to_json()})

    # -- the end ----------------------------------------------------------------------------------

    def ended(self) -> None:
        """The session has; of what the keeper could not say, only that it is gone is known."""
        if self._session.sealed:
            return
        self._find()
        self._look()
        for identity, index in list(self._slots.items()):
            job = self._jobs[identity]
            job = replace(job, state=_over(job), ended=job.ended or round(time.time(), 3))
            self._take(job, index)
        self._changed.set()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _own(job: Job, session: Session) -> Job:
    """A key from before a fork is that of the session it was."""
    return replace(job, key="") if job.created < session.forked_at else job


def _over(job: Job) -> State:
    return job.state if job.state is State.ENDED else State.GONE


def _told(job: Job, slot: Slot, ring: int) -> Job:
    over = slot.state in (Told.OVER, Told.DONE)
    failed = slot.error != 0
    status = slot.status & 0xFFFF
    ended = over and not failed
    return replace(
        job,
        state=State.ENDED if over else State.RUNNING,
        pid=slot.pid or None,
        started=round(slot.started, 3),
        ended=round(slot.ended, 3) if over else None,
        code=os.WEXITSTATUS(status) if ended and os.WIFEXITED(status) else None,
        signal=os.WTERMSIG(status) if ended and os.WIFSIGNALED(status) else None,
        error=os.strerror(slot.error) if failed else None,
        bytes=slot.head,
        oldest=max(0, slot.head - ring),
    )
