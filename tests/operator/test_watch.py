from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from holdfast_kube.client import (
    LEASES,
    PODS,
    Conflict,
    Gone,
    Invalid,
    Kube,
    Overloaded,
    event,
    failure,
    lines,
)
from holdfast_operator import names
from holdfast_operator.contact import TOO_OLD_SECONDS, Contact
from holdfast_operator.names import Key
from holdfast_operator.resync import Resync
from holdfast_operator.sightings import Sightings, Urgency
from holdfast_operator.watch import LeaseWatch
from holdfast_wire.errors import AlreadyExists, Forbidden, NotFound, Unavailable

KEY = Key("team", "build")


def lease(version: str, **notes: str) -> dict[str, Any]:
    found = {names.PREFIX + key: value for key, value in notes.items()}
    meta = {"name": "build", "namespace": "team", "resourceVersion": version, "annotations": found}
    return {"metadata": meta}


def test_which_changes_matter() -> None:
    seen = Sightings()
    assert seen.saw(lease("1", epoch="1"), 0) == (KEY, Urgency.NOW)  # the first sight
    assert seen.saw(lease("2", epoch="1"), 1)[1] is Urgency.NOTHING  # a renewal
    assert seen.saw(lease("3", epoch="1", started="1", activity="prompt"), 2)[1] is Urgency.NOW
    assert seen.saw(lease("4", epoch="1", started="1", activity="running"), 3)[1] is Urgency.LATER
    assert seen.saw(lease("5", epoch="1", started="1", activity="frozen"), 4)[1] is Urgency.NOW
    assert seen.saw(lease("6", epoch="1", started="1", activity="prompt"), 5)[1] is Urgency.NOW
    assert seen.gone(KEY, 6) is Urgency.NOW
    assert seen.gone(KEY, 7) is Urgency.NOTHING
    assert seen.gone(Key("x", "y"), 7) is Urgency.NOTHING


def test_a_wait_is_told_once_and_begins_anew_with_each_version() -> None:
    seen = Sightings()
    observer = seen.observer(KEY, 20)
    seen.saw(lease("1"), 0)
    assert observer.expires_at() == 20
    assert seen.ended(19.9) == []
    seen.saw(lease("2"), 19.9)
    assert seen.ended(30) == []
    assert seen.ended(39.9) == [KEY]
    assert seen.ended(50) == []
    seen.gone(KEY, 50)
    assert seen.ended(69) == []
    assert seen.ended(70) == [KEY]
    assert seen.observer(KEY, 20) is observer
    seen.forget(KEY)
    assert seen.observer(KEY, 20) is not observer


def test_a_list_shows_what_went() -> None:
    seen = Sightings()
    seen.saw(lease("1"), 0)
    assert seen.listed("other", [], 1) == []
    assert seen.listed(None, [KEY], 1) == []
    assert seen.listed("team", [], 1) == [KEY]
    assert seen.listed("team", [], 1) == []


async def stream(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def test_lines_are_put_together() -> None:
    found = [line async for line in lines(stream(b'{"a"', b": 1}\n\n{", b"}\n{}\nrest"))]
    assert found == [b'{"a": 1}', b"{}", b"{}"]


async def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast_kube.client.MAX_LINE", 10)
    with pytest.raises(Unavailable):
        _ = [line async for line in lines(stream(b"x" * 11))]


def test_events() -> None:
    assert event(b'{"type": "ADDED", "object": {}}')["type"] == "ADDED"
    gone = {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}
    with pytest.raises(Gone):
        event(json.dumps(gone).encode())
    for broken in (b"{", b"[]", b'{"type": "ADDED"}'):
        with pytest.raises(Unavailable):
            event(broken)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, {}, NotFound),
        (403, {}, Forbidden),
        (409, {"reason": "AlreadyExists"}, AlreadyExists),
        (409, {"reason": "Conflict"}, Conflict),
        (410, {}, Gone),
        (422, {}, Invalid),
        (400, {}, Invalid),
        (503, {}, Unavailable),
        (500, {"details": {"retryAfterSeconds": 3}}, Overloaded),
        (429, {}, Unavailable),
    ],
)
def test_failures(status: int, body: dict[str, Any], kind: type[Exception]) -> None:
    assert type(failure(status, body, {})) is kind


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("100000", 60.0)])
def test_retry_after_is_honoured(header: str, seconds: float) -> None:
    found = failure(429, {}, {"Retry-After": header})
    assert isinstance(found, Overloaded)
    assert found.retry_after == seconds
    assert type(failure(429, {}, {"Retry-After": "soon"})) is Unavailable


