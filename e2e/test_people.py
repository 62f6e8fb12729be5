"""Who may do what on a real cluster, as people: attacks 35, 37, 43 and 44."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Final

import aiohttp
import pytest
import yaml

from e2e.guests import NAMESPACE, Guests
from e2e.lab import OPERATOR_NAMESPACE, KubectlError, Lab, until
from holdfast_wire.rights import Right, path_of
from ssh_kit import new_key, public

GROUP: Final = "/apis/subresources.holdfast.dev/v1alpha1"
# What each asks for, by the path below a session: method, path of the gateway, right.
ACTS: Final[dict[str, tuple[str, str, Right, dict[str, Any] | None]]] = {
    "session": ("GET", "", Right.OBSERVE, None),
    "screen": ("GET", "screen", Right.OBSERVE, None),
    "state": ("GET", "state", Right.OBSERVE, None),
    "graph": ("GET", "graph", Right.OBSERVE, None),
    "journal": ("GET", "journal", Right.OBSERVE, None),
    "jobs": ("GET", "jobs", Right.OBSERVE, None),
    "input": ("POST", "input", Right.TYPE, {"text": "\x15"}),
    "exec": ("POST", "exec", Right.RUN, {"command": "true"}),
    "job": ("POST", "jobs", Right.RUN, {"command": "true"}),
    "signal": ("POST", "jobs/none/signal", Right.INTERRUPT, {"signal": "TERM"}),
    "wake": ("POST", "wake", Right.WAKE, {}),
    "end": ("POST", "end", Right.MODERATE, {}),
}
HAVE: Final = {
    "wanda": {Right.OBSERVE, Right.RUN, Right.TYPE, Right.INTERRUPT, Right.WAKE},
    "otto": {Right.OBSERVE},
    "vera": set[Right](),
    "sven": set[Right](),
}


async def at_the_gateway(guests: Guests, who: str, session: str, act: str) -> bool:
    """Whether the right was there; what came of it is another matter."""
    method, below, _, body = ACTS[act]
    url = f"{guests.base(session)}/{below}".rstrip("/")
    headers = {"Authorization": f"Bearer {guests[who].token}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.request(method, url, json=body, ssl=guests.tls) as answer,
    ):
        assert answer.status != 401
        return answer.status != 403


def by_the_api_server(lab: Lab, guests: Guests, who: str, session: str, act: str) -> bool:
    method, below, right, body = ACTS[act]
    path = f"{GROUP}/namespaces/{NAMESPACE}/sessions/{session}/{path_of(right, below)}"
    words = ["get", "--raw", path]
    if method == "POST":
        sent = guests.folder / "body.json"
        sent.write_text(json.dumps(body))
        words = ["create", "--raw", path, "-f", str(sent)]
    try:
        lab.kubectl(f"--kubeconfig={guests[who].kubeconfig}", *words)
    except KubectlError as error:
        return "Forbidden" not in str(error) and "forbidden" not in str(error)
    return True


@pytest.mark.timeout(240)
@pytest.mark.attacks(43)
async def test_both_doors_give_the_same_answers(lab: Lab, guests: Guests) -> None:
    session = guests.reached(lab.session("doors", "bash", "--norc")).name
    wrong = []
    for who, rights in HAVE.items():
        for act, (_, _, right, _) in ACTS.items():
            allowed = right in rights
            answers = {
                "gateway": await at_the_gateway(guests, who, session, act),
                "api server": by_the_api_server(lab, guests, who, session, act),
            }
            wrong += [(who, act, door) for door, found in answers.items() if found != allowed]
    assert wrong == []
    assert lab.get("session", session)["status"]["phase"] == "Running", "nobody ended it"


@pytest.mark.attacks(37)
async def test_view_reads_no_terminal(lab: Lab, guests: Guests) -> None:
    """Kubernetes' own `view`, which many have: it sees that there is a session."""
    session = guests.reached(lab.session("viewed", "bash", "--norc")).name
    config = f"--kubeconfig={guests['vera'].kubeconfig}"
    assert session in lab.kubectl(config, "get", "sessions", "-o", "name")
    for act in ("session", "screen", "state", "graph", "journal", "jobs"):
        assert not await at_the_gateway(guests, "vera", session, act), act
        assert not by_the_api_server(lab, guests, "vera", session, act), act
    headers = {"Authorization": f"Bearer {guests['vera'].token}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await http.ws_connect(f"{guests.base(session)}/stream", ssl=guests.tls)
    assert refused.value.status == 403


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.attacks(37)
async def test_to_look_wakes_nothing(lab: Lab, guests: Guests) -> None:
    """otto may look and not wake; wanda may, and what a person suspended she wakes by name."""
    session = guests.reached(lab.session("resting", "bash", "--norc"))
    lab.holdfast("suspend", session.name, timeout=120)
    session.await_phase("Suspended")
    for who in ("otto", "wanda"):
        headers = {"Authorization": f"Bearer {guests[who].token}"}
        async with aiohttp.ClientSession(headers=headers) as http:
            for below in ("screen", "state", "journal", "stream"):
                more = {"Accept": "text/event-stream"} if below == "stream" else {}
                url = f"{guests.base(session.name)}/{below}"
                async with http.get(url, headers=more, ssl=guests.tls) as answer:
                    told = json.loads(await answer.text())["error"]
                    assert (answer.status, told["code"]) == (409, "suspended"), (who, below)
                    assert ("may not create sessions/wake" in told["message"]) is (who == "otto")
    assert not await at_the_gateway(guests, "otto", session.name, "wake")
    await asyncio.sleep(3.0)
    assert session.status["phase"] == "Suspended", "somebody only looked"
    assert await at_the_gateway(guests, "wanda", session.name, "wake")
    session.await_phase("Running", 120)


@pytest.mark.attacks(35)
async def test_two_names_are_two_people(lab: Lab, guests: Guests) -> None:
    """Two accounts whose names are the same for longer than 64 characters."""
    session = guests.reached(lab.session("twins", "bash", "--norc")).name
    names = [f"an-account-with-a-name-that-is-rather-long-{n}" for n in (1, 2)]
    tokens = []
    try:
        for name in names:
            lab.kubectl("create", "serviceaccount", name)
            account = f"--serviceaccount={NAMESPACE}:{name}"
            lab.kubectl("create", "rolebinding", name, "--clusterrole=holdfast-user", account)
            made = lab.kubectl("create", "token", name, "--audience=holdfast", "--duration=1h")
            tokens.append(made.strip())
        url = guests.base(session)
        async with aiohttp.ClientSession() as http:
            for token in tokens:
                headers = {"Authorization": f"Bearer {token}"}
                sent: dict[str, Any] = {
                    "json": {"text": "\x15", "key": "the-same"},
                    "ssl": guests.tls,
                }
                async with http.post(f"{url}/input", headers=headers, **sent) as answer:
                    told = await answer.json()
                    assert (answer.status, told["duplicate"]) == (200, False), told
            async with http.get(f"{url}/journal", headers=headers, ssl=guests.tls) as answer:
                told = await answer.json()
    finally:
        for name in names:
            lab.kubectl("delete", "serviceaccount,rolebinding", name, "--ignore-not-found")
    typed = [one for one in told["records"] if one["kind"] == "input" and one["key"] == "the-same"]
    accounts = [f"system:serviceaccount:{NAMESPACE}:{name}" for name in names]
    assert [one["actor"] for one in typed] == accounts
    assert len({one["uid"] for one in typed} - {""}) == 2
    assert len({told["shown"][account] for account in accounts}) == 2


@pytest.mark.timeout(240)
@pytest.mark.attacks(44)
def test_no_key_is_one_of_kubernetes_own(lab: Lab, guests: Guests) -> None:
    """Lines that would make a key an administrator let nobody in, and the log says why."""
    look = ("secret", "holdfast-gateway-ssh-keys", "-n", OPERATOR_NAMESPACE)
    before = yaml.safe_load(lab.kubectl("get", *look, "-o", "yaml"))["data"]["guests"]
    own = public(new_key(guests.folder / "root"))
    line = f'user="root",groups="system:masters" {own}\nuser="system:admin" {own}\n'

    def put(patch: dict[str, Any]) -> None:
        lab.kubectl("patch", *look, "--type=merge", "-p", json.dumps(patch))
        pods = ("-l", "app.kubernetes.io/component=gateway")
        lab.kubectl("annotate", "pods", "-n", OPERATOR_NAMESPACE, *pods,
                    f"people={time.time()}", "--overwrite")  # fmt: skip

    def refused() -> bool:
        done = guests.ssh.run("root", guests.ssh.at("none"), "true")  # by which the keys are read
        assert done.returncode == 255
        pods = ("-l", "app.kubernetes.io/component=gateway", "--tail=-1")
        logs = lab.kubectl("logs", "-n", OPERATOR_NAMESPACE, *pods)
        return "ssh_key_refused" in logs and "Kubernetes' own" in logs

    put({"stringData": {"masters": line}})
    try:
        until(refused, "the line is refused", 150, 1.0)
    finally:
        put({"data": {"masters": None, "guests": before}})
