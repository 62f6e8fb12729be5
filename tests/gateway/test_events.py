"""The stream as server-sent events, from a real session."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractAsyncContextManager

from events_kit import Viewer, viewing
from gateway_kit import Place, until

STREAM = "/api/v1/sessions/build/stream"


def viewer(place: Place, last: str = "") -> AbstractAsyncContextManager[Viewer]:
    return viewing(place.url.rstrip("/") + STREAM, place.token, last)


def typed(place: Place, text: str) -> None:
    assert place.post("/api/v1/sessions/build/input", {"text": text}).status == 200


async def test_a_viewer_comes_leaves_and_resumes_at_the_byte(served: Place) -> None:
    async with viewer(served) as first:
        await first.until(lambda: "snapshot" in first.kinds)
        attached, snapshot = dict(first.seen)["attached"], dict(first.seen)["snapshot"]
        assert (attached["mode"], attached["resumed"]) == ("view", False)
        assert first.last == f"{snapshot['seq']}@{attached['session_id']}"
        typed(served, "echo f$((40+2)) €\r")
        await first.until(lambda: "f42 €".encode() in first.stream)
    typed(served, "echo s$((40+3))\r")
    async with viewer(served, first.last) as second:
        await second.until(lambda: b"s43" in second.stream)
    assert second.kinds[0] == "attached"
    assert dict(second.seen)["attached"]["resumed"] is True
    assert "snapshot" not in second.kinds
    assert first.began is not None
    assert second.began == first.began + len(first.stream)


async def test_state_is_news(served: Place) -> None:
    async with viewer(served) as one:
        typed(served, "read answer\r")
        await one.until(lambda: ("state", "reading") in _states(one))
        typed(served, "\r")
        await one.until(lambda: _states(one)[-1] == ("state", "prompt"))


def _states(one: Viewer) -> list[tuple[str, str]]:
    return [(kind, body["activity"]) for kind, body in one.seen if kind == "state"]


def test_it_must_be_asked_for_and_asked_for_rightly(served: Place) -> None:
    assert served.get(STREAM).code == "bad_request"
    accepted = {"Accept": "text/event-stream"}
    assert served.get(STREAM, token=None, **accepted).code == "unauthenticated"
    assert served.get(STREAM, Last_Event_ID="7", **accepted).code == "bad_request"
    assert served.get(STREAM.replace("build", "absent"), **accepted).code == "not_found"


async def test_it_outlives_the_sidecar_and_ends_with_the_session(place: Place) -> None:
    place.session("build", "sh", "-c", "i=0; while read line; do i=$((i+1)); echo line-$i; done")
    place.start()
    sidecar = place.sidecar("build")
    async with viewer(place) as one:
        await one.until(lambda: "snapshot" in one.kinds)
        typed(place, "\r")
        await one.until(lambda: b"line-1" in one.stream)
        os.kill(sidecar, signal.SIGKILL)
        until(lambda: place.sidecar("build") != sidecar, "another sidecar")
        typed(place, "\r")
        await one.until(lambda: b"line-2" in one.stream)
        assert one.kinds.count("snapshot") == 1
        typed(place, "\x04")
        while await one.next():
            pass
        assert one.kinds[-1] == "ended"
    for last in ("", one.last):
        async with viewer(place, last) as late:
            while await late.next():
                pass
            assert "ended" in late.kinds
            assert ("snapshot" in late.kinds) == (not last)


async def test_who_does_not_read_gets_a_gap_and_a_fresh_screen(place: Place) -> None:
    place.session("build")
    place.start()
    async with viewer(place) as slow:
        await slow.until(lambda: "snapshot" in slow.kinds)
        typed(place, "head -c 16000000 /dev/zero | tr '\\0' x; echo; echo en''d\r")
        screen = "/api/v1/sessions/build/screen"
        until(lambda: b"\nend\n" in place.get(screen).body, "the flood to be over")
        await slow.until(lambda: "gap" in slow.kinds)
        gap = slow.seen[-1][1]
        assert slow.began is not None
        assert gap["start"] == slow.began + len(slow.stream), "told of to the byte"
        await slow.until(lambda: slow.kinds[-1] == "snapshot" and slow.seen[-1][1]["last"])
        assert slow.seen[-1][1]["seq"] >= gap["end"] > gap["start"]


async def test_a_gateway_that_stops_ends_it_at_once(place: Place) -> None:
    place.session("build")
    place.start()
    async with viewer(place) as one:
        await one.until(lambda: "snapshot" in one.kinds)
        assert place.stop() == 0
        while await one.next():
            pass
