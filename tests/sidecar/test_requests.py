"""Requests and refusals, over the socket of a real session."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from gateway_kit import until
from holdfast_wire import errors
from holdfast_wire.frames import HEADER, Attach, Error, Input, Output, Resize, encode
from sidecar_kit import Client, Live


def prompt(client: Client) -> None:
    until(lambda: client.ask("state")["activity"] == "prompt", "the prompt")


def works(live: Live) -> None:
    with live.attached() as client:
        client.typed(b"echo works-$((6*7))\r")
        client.until(b"works-42")


# -- input ----------------------------------------------------------------------------------------


def test_inputs_are_numbered_acknowledged_and_recorded(live_bash: Live) -> None:
    with live_bash.attached(actor="ana", modality="cli") as client:
        client.typed(b"true\r", number=41)
        client.typed(b"false\r", number=42)
        while len(client.acks) < 2:
            client.next()
        assert [(a.number, a.order, int(a.status)) for a in client.acks] == [(41, 1, 0), (42, 2, 0)]
        records = client.ask("journal")["records"]
    inputs = [r for r in records if r["kind"] == "input"]
    assert [(r["order"], r["actor"], r["modality"], r["bytes"]) for r in inputs] == [
        (1, "ana", "cli", 5),
        (2, "ana", "cli", 6),
    ]
    assert "true" not in (live_bash.folder / "journal").read_text()


def test_a_key_takes_effect_once_even_across_a_killed_sidecar(live_bash: Live) -> None:
    with live_bash.client() as client:
        prompt(client)
        first = client.ask("send", text="echo once-$((1+1))\r", key="k1")
        again = client.ask("send", text="echo once-$((1+1))\r", key="k1")
    assert (first["duplicate"], again["duplicate"]) == (False, True)
    assert first["order"] == again["order"]
    live_bash.kill_sidecar()
    live_bash.start_sidecar()
    with live_bash.client() as client:
        later = client.ask("send", text="echo once-$((1+1))\r", key="k1")
        assert later == {"order": first["order"], "duplicate": True}
        other = client.ask("send", text="echo then-$((1+1))\r", key="k2")
        assert other["order"] == first["order"] + 1
        until(lambda: "then-2" in client.ask("screen")["text"], "the other command")
        assert client.ask("screen")["text"].count("once-2") == 1


def test_a_viewer_neither_types_nor_resizes(live_bash: Live) -> None:
    """Attack 11: dropped, and journaled; once, or the journal would be his to fill."""
    with live_bash.attached(mode="view", columns=33, rows=11) as viewer:
        viewer.typed(b"echo no\r", number=9)
        viewer.typed(b"echo no\r", number=10)
        while len(viewer.errors) < 2:
            viewer.next()
        assert [error.ref for error in viewer.errors] == [9, 10]
        assert isinstance(viewer.errors[0].exception(), errors.Forbidden)
        records = viewer.ask("journal")["records"]
        assert [one["kind"] for one in records].count("refused") == 1
        viewer.send(Resize(0, 20, 5))
        info = viewer.ask("info")
        assert (info["columns"], info["rows"]) == (80, 24)


def test_the_size_is_the_leads(live_bash: Live) -> None:
    with live_bash.attached(columns=100, rows=30) as first:
        with live_bash.attached(columns=50, rows=20) as second:
            assert second.size == (100, 30)
            second.typed(b"x")
            while second.size != (50, 20):
                second.next()
            while first.size != (50, 20):
                first.next()
            first.send(Resize(0, 120, 40))
            assert first.ask("info")["columns"] == 50, "it does not lead now"
        while first.size != (120, 40):
            first.next()


def test_another_actor_is_refused_until_it_takes_the_turn(live_bash: Live) -> None:
    with live_bash.attached(actor="ana") as ana, live_bash.attached(actor="ben") as ben:
        ana.typed(b":\r")
        ben.typed(b"echo ben\r", number=3)
        while not ben.errors:
            ben.next()
        assert isinstance(ben.errors[0].exception(), errors.NoTurn)
        assert ben.ask("take")["holder"] == "ben"
        ben.typed(b"echo hello-$((3*3))\r", number=4)
        ben.until(b"hello-9")
        ana.until_news("clients", holder="ben")


def test_the_turn_is_asked_for_and_given(live_bash: Live) -> None:
    with (
        live_bash.attached(actor="ana", modality="ssh") as ana,
        live_bash.attached(actor="ben", modality="browser") as ben,
    ):
        ana.typed(b":\r")
        by_ben = [{"actor": "ben", "uid": "", "shown": "ben"}]
        asked = ben.ask("ask")
        assert (asked["holder"], asked["lead"], asked["asking"]) == ("ana", "c1", by_ben)
        ana.until_news("clients", asking=by_ben)
        with pytest.raises(errors.BadRequest):
            ana.ask("release", to="cleo")
        assert ana.ask("release", to="ben")["holder"] == "ben"
        ben.until_news("clients", holder="ben", asking=[])
        ana.ask("take")
        passed = [
            (one["kind"], one["actor"], one["modality"], one.get("to"))
            for one in ana.ask("journal")["records"]
            if one["kind"] in ("ask", "release", "take")
        ]
    assert passed == [
        ("ask", "ben", "browser", None), ("release", "ana", "ssh", "ben"),
        ("take", "ana", "ssh", None),
    ]  # fmt: skip


def test_answers_of_terminals_are_nobodys_input(live_bash: Live) -> None:
    with live_bash.attached() as client:
        client.typed(b"\x1b[?62;22c", number=1)
        client.typed(b"\x1b]11;rgb:0000/0000/0000\x1b\\", number=2)
        while len(client.acks) < 2:
            client.next()
        assert not [r for r in client.ask("journal")["records"] if r["kind"] == "input"]
    works(live_bash)


@pytest.mark.parametrize("attached", [False, True])
def test_questions_to_the_terminal_are_answered_once(attached: bool) -> None:
    script = (
        "import sys, tty, os, time\n"
        "tty.setraw(0)\n"
        "time.sleep(1)\n"
        "os.write(1, b'\\x1b[5;7H\\x1b[6n')\n"
        "first = os.read(0, 100)\n"
        "time.sleep(0.5); os.set_blocking(0, False)\n"
        "try: first += os.read(0, 100)\n"
        "except BlockingIOError: pass\n"
        "print(repr(first), flush=True); time.sleep(60)\n"
    )
    with Live(sys.executable, "-c", script) as live, live.client() as client:
        watcher = live.attached() if attached else None
        until(lambda: "b'" in client.ask("screen")["text"], "an answer")
        assert r"b'\x1b[5;7R'" in client.ask("screen")["text"]
        if watcher is not None:
            watcher.close()


# -- exec -----------------------------------------------------------------------------------------


def test_exec_runs_in_the_live_shell(live_bash: Live) -> None:
    with live_bash.client() as client:
        prompt(client)
        first = client.ask("exec", command="cd /usr && echo 'it''s here'; (exit 7)")
        assert (first["exit_code"], first["output"]) == (7, "its here")
        assert client.ask("exec", command="pwd")["output"] == "/usr"
        lines = client.ask("exec", command="for i in 1 2 3; do\n  echo line $i\ndone")
        assert lines["output"] == "line 1\nline 2\nline 3"
        assert client.ask("exec", command="if then")["exit_code"] != 0
        again = [client.ask("exec", command="echo $RANDOM", key="r") for _ in range(2)]
        assert again[0]["output"] == again[1]["output"]
        assert [a["duplicate"] for a in again] == [False, True]


def test_exec_does_not_answer_other_peoples_questions() -> None:
    with Live(sys.executable, "-c", "input('name? ')") as live, live.client() as client:
        until(lambda: client.ask("state")["activity"] == "reading", "it to ask")
        with pytest.raises(errors.Busy, match="waiting for input"):
            client.ask("exec", command="echo no")
        assert client.ask("state")["activity"] == "reading"


def test_exec_that_takes_longer_goes_on(live_bash: Live) -> None:
    with live_bash.client() as client:
        prompt(client)
        slow = {"command": "sleep 1; echo done-$((2+2))", "key": "slow"}
        with pytest.raises(errors.StillRunning, match="still running"):
            client.ask("exec", **slow, timeout=0.3)
        with pytest.raises(errors.Busy, match="another command"):
            client.ask("exec", command="echo next", key="next")
        assert client.ask("exec", **slow)["output"] == "done-4", "the same run's result"
        prompt(client)
        assert client.ask("exec", command="echo next", key="next")["output"] == "next"


def test_large_commands_neither_erase_the_journal_nor_make_it_unreadable(live_bash: Live) -> None:
    """Attack 36: 5 commands of 256 KiB made an answer that no frame holds, 33 erased the rest."""
    large = ": " + "x" * (250 << 10)
    with live_bash.client() as client:
        prompt(client)
        client.ask("exec", command="echo before")
        for _ in range(34):
            prompt(client)
            assert client.ask("exec", command=large, timeout=60)["exit_code"] == 0
        found: list[dict[str, Any]] = []
        after: int | None = 0
        while after is not None:
            page = client.ask("journal", after=after, limit=50)
            found += page["records"]
            after = page.get("next")
        commands = [record for record in found if record["kind"] == "exec"]
        assert commands[0]["command"] == "echo before"
        assert [one["command_bytes"] for one in commands[1:]] == [len(large)] * 34
        assert [one["number"] for one in found] == list(range(1, page["count"] + 1))
        newest = client.ask("journal", limit=3)["records"]
        assert newest == found[-3:]


# -- the end --------------------------------------------------------------------------------------


def test_the_end_is_told_and_the_screen_stays(live_bash: Live) -> None:
    with live_bash.attached() as client:
        client.typed(b"echo good; exit 3\r")
        news = client.until_news("ended")
        assert news["exit"] == {"code": 3, "signal": None}
        while client.seq != news["seq"]:
            client.next()
        assert "good" in client.ask("screen")["text"]
        assert client.ask("state")["activity"] == "ended"
        client.typed(b"more\r", number=5)
        while not client.errors:
            client.next()
        assert isinstance(client.errors[0].exception(), errors.Ended)


def test_freeze_and_thaw(live_bash: Live) -> None:
    with live_bash.client() as client:
        assert client.ask("freeze")["frozen"]
        until(lambda: client.ask("state")["activity"] == "frozen", "the freeze")
        client.ask("thaw")
        until(lambda: client.ask("state")["activity"] == "prompt", "the thaw")
    works(live_bash)


# -- bad input ------------------------------------------------------------------------------------

BAD_FRAMES = {
    "noise": b"\xff" * 64,
    "another version": HEADER.pack(9, 1, 0, 0),
    "reserved bits": HEADER.pack(1, 1, 7, 0),
    "too large": HEADER.pack(1, 5, 0, 1 << 30),
    "unknown type": HEADER.pack(1, 77, 0, 0),
    "JSON that is none": HEADER.pack(1, 1, 0, 3) + b"{{{",
    "a server's frame": encode(Output(0, b"x")),
    "a key longer than its frame": HEADER.pack(1, 5, 0, 9) + bytes(8) + b"\xff",
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_bad_frames_end_their_own_connection_only(live_bash: Live, name: str) -> None:
    with live_bash.attached() as bystander, live_bash.client() as bad:
        bad.sock.sendall(BAD_FRAMES[name])
        frame = bad.next()
        assert isinstance(frame, Error)
        assert frame.exception().code in ("bad_request", "too_large", "unsupported")
        with pytest.raises(ConnectionResetError):
            bad.next()
        bystander.typed(b"echo fine-$((5*5))\r")
        bystander.until(b"fine-25")


@pytest.mark.parametrize(("columns", "rows"), [(0, 0), (100_000, 10), (80, 0), (1, 24), (-3, 5)])
def test_impossible_sizes(live_bash: Live, columns: int, rows: int) -> None:
    with live_bash.client() as client:
        with pytest.raises(errors.BadRequest, match="cannot be"):
            client.attach(columns=columns, rows=rows)
        client.attach()
        if 0 <= columns < 65536:
            client.send(Resize(0, columns, rows))
            while not client.errors:
                client.next()
            assert isinstance(client.errors[-1].exception(), errors.BadRequest)
    works(live_bash)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("nonsense", {}),
        ("screen", {"format": "pdf"}),
        ("send", {}),
        ("send", {"base64": "!!"}),
        ("send", {"text": 7}),
        ("exec", {"command": "  "}),
        ("exec", {"command": "x", "timeout": "soon"}),
        ("signal", {"signal": "NOPE"}),
        ("end", {"grace": -1}),
        ("send", {"text": "x", "key": "k" * 300}),
    ],
)
def test_bad_requests(live_bash: Live, kind: str, fields: dict[str, object]) -> None:
    with live_bash.client() as client, pytest.raises(errors.Permanent):
        client.ask(kind, **fields)


def test_bad_attaches(live_bash: Live) -> None:
    for body in ({}, {"columns": "80", "rows": 24}, {"columns": 80, "rows": 24, "mode": "own"}):
        with live_bash.client() as client:
            client.send(Attach(body))
            frame = client.next()
            assert isinstance(frame, Error)
            assert isinstance(frame.exception(), errors.BadRequest)
    with live_bash.client() as client:
        client.send(Input(1, b"", b"x"))
        frame = client.next()
        assert isinstance(frame, Error)
        assert "attach" in frame.exception().message


def test_invalid_utf8_goes_through(live_bash: Live) -> None:
    with live_bash.attached() as client:
        client.typed(b"printf '\\377\\376ok\\n'\r")
        client.until(b"\xff\xfeok")
        assert "ok" in client.ask("screen")["text"]


def test_a_program_that_does_not_read_is_not_fed_for_ever() -> None:
    with Live("sh", "-c", "stty raw -echo; sleep 600") as live, live.attached() as client:
        for number in range(1, 40):
            client.typed(b"y" * 60_000, number=number)
        while not client.errors:
            client.next()
        assert isinstance(client.errors[0].exception(), errors.Busy)
        assert live.rss_mib() < 100
        for _ in range(2):
            with pytest.raises(errors.Busy):
                client.ask("send", text="y" * 60_000, key="refused")
