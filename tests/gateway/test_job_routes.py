"""Jobs over HTTP, on a real session."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from gateway_kit import Answer, Place, until

JOBS = "/api/v1/sessions/build/jobs"


def start(place: Place, **body: Any) -> Answer:
    answer = place.post(JOBS, body)
    assert answer.status == 202, answer.body
    return answer


def ended(place: Place, where: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        job: dict[str, Any] = place.get(where).json
        return job if job["output"]["complete"] else None

    return until(look, "the job's end")


def events(answer: Answer) -> list[tuple[str, str, Any]]:
    """Kind, id and data of each."""
    found = []
    for block in answer.body.decode().strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        found.append((lines["event"], lines["id"], json.loads(lines["data"])))
    return found


def test_asked_twice_with_a_key_it_runs_once_and_can_be_followed(served: Place) -> None:
    body = {"command": "echo $$; echo wrong >&2; exit 3", "key": "deploy-1"}
    first, again = start(served, **body), start(served, **body)
    assert (first.json["duplicate"], again.json["duplicate"]) == (False, True)
    assert first.json["id"] == again.json["id"]
    where = first.headers["Location"]
    assert where == again.headers["Location"] == f"{JOBS}/{first.json['id']}"
    job = ended(served, where)
    assert (job["state"], job["exit"]) == ("ended", {"code": 3, "signal": None})
    assert job["modality"] == "http"
    text = served.get(f"{where}/output")
    assert text.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert text.body.count(b"\n") == 2
    assert text.body.endswith(b"wrong\n")
    assert text.headers["Holdfast-Next"] == str(len(text.body))
    assert (text.headers["Holdfast-Complete"], text.headers["Holdfast-Lost"]) == ("true", "0")
    told = served.get(f"{where}/output?format=json&after=2&limit=3").json
    assert (told["start"], told["end"], told["complete"]) == (2, 5, False)
    assert told["text"].encode() == text.body[2:5]
    (listed,) = [one for one in served.get(JOBS).json["jobs"] if one["id"] == job["id"]]
    assert listed["title"] == body["command"]
    assert "command" not in listed


def test_output_is_waited_for_and_a_signal_ends_it(served: Place) -> None:
    where = start(served, argv=["sh", "-c", "echo one; exec sleep 600"]).headers["Location"]
    told = served.get(f"{where}/output?format=json&wait=20").json
    assert (told["text"], told["complete"]) == ("one\n", False)
    assert served.get(f"{where}/output?after=4").body == b""
    assert served.post(f"{where}/signal", {"signal": "TERM"}).status == 200
    told = served.get(f"{where}/output?format=json&after=4&wait=20").json
    assert told["complete"]
    assert told["job"]["exit"] == {"code": None, "signal": int(signal.SIGTERM)}
    assert served.post(f"{where}/signal", {"signal": "TERM"}).code == "busy"


def test_events_go_on_from_the_last_one_to_the_end(served: Place) -> None:
    script = "printf 'caf\\303'; sleep 0.3; printf '\\251\\n'; sleep 0.3; exit 4"
    where = start(served, command=script).headers["Location"]
    found = events(served.get(f"{where}/output", Accept="text/event-stream"))
    assert [kind for kind, _, _ in found] == ["output"] * (len(found) - 1) + ["ended"]
    assert "".join(body["text"] for kind, _, body in found if kind == "output") == "café\n"
    assert found[-1][1:2] == ("6",)
    assert found[-1][2]["exit"] == {"code": 4, "signal": None}
    _, last, _ = found[0]
    rest = events(served.get(f"{where}/output", Accept="text/event-stream", Last_Event_ID=last))
    assert rest[-1] == found[-1]
    assert sum(len(body["text"].encode()) for kind, _, body in rest[:-1]) == 6 - int(last)
    bad = served.get(f"{where}/output", Accept="text/event-stream", Last_Event_ID="x")
    assert bad.code == "bad_request"


def test_events_outlive_the_sidecar(served: Place) -> None:
    script = "echo before; until test -e $GO; do sleep 0.02; done; echo after"
    go = served.folder("build") / "go"
    where = start(served, command=script, env={"GO": str(go)}).headers["Location"]
    assert served.get(f"{where}/output?wait=20").body == b"before\n"
    os.kill(served.sidecar("build"), signal.SIGKILL)
    go.touch()
    found = events(served.get(f"{where}/output", Accept="text/event-stream"))
    assert "".join(body.get("text", "") for _, _, body in found) == "before\nafter\n"


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        (JOBS, {}, "bad_request"),
        (JOBS, {"command": "true", "argv": ["true"]}, "bad_request"),
        (JOBS, {"argv": []}, "bad_request"),
        (JOBS, {"argv": [1]}, "bad_request"),
        (JOBS, {"command": "true", "env": {"A": 1}}, "bad_request"),
        (JOBS, {"command": "true", "env": {"A=B": "1"}}, "bad_request"),
        (JOBS, {"command": "true", "cwd": "there"}, "bad_request"),
        (JOBS, {"command": "true", "shell": "zsh"}, "bad_request"),
        (JOBS, {"command": "x" * (300 << 10)}, "too_large"),
        (f"{JOBS}/none/signal", {"signal": "TERM"}, "not_found"),
        (f"{JOBS}/none/signal", {"signal": "NO"}, "bad_request"),
        ("/api/v1/sessions/absent/jobs", {"command": "true"}, "not_found"),
    ],
)
def test_what_is_wrong_is_said(served: Place, path: str, body: Any, code: str) -> None:
    assert served.post(path, body).code == code


def test_nobody_without_the_token(served: Place) -> None:
    assert served.post(JOBS, {"command": "true"}, token=None).status == 401
    assert served.get(JOBS, token=None).status == 401
