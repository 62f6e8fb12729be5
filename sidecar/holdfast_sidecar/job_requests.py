"""What can be asked of jobs: `job_start`, `job_list`, `job_get`, `job_output`, `job_signal`.

Checked here, at the edge, as in requests.py.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast_sidecar.jobs import OUTPUT_LIMIT, Jobs, Wanted
from holdfast_sidecar.requests import (
    Asker,
    Body,
    Handler,
    key_of,
    number_of,
    signal_of,
    text_of,
)
from holdfast_sidecar.session import Session
from holdfast_wire.errors import BadRequest, TooLarge

MAX_COMMAND: Final = 256 << 10
_MAX_WAIT: Final = 30.0
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class JobRequests:
    def __init__(self, session: Session, jobs: Jobs) -> None:
        self._session, self._jobs = session, jobs

    def kinds(self) -> dict[str, Handler]:
        return {
            "job_start": self._start,
            "job_list": self._list,
            "job_get": self._get,
            "job_output": self._output,
            "job_signal": self._signal,
        }

    async def _start(self, asker: Asker, body: Body) -> Body:
        # Not the turn: a job types nothing. But who only looks on may not run anything either.
        self._session.turn.check_writer(asker.client)
        key, wanted = key_of(body), _wanted(body)
        job, duplicate = await self._jobs.start(asker.actor, asker.modality, key, wanted)
        return {"job": job.to_json(), "duplicate": duplicate}

    async def _list(self, _asker: Asker, _body: Body) -> Body:
        found = [job.to_json() for job in self._jobs.list()]
        for one in found:  # its whole command is had with job_get
            one.pop("command")
            one.pop("argv")
        return {"jobs": found}

    async def _get(self, _asker: Asker, body: Body) -> Body:
        return {"job": self._jobs.get(text_of(body, "job")).to_json()}

    async def _output(self, _asker: Asker, body: Body) -> Body:
        after = int(number_of(body, "after", 0, 0, 2**53))
        limit = int(number_of(body, "limit", OUTPUT_LIMIT, 1, OUTPUT_LIMIT))
        wait = number_of(body, "wait", 0, 0, _MAX_WAIT)
        return await self._jobs.output(text_of(body, "job"), after, limit, wait)

    async def _signal(self, asker: Asker, body: Body) -> Body:
        self._session.turn.check_writer(asker.client)
        number = signal_of(body)
        job = await self._jobs.signal(asker.actor, text_of(body, "job"), number)
        return {"job": job.to_json()}


def _wanted(body: Body) -> Wanted:
    if ("command" in body) == ("argv" in body):
        raise BadRequest("a job is either a 'command' or an 'argv'", "send exactly one of them")
    command = text_of(body, "command") if "command" in body else None
    argv = ["/bin/sh", "-c", command] if command is not None else body["argv"]
    if not isinstance(argv, list) or not argv:
        raise BadRequest("'argv' must be a list of texts")
    words = [text_of({"argv": word}, "argv") for word in argv]
    cwd = text_of(body, "cwd") if body.get("cwd") is not None else None
    if cwd is not None and not cwd.startswith("/"):
        raise BadRequest("'cwd' must be an absolute path", "leave it out for the shell's own")
    env = _env(body.get("env") or {})
    if not words[0] or (command is not None and not command.strip()):
        raise BadRequest("there is no command to run")
    if any("\0" in one for one in (*words, cwd or "", *env.values())):
        raise BadRequest("a command cannot have a NUL in it")
    if sum(len(word.encode()) for word in words) > MAX_COMMAND:
        raise TooLarge(f"a command is at most {MAX_COMMAND} bytes", "put it in a file")
    return Wanted(tuple(words), command, cwd, env)


def _env(given: object) -> dict[str, str]:
    if not isinstance(given, dict):
        raise BadRequest("'env' must be an object of texts")
    for name in given:
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise BadRequest(f"{str(name)[:40]!r} cannot be the name of a variable")
    return {name: text_of(given, name) for name in given}
