"""The routes, the page's headers, and how a gateway starts, stops and comes back."""

from __future__ import annotations

import base64
import fcntl
import json
import signal
import socket
import stat
import subprocess
import time

import pytest

from gateway_kit import Place, until

SESSIONS = "/api/v1/sessions"


def run(place: Place, command: str, key: str = "") -> None:
    body = {"command": command, "timeout": 10, **({"key": key} if key else {})}
    answer = place.post(f"{SESSIONS}/build/exec", body)
    assert answer.status == 200, answer.body


def test_list_and_info(served: Place) -> None:
    (listed,) = served.get(SESSIONS).json["sessions"]
    info = served.get(f"{SESSIONS}/build").json
    assert listed["session"] == info["session"] == "build"
    assert listed["session_id"] == info["session_id"]
    assert info["command"] == ["bash", "--norc"]


def test_screen_in_three_formats(served: Place) -> None:
    run(served, "printf 'plain \\033[31mred\\033[0m\\n'")
    text = served.get(f"{SESSIONS}/build/screen")
    assert text.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert b"plain red" in text.body
    assert b"\x1b[" in served.get(f"{SESSIONS}/build/screen?format=ansi&scrollback=true").body
    body = served.get(f"{SESSIONS}/build/screen?format=json").json
    assert "plain red" in body["text"]
    assert body["columns"] == 80
    assert set(body["cursor"]) == {"column", "row", "visible"}


def test_state_graph_and_journal(served: Place) -> None:
    run(served, "true", key="journal-1")
    assert "activity" in served.get(f"{SESSIONS}/build/state").json
    assert served.get(f"{SESSIONS}/build/graph").json["processes"]
    records = served.get(f"{SESSIONS}/build/journal?after=0&limit=5").json["records"]
    assert 0 < len(records) <= 5


def test_input_takes_effect_once_per_key(served: Place) -> None:
    first = served.post(f"{SESSIONS}/build/input", {"text": "echo once-$((1+1))\n", "key": "in-1"})
    again = served.post(f"{SESSIONS}/build/input", {"text": "echo once-$((1+1))\n", "key": "in-1"})
    assert (first.json["duplicate"], again.json["duplicate"]) == (False, True)
    assert first.json["order"] == again.json["order"]
    raw = base64.b64encode(b"echo raw-$((1+1))\n").decode()
    assert served.post(f"{SESSIONS}/build/input", {"base64": raw}).status == 200
    screen = f"{SESSIONS}/build/screen?scrollback=true"
    until(lambda: b"\nraw-2" in served.get(screen).body, "the second input's output")
    assert served.get(screen).body.count(b"\nonce-2") == 1


def test_exec_gives_exit_code_and_output(served: Place) -> None:
    body = {"command": "echo out; (exit 7)", "timeout": 10}
    answer = served.post(f"{SESSIONS}/build/exec", body).json
    assert answer["exit_code"] == 7
    assert "out" in answer["output"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("input", {}),
        ("input", {"text": "a", "base64": "YQ=="}),
        ("input", {"text": 5}),
        ("input", {"text": "a", "colour": "red"}),
        ("input", b"{"),
        ("input", b"[]"),
        ("input", b"[" * 100000),
        ("exec", {}),
        ("exec", {"command": "true", "timeout": 0}),
        ("exec", {"command": "true", "timeout": True}),
        ("exec", {"command": "true", "timeout": 1e9}),
        ("end", {"grace": "soon"}),
    ],
)
def test_bodies_that_are_refused(served: Place, path: str, body: object) -> None:
    answer = served.post(f"{SESSIONS}/build/{path}", body)
    assert (answer.status, answer.code) == (400, "bad_request")


@pytest.mark.parametrize(
    "query", ["screen?format=html", "screen?scrollback=1", "journal?after=-1", "journal?limit=x"]
)
def test_queries_that_are_refused(served: Place, query: str) -> None:
    assert served.get(f"{SESSIONS}/build/{query}").code == "bad_request"


def test_a_body_over_the_limit(served: Place) -> None:
    answer = served.post(f"{SESSIONS}/build/input", {"text": "x" * (1 << 20)})
    assert (answer.status, answer.code) == (413, "too_large")


@pytest.mark.parametrize("name", ["UPPER", "a_b", "-a", "a" * 64, "%2e%2e", "a%2f..%2fb", "%00"])
def test_names_that_are_none(served: Place, name: str) -> None:
    answer = served.get(f"{SESSIONS}/{name}")
    assert answer.status in (400, 404)
    assert answer.code in ("bad_name", "not_found")


def test_what_is_not_there(served: Place) -> None:
    assert served.get(f"{SESSIONS}/absent").code == "not_found"
    assert served.get("/api/v1/nothing").code == "not_found"
    assert served.get("/api/v2/sessions").code == "not_found"
    assert served.get("/../../etc/passwd", token=None).status == 404
    assert served.get("/vendor/../../auth.py", token=None).status == 404
    wrong = served.post(SESSIONS, {})
    assert (wrong.status, wrong.code, wrong.headers["Allow"]) == (405, "bad_request", "GET")
    assert served.get(f"{SESSIONS}/build/stream").code == "bad_request"