def test_paths() -> None:
    assert PODS.path(None) == "/api/v1/pods"
    path = "/apis/coordination.k8s.io/v1/namespaces/n/leases/a/status"
    assert LEASES.path("n", "a", "status") == path


class Script:
    """A cluster that says what it is told to, then nothing."""

    def __init__(self, *steps: Any) -> None:
        self.steps, self.asked = list(steps), list[str]()
        self.idle = asyncio.Event()

    async def list_all(self, *_: Any, **__: Any) -> tuple[list[dict[str, Any]], str]:
        self.asked.append("list")
        step = self.steps.pop(0) if self.steps else None
        if step is None:
            self.idle.set()
            await asyncio.Event().wait()
        if isinstance(step, Exception):
            raise step
        return cast("tuple[list[dict[str, Any]], str]", step)

    async def watch(self, *args: Any, **_: Any) -> AsyncIterator[dict[str, Any]]:
        self.asked.append(f"watch from {args[3]}")
        if not self.steps:
            self.idle.set()
            await asyncio.Event().wait()
        for one in self.steps.pop(0):
            if isinstance(one, Exception):
                raise one
            yield one


async def follow(script: Script, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], Contact]:
    monkeypatch.setattr("holdfast_operator.watch.PAUSES", (0.0,))
    marked: list[tuple[Key, float]] = []
    contact = Contact(0.0)
    watch = LeaseWatch(
        cast(Kube, script),
        (),
        Sightings(),
        lambda key, after: marked.append((key, after)),
        contact,
        lambda: 5.0,
    )
    task = asyncio.create_task(watch.run())
    await script.idle.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return marked, contact


async def test_the_watch_goes_on_and_lists_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "30"}}}
    script = Script(
        ([lease("1", epoch="1")], "10"),
        [{"type": "MODIFIED", "object": lease("12", epoch="1", clients="2")}, bookmark],
        [Gone("too old")],
        ([], "40"),
        [{"type": "ADDED", "object": lease("41", epoch="2")}, Unavailable("silence")],
        Unavailable("down"),
    )
    marked, contact = await follow(script, monkeypatch)
    assert script.asked == [
        "list", "watch from 10", "watch from 30", "list", "watch from 40", "list", "list",
    ]  # fmt: skip
    assert marked == [(KEY, 0.0), (KEY, 30.0), (KEY, 0.0), (KEY, 0.0)]
    assert contact.ages(6.0) == {"leases/": 1.0}


async def test_deletions_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    deleted = {"type": "DELETED", "object": lease("5")}
    marked, _ = await follow(Script(([lease("1")], "1"), [deleted]), monkeypatch)
    assert marked == [(KEY, 0.0), (KEY, 0.0)]


def test_contact() -> None:
    contact = Contact(100)
    contact.expect("sessions")
    contact.made("leases/", 200)
    assert contact.stale(100 + TOO_OLD_SECONDS) == []
    assert contact.stale(101 + TOO_OLD_SECONDS) == ["sessions"]
    contact.made("sessions", 300)
    contact.expect("sessions")
    assert contact.ages(301) == {"leases/": 101, "sessions": 1}


async def test_a_kopf_that_misses_sessions_loses_contact() -> None:
    def shown(version: str) -> tuple[list[dict[str, Any]], str]:
        return [lease(version)], "1"

    now = 10.0
    contact, marked = Contact(0.0), list[Key]()
    script = Script(shown("7"), shown("7"), shown("8"), shown("8"), ([], "1"))
    resync = Resync(
        cast(Kube, script), (), lambda key, _after: marked.append(key), contact, lambda: now
    )
    resync.watched(lease("7")["metadata"], gone=False)
    await resync.once()
    now = 20.0
    await resync.once()
    assert contact.ages(20.0) == {"sessions": 0.0}
    now = 30.0
    await resync.once()  # 8 is new: kopf may still show it
    assert contact.ages(30.0) == {"sessions": 0.0}
    now = 40.0
    await resync.once()  # it did not
    assert contact.ages(40.0) == {"sessions": 10.0}
    now = 50.0
    await resync.once()  # no sessions at all is fine
    assert contact.ages(50.0) == {"sessions": 0.0}
    assert marked == [KEY] * 4
