"""Attack 35: two people who differ in a byte of their name, or in their UID, are two; in the turn,
the journal, keys, jobs and what is told of who is here. And none of them looks like another."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_sidecar import job_records, outbox, sealed
from holdfast_sidecar.inputs import Inputs
from holdfast_wire.errors import BadRequest, NoTurn, TooLarge
from holdfast_wire.ids import MAX_ACTOR, Actor, actor_of, display
from sidecar_kit import Live

LONG = "system:serviceaccount:a-namespace-with-a-long-name:an-account-with-a-long-name"
PAIRS = [
    ({"actor": f"{LONG}-1"}, {"actor": f"{LONG}-2"}),
    ({"actor": "ana@example.com"}, {"actor": "ana@exam\u200bple.com"}),
    ({"actor": "ana"}, {"actor": "ana\u2060"}),
    ({"actor": "ana", "uid": "u-1"}, {"actor": "ana", "uid": "u-2"}),
    ({"actor": "ana"}, {"actor": "ana", "uid": "u-1"}),
    ({"actor": "\u00e9"}, {"actor": "e\u0301"}),
    ({"actor": "ana"}, {"actor": "\u0430n\u0430"}),
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_names_are_two_people(
    live_bash: Live, one: dict[str, str], other: dict[str, str]
) -> None:
    key = f"k-{os.urandom(4).hex()}"
    with live_bash.attached(**one) as first, live_bash.attached(**other) as second:
        first.ask("take")
        welcome = second.ask("info")
        told = {c["client"]: (c["actor"], c["uid"]) for c in welcome["clients"]}
        assert set(told.values()) == {(who["actor"], who.get("uid", "")) for who in (one, other)}
        holder = (welcome["holder"], welcome["holder_uid"])
        assert holder == (one["actor"], one.get("uid", ""))
        with pytest.raises(NoTurn):
            second.ask("send", text="x")
        asking = second.ask("ask")["asking"]
        assert [(who["actor"], who["uid"]) for who in asking] == [
            (other["actor"], other.get("uid", ""))
        ]
        given = first.ask("release", to=other["actor"], to_uid=other.get("uid", ""))
        assert (given["holder"], given["holder_uid"]) == (other["actor"], other.get("uid", ""))
        first.ask("take")
    with live_bash.client() as asker:
        for who in (one, other):
            said = {"as": {**who, "modality": "http"}}
            asker.ask("take", **said)
            assert asker.ask("send", text="\x15", key=key, **said)["duplicate"] is False
            assert asker.ask("send", text="\x15", key=key, **said)["duplicate"] is True
        records = asker.ask("journal", limit=5000)["records"]
    by = [(r["actor"], r["uid"]) for r in records if r["kind"] == "input" and r["key"] == key]
    assert by == [(who["actor"], who.get("uid", "")) for who in (one, other)]


def test_a_name_is_not_shortened_but_refused(live_bash: Live) -> None:
    with live_bash.client() as asker:
        most = {"actor": "n" * (MAX_ACTOR - 4), "uid": "u" * 4, "modality": "http"}
        asker.ask("take", **{"as": most})
        assert asker.ask("info")["holder"] == most["actor"]
        for name, uid, kind in (
            ("n" * MAX_ACTOR, "u", TooLarge),
            ("\u00e9" * (MAX_ACTOR // 2 + 1), "", TooLarge),
            ("a\nb", "", BadRequest),
            ("a\x9bb", "", BadRequest),
        ):
            with pytest.raises(kind):
                asker.ask("take", **{"as": {"actor": name, "uid": uid, "modality": "http"}})
            with pytest.raises(kind):
                actor_of(name, uid)


def test_a_jobs_key_is_its_actors_alone(live_bash: Live) -> None:
    key = f"k-{os.urandom(4).hex()}"
    with live_bash.client() as asker:
        ids = []
        for who in ({"actor": f"{LONG}-1"}, {"actor": f"{LONG}-2"}, {"actor": LONG, "uid": "u-1"}):
            asked = {"as": {**who, "modality": "http"}, "key": key, "command": "true"}
            told = asker.ask("job_start", **asked)
            assert told["duplicate"] is False
            assert (told["job"]["actor"], told["job"]["uid"]) == (who["actor"], who.get("uid", ""))
            ids.append(told["job"]["id"])
        assert len(set(ids)) == 3


# -- what people see ------------------------------------------------------------------------------

NAMES = st.text(max_size=80) | st.text("ana \u200b\u0430~()", max_size=12)


@given(st.lists(NAMES, min_size=2, max_size=6, unique=True))
def test_no_two_names_look_the_same(names: list[str]) -> None:
    shown = [display(name) for name in names]
    assert len(set(shown)) == len(names)
    assert all(text.isprintable() and len(text) <= 75 for text in shown)
    assert all(display(text) != text or text in names for text in shown)


def test_the_usual_names_are_shown_as_they_are() -> None:
    for name in ("ana", "J\u00f6rg M\u00fcller", "ana@example.com", LONG[:64].rstrip(":-")):
        assert display(name) == name
    shown = [
        display(name) for name in ("ana", "ana\u200b", "\u0430na", "ana (team)", "ana~0123456789")
    ]
    assert len(set(shown)) == len(shown)
    assert all("~" in text for text in shown[1:])


# -- what an earlier version left -----------------------------------------------------------------


def test_an_earlier_versions_outbox_is_read() -> None:
    """A record of it has eight fields, the name as it was cut, and no UID."""
    with tempfile.TemporaryFile() as file:
        line = b"7\t107\t3\t12.5\tana@x\tc1\tcli\t6b\n"
        os.pwrite(file.fileno(), line.ljust(4096, b"\0"), 4096)
        (record,) = outbox.records(file.fileno())
    assert (record.actor, record.order, record.key, record.whole) == (
        Actor("ana@x"),
        7,
        b"k",
        False,
    )


def test_names_of_any_kind_go_through_the_outbox() -> None:
    with tempfile.TemporaryFile() as file:
        box = outbox.Outbox(file.fileno(), 0)
        who = Actor("\u200bana\u0430 \u2028" * 60, "u-1")
        box.put(b"abc")
        box.record(outbox.Record(1, 3, 3, 12.5, who, None, "http", b"k" * 255))
        (record,) = outbox.records(file.fileno())
    assert (record.actor, record.key) == (who, b"k" * 255)


def test_what_an_earlier_version_typed_is_not_typed_again() -> None:
    """Its keys are found by whole names, too; nobody else's are."""
    inputs = Inputs()
    cut = "".join(c for c in f"{LONG}\u200b-1" if c.isprintable())[:64]
    inputs.restore_named(4, cut, b"k")
    assert inputs.seen(Actor(f"{LONG}-1", "u-1"), b"k") == 4
    assert inputs.seen(Actor("ben"), b"k") is None
    assert inputs.take(Actor("ben"), b"k") == 5
    inputs.forget_keys()
    assert inputs.seen(Actor(f"{LONG}-1", "u-1"), b"k") is None


def test_an_earlier_versions_files_are_read(tmp_path: Path) -> None:
    told: dict[str, Any] = {
        "session_id": "uid.1", "epoch": 1, "seq": 5, "order": 2, "created": 1.0, "active": 2.0,
        "holder": "ana", "holder_attached": False, "fork": None, "arrived": False,
    }  # fmt: skip
    (tmp_path / sealed.NAME).write_text(json.dumps(told))
    found = sealed.load(tmp_path)
    assert (found.holder, found.holder_uid) == ("ana", "")
    job = job_records.Job("j", "ana", "cli", "k", ("true",), None, None, 1.0)
    job_records.save(tmp_path, job)
    path = tmp_path / "job-j"
    body = json.loads(path.read_text())
    del body["uid"]
    path.write_text(json.dumps(body) + "\n")
    assert [one.by for one in job_records.load(tmp_path)] == [Actor("ana")]
