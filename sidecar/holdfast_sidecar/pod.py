"""`holdfast-sidecar`: the sidecar in a Kubernetes pod.

    hold waits in the session's container  →  Lease taken  →  hold starts the command  →  serve
    → the command ends  →  how it ended goes into the Lease, which is given back  →  hold goes

Never the command without the Lease, and never the Lease given back while anything runs.

With HOLDFAST_RESTORE the session comes from another pod, or from where it was stored
(`arrival.py`); from any pod it may go to another, or be stored (`departure.py`). The agent that
carries it asks at agent.sock (`agent.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final, NoReturn

from holdfast_sidecar import agent, probe, sealed, spec, words, workload
from holdfast_sidecar.agent import AgentError
from holdfast_sidecar.arrival import Arrival, settle_in
from holdfast_sidecar.came import Came
from holdfast_sidecar.departure import Departure
from holdfast_sidecar.exec_folder import ExecFolder
from holdfast_sidecar.fence import Fence, Superseded
from holdfast_sidecar.hold import EventKind, HoldError, HoldEvent, HoldLink, HoldStatus
from holdfast_sidecar.kube import Api, ApiError
from holdfast_sidecar.leaving import Leaving
from holdfast_sidecar.nonce import Nonce
from holdfast_sidecar.runner import LastWords, Sidecar, log
from holdfast_sidecar.session import Exit
from holdfast_sidecar.settings import Settings
from holdfast_sidecar.survey import Survey
from holdfast_sidecar.uplink import Uplinks
from holdfast_wire.errors import HoldfastError
from holdfast_wire.lease import Holder, Standing, Taker

# Connections that a move cut: as many as people read. The journal has them all.
_CUT_TOLD: Final = 16
_LOOK_FOR_HOLD_SECONDS: Final = 0.02
# hold answers at once unless it is busy freezing, which takes 3 s at most.
_HOLD_SECONDS: Final = 10.0
# The session can take hold's socket away and listen there itself. It gains nothing: the real hold
# gets no more deadlines, and freezes it.
_IMPOSTOR_SECONDS: Final = 1.0
# The state of an idle session is looked at this often; where something was printed, each time.
_LOOK_SECONDS: Final = 30.0
_REMAINS_SECONDS: Final = 0.05


class PodSidecar:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # In a pod that waits for a session there is nothing to open yet.
        self._made = None if settings.restore else self._open(settings.session)
        self._came = Came(
            settings.state,
            settings.session,
            settings.session_uid,
            settings.epoch,
            settings.stored,
        )
        self._fence: Fence | None = None
        self._arrival: Arrival | None = None
        self._departure: Departure | None = None
        self._quit: Callable[[], object] = lambda: None  # before anything is served
        self._looked_at, self._looked_when = -1, -_LOOK_SECONDS
        self._facts: dict[str, str] = {}
        self._survey: Survey | None = None
        self._serving = False
        self._given_up = False
        self._met = self._vanished = False  # the hold that this session began with; and it is gone
        self._losing: asyncio.Task[None] | None = None  # the link is, and we see why
        self._speaking = False  # its last words, into the Lease
        self._told_to_go = False

    def _open(self, asked: spec.Spec) -> Sidecar:
        sidecar = Sidecar(self._settings.state, asked)
        run = self._settings.run
        sidecar.session.exec_folder = ExecFolder(run / "exec", readable_by_all=True)
        sidecar.session.outlives_its_pod = True
        return sidecar

    @property
    def _sidecar(self) -> Sidecar:
        if self._made is None:
            raise AssertionError("no session has come here yet")
        return self._made

    async def run(self) -> None:
        settings = self._settings
        self._obey_signals()
        api = Api.from_environment(settings.credentials)
        server = await probe.serve(settings.state / probe.SOCKET, lambda: self._serving)
        hold, status = await self._hold()
        # Not hold's own nonce: the Lease can be read by more than may know that.
        digest = hashlib.sha256(status.nonce.encode()).hexdigest()[:16]
        identity = f"{settings.pod_uid}/{digest}"
        holder = Holder(settings.timing, identity, settings.epoch)
        fence = Fence(api, settings.lease_path, settings.session_uid, holder, hold, log)
        self._fence = fence
        if settings.restore:
            # What comes may have it open, and is not told before the Lease is ours that it is here.
            workload.write_epoch(settings.run, settings.epoch)
            taker = Taker(settings.pod_uid, identity, settings.epoch)
            self._arrival = Arrival(self._reopen, hold, fence, taker, self._came)
        agents = await agent.serve(settings.state / "agent.sock", self._asked)
        try:
            if self._arrival is not None:
                self._made = await self._arrival.wait()
                self._tell_workload()
                self._arrival.answer(self._made)
                status = await hold.status()
            if fence.standing is not Standing.HELD:
                await self._begin(hold, status, fence)
            await self._serve(hold, fence)
        except Superseded as error:
            await self._give_up(hold, error)
        finally:
            agents.close()
            (settings.state / "agent.sock").unlink(missing_ok=True)
            server.close()
            api.close()
            hold.close()
            if self._losing is not None:
                self._losing.cancel()

    def _obey_signals(self) -> None:
        """kubelet sends SIGTERM when the session's container is gone, or never came."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is not None:
            self._quit = task.cancel

        def go() -> None:
            if self._speaking:  # kubelet gives us time; whoever comes next would have to wait
                self._told_to_go = True
            elif self._serving:
                self._sidecar.stop()
            else:
                self._quit()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, go)

    async def _hold(self) -> tuple[HoldLink, HoldStatus]:
        """The session's container starts after ours: hold's socket appears when it does."""
        path = str(self._settings.hold_socket)
        nonce = Nonce(self._settings.state, self._settings.run)
        await nonce.hand_over()
        while True:
            # What is not hold may say anything, or nothing.
            with contextlib.suppress(HoldError, TimeoutError, TypeError, ValueError):
                async with asyncio.timeout(_HOLD_SECONDS):
                    link = await HoldLink.connect(path, self._heard, self._lost)
                    try:
                        status = await link.status()
                        self._met = hmac.compare_digest(status.nonce, nonce.text)
                    finally:
                        if not self._met:
                            link.close()
                if self._met:
                    return link, status
                log("what listens at hold's socket is not the hold that has this sidecar's nonce")
                await asyncio.sleep(_IMPOSTOR_SECONDS)
            await asyncio.sleep(_LOOK_FOR_HOLD_SECONDS)

    def _heard(self, event: HoldEvent) -> None:
        if self._met and self._made is not None:
            self._made.event(event)
            if event.kind is EventKind.INCOMPLETE and self._fence is not None:
                self._fence.renew_now()  # it is told there

    def _lost(self) -> None:
        """Is hold dead, which as PID 1 took everything along, or did only the link break? Then the
        next sidecar, started by kubelet, makes another."""
        if self._met:  # else it was not hold whose end would mean anything
            self._losing = asyncio.get_running_loop().create_task(self._look_after_it())

    async def _look_after_it(self) -> None:
        self._vanished = await self._nobody_listens()
        if not self._vanished:
            log("the link to hold broke; starting again")
        if self._made is None:  # nothing has come here, and nothing can come now
            self._quit()
        elif self._vanished:
            self._made.lost()
        else:
            self._made.stop()

    async def _nobody_listens(self) -> bool:
        """To be let in says nothing: of a hold that dies the kernel closes the connections first
        and its socket after them. One that lives answers; if not, look again."""
        with contextlib.suppress(TimeoutError, TypeError, ValueError):  # it is not hold, or stuck
            async with asyncio.timeout(_HOLD_SECONDS):
                while True:
                    try:
                        (await HoldLink.connect(str(self._settings.hold_socket))).close()
                    except HoldError as error:
                        if isinstance(error.__cause__, ConnectionRefusedError | FileNotFoundError):
                            return True
                        if error.code != "lost":
                            return False
                    else:
                        return False
                    await asyncio.sleep(_LOOK_FOR_HOLD_SECONDS)
        return False

    async def _hold_vanished(self) -> bool:
        if self._losing is not None:
            await asyncio.wait((self._losing,))
        return self._vanished

    def _reopen(self) -> Sidecar:
        return self._open(self._came.spec())

    def _tell_workload(self) -> None:
        """Before anything of it runs."""
        workload.write_epoch(self._settings.run, self._settings.epoch)
        if (fork := self._sidecar.session.spec.fork) is not None:
            workload.write_fork(self._settings.run, fork)

    async def _begin(self, hold: HoldLink, status: HoldStatus, fence: Fence) -> None:
        settings, session = self._settings, self._sidecar.session
        try:
            await fence.acquire()
            self._tell_workload()
            if not status.started:
                if settings.notice and session.ring.head == 0:
                    session.ring.append(words.banner(settings.notice))
                while not await self._started(hold):
                    await fence.acquire()
        except HoldError as error:
            await self._over_before_serving(fence, status, error)
        fence.note(started=str(settings.epoch))
        fence.renew_now()

    async def _started(self, hold: HoldLink) -> bool:
        """False: the deadline passed before the command could start, and nothing else is wrong."""
        try:
            await hold.start(*self._sidecar.session.size)
        except HoldError as error:
            if error.code not in ("expired", "busy"):
                raise
            log(f"the command was not started: {error.message}")
            return False
        return True

    async def _over_before_serving(
        self, fence: Fence, status: HoldStatus, error: HoldError
    ) -> NoReturn:
        if error.code == "cannot_start":
            log(f"the command cannot be started: {error.message}")
            await fence.release(start_error=error.message[:1000])
        elif error.code == "ending" or await self._hold_vanished():
            # Before it began nothing of the session's can be lost by beginning elsewhere.
            how = Exit(None, None, "killed" if status.started else "term")
            await asyncio.sleep(self._settings.timing.settle)
            await fence.release(exit=words.exit_note(how, []))
        else:
            raise error  # only the link broke: the next sidecar makes another
        raise Superseded(error.message) from error

    async def _asked(self, body: agent.Body) -> agent.Body:
        """By the node's agent."""
        what, departure = body.get("do"), self._departure
        if what == "status":
            return self._standing()
        own = self._settings
        agent.check_meant(body, own.session_uid, own.namespace, own.epoch)
        if what in ("prepare", "commit"):
            return await self._commit(body, prepare=what == "prepare")
        if what not in ("park", "progress", "seal", "unpark", "suspend", "lost"):
            raise AgentError(
                "bad_request",
                "ask: status, park, progress, seal, unpark, suspend, prepare, commit, lost",
            )
        if departure is None or self._sidecar.requests is None:
            return self._not_served(what, body)
        return await {
            "park": departure.park,
            "progress": departure.progress,
            "seal": departure.seal,
            "unpark": departure.unpark,
            "suspend": departure.suspend,
            "lost": departure.lost,
        }[what](body)

    def _not_served(self, what: str, body: agent.Body) -> agent.Body:
        checkpoint = "" if self._fence is None else self._fence.suspended
        if not checkpoint and self._given_up:
            raise AgentError("superseded", "the session is not this pod's any more")
        if not checkpoint:
            raise AgentError("not_serving", "no session is served here now")
        if what != "suspend" or body.get("checkpoint") != checkpoint:
            raise AgentError("superseded", f"the session is suspended, as {checkpoint}")
        # Given back by the sidecar before this one, whose answer was lost.
        return {"seq": 0 if self._made is None else self._made.session.ring.head}

    async def _commit(self, body: agent.Body, *, prepare: bool) -> agent.Body:
        if self._arrival is None or self._given_up:
            raise AgentError("refused", "this pod waits for no session")
        if self._departure is None:
            return await (self._arrival.prepare if prepare else self._arrival.commit)(body)
        # Asked before, of this sidecar or of one before it, and the answer was lost.
        if self._arrival.check(body) != self._came.what():
            raise AgentError("refused", "another one is served here")
        return {"seq": self._sidecar.session.ring.head}

    def _standing(self) -> agent.Body:
        session = None if self._made is None else self._made.session
        return {
            "parked": session is not None and session.parked,
            "offered": self._departure is not None and self._departure.offered,
            "serving": self._serving,
            "epoch": self._settings.epoch,
            "seq": 0 if session is None else session.ring.head,
        }

    async def _serve(self, hold: HoldLink, fence: Fence) -> None:
        settings = self._settings
        self._departure = departure = Departure(
            self._sidecar,
            fence,
            settings.state,
            settings.epoch,
            settings.pod_uid,
            settings.timing.settle,
        )
        if settings.restore:
            settle_in(self._sidecar, self._came)
            fence.note(cut=json.dumps(sealed.cut(settings.state)[:_CUT_TOLD]))
            fence.renew_now()
        self._survey = Survey(
            self._sidecar.session,
            hold,
            self._sidecar.frozen,
            fence.renew_now,
            settings.survey_every,
        )
        self._serving = True

        async def keep() -> None:
            try:
                await fence.keep(self._look)
            except Superseded as error:
                await self._give_up(hold, error)
                self._sidecar.stop()

        async def last_words(how: Exit) -> None:
            if self._given_up:
                return
            self._speaking = True
            await self._nothing_runs(hold)
            keeping.cancel()
            if how.by in words.CAUSES:
                # Somebody may follow us: what is under way must have arrived.
                await asyncio.sleep(self._settings.timing.settle)
            try:
                lines = await words.last_lines(self._sidecar.session)
                await fence.release(exit=words.exit_note(how, lines))
            except Superseded as error:
                log(f"nobody wants to know how it ended: {error}")
                self._told_to_go = True
            self._speaking = False
            if self._told_to_go:
                with contextlib.suppress(HoldError):
                    await hold.collected()
                self._sidecar.stop()

        async with asyncio.TaskGroup() as tasks:
            works = (keep(), self._survey.run(), self._leave(hold, departure), self._dial())
            keeping, *others = (tasks.create_task(work) for work in works)
            try:
                await self._served(hold, last_words)
            finally:
                departure.close()
            for task in (keeping, *others):
                task.cancel()

    async def _served(self, hold: HoldLink, last_words: LastWords) -> None:
        try:
            await self._sidecar.run(hold, last_words)
        except HoldError:
            if not await self._hold_vanished():
                raise
            await self._sidecar.unserved(last_words)

    async def _dial(self) -> None:
        """Every gateway, as long as the session is ours: who was attached through one looks it up
        again there, and must not be led back here."""
        settings, sidecar = self._settings, self._sidecar
        if settings.gateways is None:
            return
        await sidecar.serving.wait()  # a client that is let in before would be dropped
        uplinks = Uplinks(settings.gateways, settings.about(), sidecar.adopt, log)
        async with asyncio.TaskGroup() as tasks:
            dialling = tasks.create_task(uplinks.run())
            await sidecar.away.wait()
            dialling.cancel()

    async def _leave(self, hold: HoldLink, departure: Departure) -> None:
        """hold was told to go: the session is moved away meanwhile, or its command is told too."""
        settings, session = self._settings, self._sidecar.session
        await self._sidecar.leaving.wait()
        # Its own connection: an answer that is late must not hold up a renewal.
        api = Api.from_environment(settings.credentials)
        try:
            leaving = Leaving(api, settings.session_path, settings.session_uid, settings.epoch)
            why = await leaving.over(lambda: session.parked)
        finally:
            api.close()
        departure.shut()
        log(f"the command is told to end: {why}")
        with contextlib.suppress(HoldError):
            await hold.heed()

    async def _nothing_runs(self, hold: HoldLink) -> None:
        """The command has ended; what it left behind has a moment more, and is killed then."""
        while not self._vanished:
            try:
                if not (await hold.graph()).processes:
                    return
            except HoldError as error:
                if error.code == "lost" and not await self._hold_vanished():
                    raise  # the next sidecar asks again
            await asyncio.sleep(_REMAINS_SECONDS)

    async def _give_up(self, hold: HoldLink, error: Superseded) -> None:
        """Nothing of this incarnation may run again. hold goes when its end has been collected."""
        self._given_up = True
        if self._made is not None:
            self._made.turn_away()
        log(f"this incarnation ({self._settings.epoch}) is over: {error}")
        with contextlib.suppress(HoldError):
            if not sealed.follows(self._settings.state):  # else the agent does
                await hold.end(0)
            while True:
                if (await hold.status()).exited:
                    break
                await asyncio.sleep(0.05)
            await hold.collected()

    async def _look(self) -> dict[str, str]:
        """What the Lease tells the operator about the session: looked at when it may be news."""
        session, requests = self._sidecar.session, self._sidecar.requests
        head, now = session.ring.head, time.monotonic()
        news = head != self._looked_at or now - self._looked_when >= _LOOK_SECONDS
        if requests is not None and news:
            self._looked_at, self._looked_when = head, now
            active = datetime.fromtimestamp(session.last_active, UTC)
            self._facts["activity"] = str((await requests.state())["activity"])
            self._facts["active"] = active.isoformat(timespec="seconds").replace("+00:00", "Z")
        self._facts["clients"] = str(len(session.turn.participants))
        self._facts["turn"] = str(session.turn.holder or "")
        self._facts["incomplete"] = str(self._sidecar.unstopped)
        if self._survey is not None and self._survey.note is not None:
            self._facts["blockers"] = self._survey.note
        return self._facts


def main() -> int:
    os.umask(0o077)
    status = 0
    try:
        asyncio.run(_run())
    except* (HoldfastError, HoldError, ApiError, OSError) as group:
        for error in _each(group):
            log(str(error))
        status = 1
    except* asyncio.CancelledError:
        log("told to go before the session began")
    return status


def _each(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _each(one)
    else:
        yield error


async def _run() -> None:
    await PodSidecar(Settings.read(dict(os.environ))).run()


if __name__ == "__main__":
    sys.exit(main())
