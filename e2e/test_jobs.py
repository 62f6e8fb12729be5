"""Walkthrough two: a program runs a job in a session where somebody is in the middle of a line, the
session moves under both, and everything is there."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from e2e.lab import KubectlError, Lab, Session, until
from e2e.movers import MOVED_WITHIN, draining

SUBRESOURCES = "/apis/subresources.holdfast.dev/v1alpha1/namespaces/default/sessions"
# Counts as long as it runs: a number that is missing or doubled was lost or done twice on the way.
SCRIPT = (
    "echo ran >> /tmp/ran; n=0; until test -e /tmp/go; do n=$((n+1)); echo $n; sleep 0.02; done;"
    " wc -l < /tmp/ran; exit 3"
)
HALF = "echo half-"  # and then: typed


class Jobs:
    """Through the API server, as any program with a kubeconfig."""

    def __init__(self, session: Session, *who: str) -> None:
        self._lab, self._path = session.lab, f"{SUBRESOURCES}/{session.name}"
        self._who = who

    def get(self, below: str = "") -> Any:
        return json.loads(self.text(below))

    def text(self, below: str) -> str:
        return self._lab.kubectl("get", "--raw", f"{self._path}/observe/jobs{below}", *self._who)

    def post(self, body: dict[str, Any]) -> Any:
        told = self._lab.kubectl(
            "create", "--raw", f"{self._path}/run/jobs", "-f", "-", *self._who,
            give=json.dumps(body),
        )  # fmt: skip
        return json.loads(told)

    def complete(self, job: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found: dict[str, Any] = self.get(f"/{job}")
            return found if found["output"]["complete"] else None

        found = until(look, "the job's end")
        assert found is not None
        return found

    def output(self, job: str) -> str:
        return self.text(f"/{job}/output")


def reachable(session: Session) -> Jobs:
    jobs = Jobs(session)

    def look() -> bool:
        try:
            return bool(jobs.get() == {"jobs": []})
        except KubectlError:
            return False

    until(look, "the gateway to serve the session")
    return jobs


@pytest.mark.timeout(300)
def test_a_job_beside_a_half_typed_line_goes_through_a_drain(lab: Lab) -> None:
    plain = {"runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True}
    session = lab.session(
        "worked", "bash", "--norc", node=lab.away(),
        container={"securityContext": plain, "env": [{"name": "PS1", "value": "$ "}]},
    )  # fmt: skip
    jobs = reachable(session)
    session.await_text("$")
    lab.holdfast("send", session.name, HALF)
    session.await_text(HALF)

    asked = {"command": SCRIPT, "key": "deploy-4711"}
    first, again = jobs.post(asked), jobs.post(asked)
    assert (first["duplicate"], again["duplicate"]) == (False, True)
    job = first["id"]
    assert again["id"] == job
    session.await_text(f"── {first['actor']} runs")
    assert session.screen().rstrip().endswith(f"$ {HALF}")
    running = until(lambda: jobs.get(f"/{job}")["pid"] and jobs.get(f"/{job}"), "it runs")

    with draining(lab, session.node) as drain:
        session.await_epoch(2, MOVED_WITHIN)
        drain.succeeds()

    after = until(lambda: _there(jobs, job), "the gateway to serve it where it is now")
    assert after is not None
    assert (after["state"], after["pid"]) == ("running", running["pid"])
    duplicate = jobs.post(asked)
    assert (duplicate["duplicate"], duplicate["id"]) == (True, job)
    before = after["output"]["bytes"]
    until(lambda: jobs.get(f"/{job}")["output"]["bytes"] > before, "it prints on")
    touched = jobs.complete(jobs.post({"argv": ["touch", "/tmp/go"]})["id"])
    assert touched["exit"] == {"code": 0, "signal": None}
    ended = jobs.complete(job)
    assert (ended["exit"], ended["actor"]) == ({"code": 3, "signal": None}, first["actor"])
    *numbers, ran = map(int, jobs.output(job).split())
    assert numbers == list(range(1, len(numbers) + 1))
    assert ran == 1

    session.await_text("ended with 3")
    assert session.screen().rstrip().endswith(f"$ {HALF}")
    session.type("typed")
    session.await_text("\nhalf-typed\n")
    records = [
        (one["kind"], one["actor"])
        for one in json.loads(lab.holdfast("journal", session.name, "-o", "json"))["records"]
        if one.get("job") == job
    ]
    assert records == [("job", first["actor"]), ("job_ended", first["actor"])]


def _there(jobs: Jobs, job: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = jobs.get(f"/{job}")
    except (KubectlError, subprocess.TimeoutExpired):
        return None
    return found


def test_who_may_only_look_runs_nothing(lab: Lab) -> None:
    session = lab.session("looked-at", "bash", "--norc")
    jobs = reachable(session)
    lab.kubectl(
        "create", "rolebinding", "olga-looks", "--clusterrole=holdfast-observer", "--user=olga"
    )
    try:
        olga = Jobs(session, "--as=olga")
        assert olga.get() == {"jobs": []}
        with pytest.raises(KubectlError, match="forbidden"):
            olga.post({"command": "true"})
        with pytest.raises(KubectlError):
            Jobs(session, "--as=stranger").get()
    finally:
        lab.kubectl("delete", "rolebinding", "olga-looks")
    assert jobs.get() == {"jobs": []}
