"""Jobs in a real session: a real hold and keeper, a real sidecar, real kills."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway_kit import until
from holdfast_sidecar import job_records, sealed
from holdfast_sidecar.job_records import KEPT, KEPT_BYTES, Job, State
from holdfast_sidecar.jobs import shell_of
from holdfast_sidecar.state import Descriptor, Graph, Process, Thread
from holdfast_wire.errors import BadRequest, Busy, Ended, Forbidden, NotFound, TooLarge
from holdfast_wire.frames import Control
from sidecar_kit import Client, Live


@pytest.fixture
def live() -> Iterator[Live]:
    with Live("bash", "--norc") as made:
        yield made


def whole(client: Client, job: str, after: int = 0) -> tuple[bytes, dict[str, Any]]:
    """All of its output, followed to its end, and the job then."""
    data = b""
    while True:
        told = client.ask("job_output", job=job, after=after, wait=20)
        assert told["start"] == after
        data += base64.b64decode(told["base64"])
        after = told["end"]
        if told["complete"]:
            return data, told["job"]


def run(client: Client, command: str, **more: Any) -> dict[str, Any]:
    job: dict[str, Any] = client.ask("job_start", command=command, **more)["job"]
    return job


def test_one_key_is_one_job_also_after_the_sidecar_was_killed(live: Live) -> None:
    said = {"as": {"actor": "ada", "modality": "http"}, "key": "deploy-7"}
    script = "echo ran >> $OUT; echo begun; until test -e $OUT.go; do sleep 0.05; done; exit 3"
    out = live.folder / "out"
    asked = {**said, "command": script, "env": {"OUT": str(out)}}
    with live.client() as client:
        first = client.ask("job_start", **asked)
        again = client.ask("job_start", **asked)
        other = client.ask("job_start", **{**asked, "as": {"actor": "bob", "modality": "http"}})
    assert (first["duplicate"], again["duplicate"], other["duplicate"]) == (False, True, False)
    job = first["job"]["id"]
    assert again["job"]["id"] == job != other["job"]["id"]
    until(lambda: out.exists() and out.read_text() == "ran\nran\n", "both to have begun")
    live.kill_sidecar()
    live.start_sidecar()
    with live.client() as client:
        assert client.ask("job_get", job=job)["job"]["state"] == "running"
        assert client.ask("job_start", **asked)["job"]["id"] == job
        (live.folder / "out.go").touch()
        assert whole(client, job)[0] == b"begun\n"
        ended = client.ask("job_get", job=job)["job"]
        assert (ended["state"], ended["exit"]) == ("ended", {"code": 3, "signal": None})
        assert (ended["actor"], ended["modality"]) == ("ada", "http")
        records = client.ask("journal")["records"]
    live.kill_sidecar()
    live.start_sidecar()
    with live.client() as client:
        assert client.ask("job_start", **asked)["job"] == ended
        assert whole(client, job, 3)[0] == b"un\n"
    assert out.read_text() == "ran\nran\n"
    mine = [r for r in records if r.get("job") == job]
    assert [(r["kind"], r["actor"], r["modality"]) for r in mine] == [
        ("job", "ada", "http"),
        ("job_ended", "ada", "http"),
    ]
    assert mine[0]["command"] == script
    assert mine[1]["code"] == 3


def test_a_kill_at_any_moment_loses_and_doubles_none(live: Live) -> None:
    """Asked again and again, with a sidecar that is killed meanwhile."""
    out = live.folder / "out"
    out.touch()
    command = f"echo $HOLDFAST_JOB >> {out}"
    for number in range(4):
        client = live.client()
        body = {"kind": "job_start", "id": 1, "command": command, "key": f"k{number}"}
        client.send(Control(body))
        time.sleep(0.003 * number)
        live.kill_sidecar()
        client.close()
        live.start_sidecar()
        with live.client() as again:
            job = run(again, command, key=f"k{number}")
            whole(again, job["id"])
    lines = out.read_text().split()
    assert len(lines) == len(set(lines)) == 4


def test_its_end_is_told_once_and_what_it_left_behind_prints_on(live: Live) -> None:
    go = live.folder / "go"
    script = f"(until test -e {go}; do sleep 0.02; done; echo late) & exit 5"
    with live.client() as client:
        job = run(client, script)["id"]
        until(lambda: client.ask("job_get", job=job)["job"]["state"] == "ended", "its end")
    live.kill_sidecar()
    live.start_sidecar()
    with live.client() as client:
        go.touch()
        data, told = whole(client, job)
        assert (data, told["exit"]["code"]) == (b"late\n", 5)
        records = client.ask("journal")["records"]
        assert [r["kind"] for r in records if r.get("job") == job] == ["job", "job_ended"]


def test_it_is_where_the_shell_is_and_not_in_its_way(live: Live) -> None:
    with live.attached() as client:
        client.typed(b"cd /usr; cat\r")
        until(lambda: client.ask("state")["process"]["name"] == "cat", "cat to run")
        job = run(client, 'pwd; exec 2>&1; tty; echo "$PS1"; cat')
        data, told = whole(client, job["id"])
        assert data == b"/usr\nnot a tty\n$ \n"
        assert told["exit"]["code"] == 0
        assert client.ask("state")["process"]["name"] == "cat"
        data, _ = whole(client, client.ask("job_start", argv=["pwd"], cwd="/etc")["job"]["id"])
        assert data == b"/etc\n"
        heard = [n["job"]["state"] for n in client.news if n["kind"] == "job"]
        assert heard[0] == "starting"
        assert "ended" in heard


def test_a_signal_and_who_may_not(live: Live) -> None:
    with live.attached() as client, live.attached(mode="view") as viewer:
        job = run(
            client, "trap 'echo got it; exit 7' INT; echo ready; while :; do sleep 0.02; done"
        )
        assert client.ask("job_output", job=job["id"], wait=20)["end"] == len(b"ready\n")
        for kind, fields in (
            ("job_start", {"command": "true"}),
            ("job_signal", {"job": job["id"], "signal": "INT"}),
        ):
            with pytest.raises(Forbidden):
                viewer.ask(kind, **fields)
        client.ask("job_signal", job=job["id"], signal="INT")
        data, told = whole(client, job["id"])
        assert (data, told["exit"]) == (b"ready\ngot it\n", {"code": 7, "signal": None})
        with pytest.raises(Busy):
            client.ask("job_signal", job=job["id"], signal="INT")
        assert viewer.ask("job_get", job=job["id"])["job"]["state"] == "ended"


def test_there_is_a_bound_and_a_place_becomes_free(live: Live) -> None:
    with live.client() as client:
        jobs = [run(client, "exec sleep 600")["id"] for _ in range(16)]
        with pytest.raises(Busy, match="16 jobs"):
            run(client, "true")
        states = {job["state"] for job in client.ask("job_list")["jobs"]}
        assert states <= {"starting", "running"}
        until(lambda: client.ask("job_get", job=jobs[0])["job"]["pid"], "the first to run")
        client.ask("job_signal", job=jobs[0], signal="KILL")
        assert whole(client, jobs[0])[1]["exit"] == {"code": None, "signal": 9}

        def another() -> dict[str, Any] | None:
            try:
                return run(client, "echo room")
            except Busy:
                return None

        assert whole(client, until(another, "a free place")["id"])[0] == b"room\n"
        client.ask("end", grace=0.1)
        until(lambda: client.ask("state")["activity"] == "ended", "the end")
        listed = client.ask("job_list")["jobs"]
        assert {job["state"] for job in listed} <= {"ended", "gone"}
        with pytest.raises(Ended):
            run(client, "true")


def test_much_output_is_bounded_and_the_gap_is_said(live: Live) -> None:
    with live.client() as client:
        job = run(client, "seq -f %06.0f 1 900000; echo end")["id"]
        until(lambda: client.ask("job_get", job=job)["job"]["output"]["complete"], "its end")
        told = client.ask("job_output", job=job)
        bytes_, oldest = (told["job"]["output"][name] for name in ("bytes", "oldest"))
        assert bytes_ == 900000 * 7 + 4
        assert bytes_ - oldest == 4 << 20
        assert (told["start"], told["lost"]) == (oldest, oldest)
        assert whole(client, job, bytes_ - 11)[0] == b"900000\nend\n"
        assert f"{job_records.PREFIX}{job}" in sealed.files(live.folder)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, BadRequest),
        ({"command": " "}, BadRequest),
        ({"command": "true", "argv": ["true"]}, BadRequest),
        ({"argv": []}, BadRequest),
        ({"argv": ["true", 1]}, BadRequest),
        ({"argv": "true"}, BadRequest),
        ({"command": "a\0b"}, BadRequest),
        ({"command": "true", "cwd": "here"}, BadRequest),
        ({"command": "true", "env": {"A-B": "x"}}, BadRequest),
        ({"command": "true", "env": {"A": 1}}, BadRequest),
        ({"command": "true", "env": ["A=1"]}, BadRequest),
        ({"command": "x" * (256 << 10)}, TooLarge),
        ({"command": "true", "env": {"A": "x" * (512 << 10)}}, TooLarge),
        ({"command": "true", "key": "k" * 300}, TooLarge),
    ],
)
def test_what_cannot_be_a_job_is_refused(
    shared: Live, fields: dict[str, Any], error: type[Exception]
) -> None:
    with shared.client() as client:
        with pytest.raises(error):
            client.ask("job_start", **fields)
        assert client.ask("job_list")["jobs"] == []
        for kind in ("job_get", "job_output"):
            with pytest.raises(NotFound):
                client.ask(kind, job="none")


@pytest.fixture(scope="module")
def shared() -> Iterator[Live]:
    with Live("cat") as made:
        yield made


# -- without processes ----------------------------------------------------------------------------


def a_job(number: int, size: int = 0, *, complete: bool = True) -> Job:
    return Job(
        id=f"{number:016x}", actor="ada", modality="http", key="", argv=("true",), command=None,
        cwd=None, created=float(number), state=State.ENDED, code=0, bytes=size, complete=complete,
    )  # fmt: skip


def test_what_is_dropped_is_old_and_done() -> None:
    jobs = [a_job(0, complete=False), *(a_job(n) for n in range(1, KEPT + 3))]
    gone, emptied = job_records.to_drop(jobs)
    assert [job.created for job in gone] == [1, 2, 3]
    assert emptied == []
    half = KEPT_BYTES // 2
    gone, emptied = job_records.to_drop([a_job(1, half), a_job(2, half), a_job(3, half)])
    assert gone == []
    assert [(job.created, job.oldest) for job in emptied] == [(1, half)]


def test_a_record_comes_back_as_it_was_and_damage_is_left_out(tmp_path: Path) -> None:
    job = a_job(5, 3)
    job_records.save(tmp_path, job, b"abc")
    (tmp_path / "job-broken").write_bytes(b"{")
    (tmp_path / "job-x.new").write_bytes(json.dumps({}).encode())
    assert job_records.load(tmp_path) == [job]
    assert job_records.output(tmp_path, job, 1, 10) == (1, b"bc")
    assert job_records.output(tmp_path, a_job(6), 0, 10) == (0, b"")


def test_the_title_is_one_clean_line() -> None:
    assert a_job(1).title == "true"
    shown = Job(
        id="x", actor="a", modality="m", key="", argv=("sh",), command="make \x1b[31mtest\nrm -r",
        cwd=None, created=0.0,
    )  # fmt: skip
    assert shown.title == "make  [31mtest …"


def process(pid: int, ppid: int, *, sid: int = 10, uid: int = 0, name: str = "bash") -> Process:
    reads = (Thread(pid, "S", 0, 0, (0,), 1),) if name == "bash" else ()
    return Process(
        pid, ppid, pid, sid, "S", name, (name,), f"/bin/{name}", "/", uid, 0,
        (Descriptor(0, "/dev/pts/0"),), 1, (), "", reads,
    )  # fmt: skip


def graph(foreground: int, *processes: Process) -> Graph:
    return Graph(
        processes, foreground, echo=False, canonical=False, icrnl=False, command_pid=10,
        tty="/dev/pts/0",
    )  # fmt: skip


def test_whose_directory_a_job_gets() -> None:
    outer, inner = process(10, 1), process(20, 10)
    vim, root = process(30, 20, name="vim"), process(40, 20, uid=5)
    orphan = process(50, 1, sid=7, name="vim")
    assert shell_of(graph(10, outer)) == 10
    assert shell_of(graph(20, outer, inner)) == 20
    assert shell_of(graph(30, outer, inner, vim)) == 20
    assert shell_of(graph(40, outer, inner, root)) == 10
    assert shell_of(graph(50, outer, orphan)) == 10
    assert shell_of(graph(99, outer)) == 10
