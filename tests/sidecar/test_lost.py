"""What a sidecar does for a session whose memory follows it, at both ends: real sidecars, holds and
commands."""

from __future__ import annotations

import signal

import pytest

from api_kit import Fault, Pod
from gateway_kit import until

from .moving import DEAF, TARGET, begin, carry, is_write, kill, once, sealed
from .test_keep import until_closed

RELEASE = "holdfast.dev/released"


def is_lost(pod: Pod) -> None:
    """As the operator reads it: released, and no word of an end."""
    found, now = pod.api.get(), pod.api.notes()
    assert found["spec"]["holderIdentity"] == ""
    assert (now["epoch"], now["released"]) == ("3", "3")
    assert not {"exit", "start-error", "suspended", "offer"} & set(now)


def test_lost_it_gives_the_lease_back_without_an_end(source: Pod) -> None:
    begin(source)
    with source.client() as client:
        client.attach()
        assert source.ask_hold("freeze")["ok"]
        answer = source.agent("lost")
        assert answer["ok"], answer
        is_lost(source)
        assert "ended" not in until_closed(client)
    source.hold_goes()
    assert source.sidecar_goes() == 0
    is_lost(source)


def test_lost_though_the_api_is_slow_and_the_command_dies(source: Pod) -> None:
    """It is as lost as before: what it died of is that."""
    begin(source, DEAF)
    assert source.ask_hold("freeze")["ok"]
    source.api.choose = once(
        lambda r: is_write(r) and RELEASE in r.body["metadata"]["annotations"],
        Fault(code=500, before=lambda: source.ask_hold("end 0")),
    )
    answer = source.agent("lost")
    assert answer["ok"], answer
    is_lost(source)


def test_what_has_ended_is_not_lost(source: Pod) -> None:
    source.start("sh", "-c", "exit 3")
    source.note("exit")
    assert source.agent("lost")["code"] == "ended"
    assert source.exit_note()["code"] == 3


@pytest.mark.parametrize("killed", [False, True])
def test_what_follows_stays_until_the_agent_ends_it(source: Pod, target: Pod, killed: bool) -> None:
    begin(source)
    assert source.agent("park", to=TARGET, follows=True)["ok"]
    assert source.ask_hold("freeze")["ok"]
    carry(source, target, sealed(source)["files"])
    assert target.agent("commit")["ok"]
    if killed:
        kill(source)
        source.start_sidecar()
    source.said("incarnation (3) is over")
    assert source.agent("unpark")["code"] == "superseded"
    status = source.status()
    assert not status["exited"]
    assert status["frozen"]
    assert source.ask_hold("end 0")["ok"]  # the agent kills it
    assert source.hold_goes() == 128 + signal.SIGKILL
    assert source.sidecar_goes() == 0


def test_what_was_to_follow_and_stays_after_all_is_as_ever(source: Pod) -> None:
    begin(source)
    assert source.agent("park", to=TARGET, follows=True)["ok"]
    assert source.ask_hold("freeze")["ok"]
    sealed(source)
    assert source.agent("unpark")["ok"]
    assert source.ask_hold("thaw")["ok"]
    source.api.annotate(epoch="4")
    assert source.hold_goes() == 128 + signal.SIGKILL
    until(lambda: source.sidecar_goes() == 0, "the sidecar's end")


def test_flags_are_flags(source: Pod) -> None:
    begin(source)
    assert source.agent("park", to=TARGET, follows="yes")["code"] == "bad_request"