def test_the_page_is_guarded_and_cached_by_content(served: Place) -> None:
    page = served.get("/", token=None)
    policy = page.headers["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["Referrer-Policy"] == "no-referrer"
    asset = served.get("/vendor/xterm.mjs", token=None)
    assert asset.headers["Content-Type"].startswith("text/javascript")
    again = served.get("/vendor/xterm.mjs", token=None, If_None_Match=asset.headers["ETag"])
    assert (again.status, again.body) == (304, b"")
    assert served.get("/healthz", token=None).headers["X-Content-Type-Options"] == "nosniff"


# Sessions without a sidecar


def test_ended_and_lost_sessions_are_listed(place: Place) -> None:
    ended = place.session("ended", hold=False)
    (ended / "exit.json").write_text(json.dumps({"code": 3, "signal": None}))
    place.session("lost", hold=False)
    place.start()
    listed = {item["session"]: item for item in place.get(SESSIONS).json["sessions"]}
    assert listed["ended"]["state"]["activity"] == "ended"
    assert listed["ended"]["exit"]["code"] == 3
    assert listed["lost"]["state"]["activity"] == "unavailable"
    assert place.get(f"{SESSIONS}/ended/state").json["exit"]["code"] == 3
    assert place.get(f"{SESSIONS}/ended/screen").code == "ended"
    assert place.get(f"{SESSIONS}/lost/screen").code == "unavailable"


def test_end(place: Place) -> None:
    place.session("build")
    place.start()
    assert place.post(f"{SESSIONS}/build/end", {"grace": 1}).status == 200
    until(lambda: place.get(f"{SESSIONS}/build/state").json["activity"] == "ended", "the end")


# Starting, stopping, coming back


def test_the_run_file(served: Place) -> None:
    path = served.state / "gateway.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(served.told()) == {"port", "token", "pid", "url"}
    assert stat.S_IMODE(served.state.stat().st_mode) == 0o700


def test_a_second_gateway_leaves_quietly(served: Place) -> None:
    before = served.told()
    second = subprocess.run(served.command(), capture_output=True, timeout=20, check=False)
    assert second.returncode == 0
    assert b"already" in second.stderr
    assert served.told() == before


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_restarted_gateway_keeps_port_and_token(place: Place, how: signal.Signals) -> None:
    place.session("build")
    place.start()
    sidecar, before = place.sidecar("build"), place.told()
    code = place.stop(how)
    assert code == (0 if how is signal.SIGTERM else -how)
    assert place.sidecar("build") == sidecar, "the sidecar outlives its gateway"
    place.start()
    after = place.told()
    assert (after["port"], after["token"]) == (before["port"], before["token"])
    assert place.sidecar("build") == sidecar
    assert place.get(f"{SESSIONS}/build").status == 200


def test_an_earlier_port_that_is_taken_is_given_up(place: Place) -> None:
    place.start()
    port, token = place.port, place.token
    place.stop()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        place.start()
        assert place.port != port
        assert place.token == token


def test_a_run_file_others_could_read_is_not_believed(place: Place) -> None:
    place.start()
    token = place.token
    place.stop()
    (place.state / "gateway.json").chmod(0o644)
    place.start()
    assert place.token != token


def test_a_taken_port_is_said_in_one_line(place: Place) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        failed = subprocess.run(
            place.command("--port", str(port)), capture_output=True, timeout=20, check=False
        )
    assert failed.returncode == 73
    assert failed.stderr.count(b"\n") == 1
    assert str(port).encode() in failed.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_only_loopback_is_served(place: Place, host: str) -> None:
    failed = subprocess.run(
        place.command("--host", host), capture_output=True, timeout=20, check=False
    )
    assert failed.returncode == 64
    assert b"loopback" in failed.stderr


@pytest.mark.timed
def test_a_stop_is_prompt_with_connections_open(place: Place) -> None:
    place.session("build")
    place.start()
    with socket.create_connection(("127.0.0.1", place.port)):
        began = time.monotonic()
        assert place.stop() == 0
        assert time.monotonic() - began < 5


def test_somebody_asking_for_the_lock_does_not_keep_a_gateway_from_starting(place: Place) -> None:
    lock = place.state / "gateway.lock"
    with lock.open("w") as asked:
        fcntl.flock(asked, fcntl.LOCK_SH)
        gateway = subprocess.Popen(place.command(), stderr=subprocess.PIPE)
        assert gateway.stderr is not None
        with gateway.stderr:
            time.sleep(0.05)
            fcntl.flock(asked, fcntl.LOCK_UN)
            line = gateway.stderr.readline()
            gateway.terminate()
            gateway.wait(10)
    assert b"listening" in line
