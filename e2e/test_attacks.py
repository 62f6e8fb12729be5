"""Attacks on the gateway of a real cluster, by somebody who knows its address and may know a token.
Numbers are those of docs/gateway.md; what is not here has a test without a cluster, named there."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
import ssl
import subprocess
import time
from collections.abc import Iterator
from typing import Any, Final

import aiohttp
import pytest
import yaml
from yarl import URL

from client_kit import Screen
from e2e.balancer import GATEWAYS, replicas
from e2e.cluster.places import KUBECONFIG, SHARED
from e2e.guests import ENV, NAME, NAMESPACE, Guests
from e2e.lab import OPERATOR_NAMESPACE, KubectlError, Lab, until
from e2e.movers import shared
from events_kit import viewing
from holdfast_kube.credentials import from_kubeconfig
from holdfast_wire.errors import HoldfastError, NoTurn
from holdfast_wire.frames import Ack, Attach, Decoder, Error, Input, encode

PATIENCE: Final = 60.0
FRONT: Final = 8444
# The API server itself believes a token for ten seconds after it was revoked.
REVOKED_SECONDS: Final = 10.0 + 5.0
PATH: Final = f"/api/v1/namespaces/{NAMESPACE}/sessions"
CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Answers:
    def __init__(self, guests: Guests, http: aiohttp.ClientSession) -> None:
        self._guests, self._http = guests, http

    async def status(self, path: str, token: str = "", method: str = "GET", **headers: str) -> int:
        bearer = {"Authorization": f"Bearer {token}"} if token else {}
        sent = {name.replace("_", "-"): value for name, value in headers.items()} | bearer
        url = f"{self._guests.url}{path}"
        async with self._http.request(
            method, url, headers=sent, ssl=self._guests.tls, allow_redirects=False
        ) as answer:
            return answer.status

    async def upgrade(self, path: str, origin: str | None, *protocols: str) -> int:
        try:
            async with self._http.ws_connect(
                f"{self._guests.url}{path}", origin=origin, protocols=protocols,
                ssl=self._guests.tls,
            ):  # fmt: skip
                return 101
        except aiohttp.WSServerHandshakeError as error:
            return error.status


@pytest.mark.attacks(1, 2, 3, 4, 6, 8, 12)
@pytest.mark.timeout(120)
async def test_at_the_door(lab: Lab, guests: Guests) -> None:
    session = guests.reached(lab.session("target", "bash", "--norc"))
    one, own = f"{PATH}/{session.name}", guests["wanda"].token
    stream, page = f"{one}/stream", f"bearer.{own}"
    async with aiohttp.ClientSession() as http:
        ask = Answers(guests, http)
        assert await ask.status(f"{one}/state", own) == 200
        # 1: another site's page, or nobody says whose; with a token that is good.
        assert await ask.upgrade(stream, "https://evil.example", "holdfast.v1", page) == 403
        assert await ask.upgrade(stream, None, "holdfast.v1", page) == 403
        assert await ask.status(f"{one}/state", own, Origin="https://evil.example") == 403
        assert await ask.upgrade(stream, guests.url, "holdfast.v1", page) == 101
        # 2: before the upgrade, and without.
        assert await ask.upgrade(stream, guests.url, "holdfast.v1") == 401
        assert await ask.upgrade(stream, None) == 401
        # 3: in a URL, where it would be logged.
        assert await ask.status(f"{one}/state?token={own}") == 400
        assert await ask.status(f"{one}/state?access_token={own}", own) == 400
        # 4: a token for the API server, of somebody who may.
        other = yaml.safe_load(guests["wanda"].kubeconfig.read_text())["users"][0]["user"]["token"]
        for path in (f"{one}/state", stream):
            assert await ask.status(path, other) == 401, path
        assert await ask.status("/mcp", other, method="POST") == 401
        assert await ask.upgrade(stream, guests.url, "holdfast.v1", f"bearer.{other}") == 401
        # 6: a user's name in a header, at the door for people.
        forged = {"X_Remote_User": guests["wanda"].actor, "X_Forwarded_User": guests["wanda"].actor}
        assert await ask.status(f"{one}/state", **forged) == 401
        assert await ask.status(f"{one}/state", guests["sven"].token, **forged) == 403
        # 8: nothing is sent elsewhere, and 12: no name is a path, an option or a command.
        odd = ("..", "%2e%2e", "-oProxyCommand=id", "a;id", "$(id)", "a%0aid", "%00", "x" * 300)
        for name in odd:
            assert await ask.status(f"{PATH}/{name}/state", own) in (400, 403, 404), name
        assert await ask.status(f"{PATH}//{session.name}/state", own) in (400, 404)
    for name in ("a.b.c", "../up", "Build", "%h"):  # what OpenSSH itself lets through
        done = await asyncio.to_thread(guests.ssh.run, "wanda", "-l", name, guests.ssh.host, "true")
        assert done.returncode == 64, done
    logs = lab.kubectl("logs", "-n", OPERATOR_NAMESPACE, *GATEWAYS, "--tail=-1", "--prefix")
    assert "client_attached" in logs
    assert own not in logs
    assert own.rsplit(".")[-1] not in logs
    assert other not in logs


@pytest.mark.attacks(6)
async def test_the_door_of_the_api_server(lab: Lab, guests: Guests) -> None:
    """With no certificate, and with one that the cluster's own CA gave to an administrator."""
    config = yaml.safe_load(KUBECONFIG.read_text())
    found = from_kubeconfig(config, KUBECONFIG.parent)
    strange, admin = _trusting(guests), _trusting(guests)
    assert found.certificate is not None
    assert found.key is not None
    pair = guests.folder / "admin.pem"
    pair.write_text(f"{found.certificate}\n{found.key}")
    admin.load_cert_chain(pair)
    pair.unlink()
    forged = {"X-Remote-User": "system:admin", "X-Remote-Group": "system:masters"}
    url = f"https://{replicas(lab)[0]['status']['podIP']}:{FRONT}/apis"
    for context in (strange, admin):
        async with aiohttp.ClientSession() as http:
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await http.get(url, headers=forged, ssl=context, server_hostname=NAME)


@pytest.mark.attacks(8)
async def test_nothing_behind_the_api_server_sends_it_elsewhere(lab: Lab, guests: Guests) -> None:
    """It would follow, with its own credentials."""
    session = guests.reached(lab.session("front", "bash", "--norc"))
    config = yaml.safe_load(guests["wanda"].kubeconfig.read_text())
    server = config["clusters"][0]["cluster"]
    trust = ssl.create_default_context(cadata=_authority(server))
    bearer = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
    group = "/apis/subresources.holdfast.dev/v1alpha1"
    one = f"{group}/namespaces/{NAMESPACE}/sessions/{session.name}"
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
    below = ("/observe/state", "/observe/state/", "//state", "//evil.example/state",
             "/observe/stream", "/%2e%2e/state", "/observe/state?url=https://evil.example/",
             "/")  # fmt: skip
    once = aiohttp.TCPConnector(force_close=True)  # after an upgrade the other end closes
    async with aiohttp.ClientSession(headers=bearer, connector=once) as http:
        seen = {}
        for path in (*(one + rest for rest in below), group + "/", f"{group}//evil.example/"):
            for method, more in (("GET", {}), ("GET", upgrade), ("POST", {})):
                async with http.request(
                    method, URL(server["server"] + path, encoded=True), headers=more, ssl=trust,
                    allow_redirects=False,
                ) as answer:  # fmt: skip
                    seen[path] = answer.status
                    assert not 300 <= answer.status < 400, (method, path)
                    assert "Location" not in answer.headers, (method, path)
        async with http.get(server["server"] + one + "/observe/state", ssl=trust) as answer:
            assert answer.status == 200, await answer.text()


def _authority(server: dict[str, str]) -> str:
    if "certificate-authority-data" in server:
        return base64.b64decode(server["certificate-authority-data"]).decode()
    return (KUBECONFIG.parent / server["certificate-authority"]).read_text()


@pytest.mark.attacks(7)
@pytest.mark.timeout(300)
def test_a_cluster_with_one_authority_for_all_is_not_served(lab: Lab, guests: Guests) -> None:
    """Whoever has a client's certificate could then name himself anybody."""
    published = ("configmap", "extension-apiserver-authentication", "-n", "kube-system")
    data = json.loads(lab.kubectl("get", *published, "-o", "json"))["data"]
    own, theirs = "requestheader-client-ca-file", "client-ca-file"

    def publish(clients: str) -> None:
        patch = json.dumps({"data": {theirs: clients}})
        lab.kubectl("patch", *published, "--type=merge", "-p", patch)
        lab.kubectl("delete", "pods", "-n", OPERATOR_NAMESPACE, *GATEWAYS)

    def refused() -> bool:
        pods = lab.get("pods", "-n", OPERATOR_NAMESPACE, *GATEWAYS)["items"]
        return len(pods) == 2 and all(_failed(pod) for pod in pods)

    publish(data[theirs] + data[own])
    try:
        until(refused, "no gateway starts", 120)

        def said() -> bool:
            # A container that has just been replaced once more has no log for a moment.
            return "have the same CA" in lab.kubectl(
                "logs", "-n", OPERATOR_NAMESPACE, *GATEWAYS, "--previous"
            )

        until(said, "they say why", 60)
        assert replicas(lab) == []
        with pytest.raises(KubectlError):
            lab.kubectl("get", "--raw", "/apis/subresources.holdfast.dev/v1alpha1")
    finally:
        publish(data[theirs])
        until(lambda: len(replicas(lab)) == 2, "gateways start again", 120)


def _failed(pod: dict[str, Any]) -> bool:
    statuses = pod["status"].get("containerStatuses") or [{}]
    ended = (statuses[0].get("lastState") or {}).get("terminated") or {}
    return ended.get("exitCode") == 1


def _trusting(guests: Guests) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(guests.folder / "gateway-ca.crt"))


@pytest.mark.attacks(5)
async def test_an_agents_token_goes_no_further(lab: Lab, guests: Guests) -> None:
    """Nothing beyond the gateway has it: not the session, its sidecar, its files or any log."""
    session = guests.reached(lab.session("agent", "bash", "--norc"))
    token = guests["wanda"].token
    async with guests.agent("wanda") as agent:
        named = {"session": f"{NAMESPACE}/{session.name}"}
        asked = {**named, "command": "cat /proc/[0-9]*/environ | tr '\\0' '\\n'"}
        ran = (await agent.call_tool("run", asked)).structured_content
        assert ran["status"] == "finished", ran
        journal = (await agent.call_tool("observe", named)).structured_content
    logs = lab.kubectl("logs", "-n", OPERATOR_NAMESPACE, *GATEWAYS, "--tail=-1")
    logs += lab.kubectl("logs", session.pod, "--all-containers", "--tail=-1")
    secret = token.rpartition(".")[2]
    for text in (str(ran), str(journal), logs, lab.holdfast("logs", session.name, "-o", "json")):
        assert secret not in text


@pytest.mark.attacks(15)
@pytest.mark.timeout(120)
async def test_nonsense_ends_only_itself(lab: Lab, guests: Guests) -> None:
    """Frames that are none, text that is none, sequences in pieces: another client goes on."""
    session = guests.reached(lab.session("noise", "bash", "--norc"))
    url = f"{guests.base(session.name)}/stream"
    headers = {"Authorization": f"Bearer {guests['wanda'].token}"}
    chance = random.Random(15)
    async with (
        viewing(url, guests["otto"].token, tls=guests.tls, patience=PATIENCE) as other,
        aiohttp.ClientSession(headers=headers) as http,
        guests.sdk("wanda", session.name) as own,
    ):
        await other.until(lambda: "snapshot" in other.kinds)
        await own.wait("prompt", timeout=PATIENCE)
        for _ in range(20):
            async with http.ws_connect(url, ssl=guests.tls) as socket:
                await socket.send_bytes(chance.randbytes(chance.randrange(1, 5000)))
                assert (await socket.receive(PATIENCE)) is not None
        await own.send("cat\r")
        async with http.ws_connect(url, ssl=guests.tls) as socket:
            await socket.send_bytes(encode(Attach({"mode": "write", "columns": 80, "rows": 24})))
            pieces = [b"\x1b", b"[3", b"1m\xff\xfe", b"\xe6\xbc", b"\xa2", b"\x1b]0;\x9c", b"\r"]
            pieces += [chance.randbytes(50).replace(b"\x03", b"").replace(b"\x04", b"")]
            for number, piece in enumerate(pieces, start=1):
                await socket.send_bytes(encode(Input(number, b"", piece)))
            await asyncio.sleep(1)
        await own.send("\x15\x03")
        await own.wait("prompt", timeout=PATIENCE)
        await own.send("reset; echo sane-$((6*7))", enter=True)
        await other.until(lambda: b"sane-42" in other.stream)
    assert session.epoch == 1


@pytest.mark.attacks(11, 14)
@pytest.mark.timeout(120)
async def test_a_viewer_types_and_a_terminal_answers(lab: Lab, guests: Guests) -> None:
    """11: what a viewer sends is dropped, and that he did is known. 14: what a terminal says of
    itself, unasked, is nobody's input."""
    session = guests.reached(lab.session("watched", "bash", "--norc"))
    async with aiohttp.ClientSession() as http, guests.sdk("wanda", session.name) as own:
        await own.wait("prompt", timeout=PATIENCE)
        await own.send("echo typed", enter=True)
        inputs = len([one for one in await own.journal() if one.kind == "input"])
        for who, mode, data in (
            ("otto", "view", b"echo intruder-$((1+1))\r"),
            ("wanda", "write", b"\x1b[?62;22;52c\x1b]52;c;aGk=\x07"),
        ):
            async with http.ws_connect(
                f"{guests.base(session.name)}/stream", ssl=guests.tls,
                headers={"Authorization": f"Bearer {guests[who].token}"},
            ) as socket:  # fmt: skip
                attach = Attach({"mode": mode, "columns": 80, "rows": 24})
                await socket.send_bytes(encode(attach) + encode(Input(1, b"", data)))
                await asyncio.sleep(1)
        await own.send("echo after", enter=True)
        shown = (await own.screen(scrollback=True)).text
        journal = await own.journal()
    assert "intruder" not in shown
    assert "after" in shown
    assert [one.kind for one in journal].count("input") == inputs + 1
    (tried,) = [one for one in journal if one.kind == "refused"]
    assert tried.actor == guests["otto"].actor


PASTE, PASTED = b"\x1b[200~", b"\x1b[201~"
FORMS: Final = (
    b"rm -rf /\r", b"\r", b"\n", b"\0\x03\x04", PASTE + b"echo pasted\r" + PASTED, PASTE, PASTED,
    "é漢😀".encode(), b"\x1b[1;5C", b"\x1b[24;80R\recho reply\r", b"\x1b[I\r", b"\xff\xfe\r",
)  # fmt: skip
# A program that keeps every byte it reads.
READER: Final = "stty raw -echo; echo ready; exec cat > /shared/{}"


class Typist:
    """Somebody attached by a WebSocket, who sends frames as he likes."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._decoder = socket, Decoder()
        self._sent = 0

    async def attach(self, mode: str = "write") -> None:
        await self._socket.send_bytes(encode(Attach({"mode": mode, "columns": 80, "rows": 24})))

    async def send(self, *pieces: bytes) -> None:
        """In one message, a frame for each piece."""
        numbered = enumerate(pieces, start=self._sent + 1)
        await self._socket.send_bytes(b"".join(encode(Input(n, b"", one)) for n, one in numbered))
        self._sent += len(pieces)

    async def answered(self) -> list[Ack | Error]:
        """What became of each piece; the last one's answer is waited for."""
        found: list[Ack | Error] = []
        while not found or (found[-1].ref if isinstance(found[-1], Error) else found[-1].number) < (
            self._sent
        ):
            message = await self._socket.receive(PATIENCE)
            frames = self._decoder.feed(message.data)
            found += [frame for frame in frames if isinstance(frame, Ack | Error)]
        return found


@pytest.mark.attacks(16)
@pytest.mark.timeout(240)
async def test_no_form_of_input_passes_the_turn(lab: Lab, guests: Guests) -> None:
    """wanda has the turn. What mira sends by every way in, and otto, who may not type at all, is
    not among the bytes that the program reads, which are wanda's, all and no more."""
    read = SHARED / "gate"
    read.unlink(missing_ok=True)
    session = guests.reached(lab.session("gate", "bash", "-c", READER.format("gate"), **shared()))
    session.await_text("ready")
    url = f"{guests.base(session.name)}/stream"
    async with aiohttp.ClientSession() as http:

        def connected(who: str) -> Any:
            bearer = {"Authorization": f"Bearer {guests[who].token}"}
            return http.ws_connect(url, ssl=guests.tls, headers=bearer)

        async with connected("wanda") as a, connected("mira") as b, connected("otto") as c:
            wanda, mira, otto = Typist(a), Typist(b), Typist(c)
            await wanda.attach()
            await wanda.send(b".")
            assert isinstance((await wanda.answered())[-1], Ack)
            await mira.attach()
            await otto.attach("view")
            for form in FORMS:
                cuts = [(form[:at], form[at:]) for at in range(1, len(form))]
                for pieces in ((form,), (form, form), *cuts):
                    for one in (mira, otto):
                        await one.send(*pieces)
                await wanda.send(b".")
            for one in (mira, otto):
                assert isinstance((await one.answered())[0], Error)
            await _by_every_other_way(guests, http, session.name)
            await wanda.send(PASTE + b"rm x\r")
            await wanda.answered()
            async with guests.sdk("mira", session.name) as sdk:  # in the middle of a paste
                await sdk.take()
                await sdk.send("ls\r")
                await wanda.send(b"rm y\r" + PASTED, b"\r")
                assert [x.exception().code for x in await wanda.answered() if isinstance(x, Error)]
                await sdk.send("!")
    wanted = b"." * (1 + len(FORMS)) + PASTE + b"rm x\r" + PASTED + b"ls\r!"
    until(lambda: read.read_bytes().endswith(b"!"), "what was typed")
    assert read.read_bytes() == wanted


async def _by_every_other_way(guests: Guests, http: aiohttp.ClientSession, name: str) -> None:
    bearer = {"Authorization": f"Bearer {guests['mira'].token}"}
    for below, body in (
        ("input", {"text": "echo http\r"}), ("input", {"base64": "G1syMDB+DQ=="}),
        ("exec", {"command": "echo http"}), ("jobs", {"argv": ["true"]}),
    ):  # fmt: skip
        async with http.post(
            f"{guests.base(name)}/{below}", json=body, headers=bearer, ssl=guests.tls
        ) as answer:
            # A job is beside the terminal: it runs, and types nothing.
            assert answer.status in ((201, 202) if below == "jobs" else (409,)), await answer.text()
    async with guests.sdk("mira", name) as sdk:
        for form in FORMS:
            with pytest.raises(NoTurn):
                await sdk.send(form)
        with pytest.raises(HoldfastError):
            await sdk.exec("echo sdk", timeout=5)
    async with guests.agent("mira") as agent:
        for tool, given in (
            ("send_keys", {"text": "echo mcp", "keys": "Enter C-c Escape"}), ("interrupt", {}),
            ("run", {"command": "echo mcp", "prompt_timeout": 1}),
        ):  # fmt: skip
            result = await agent.call_tool(tool, {"session": f"{NAMESPACE}/{name}", **given})
            assert result.is_error or result.structured_content["status"] != "finished", tool
    await asyncio.to_thread(_by_terminals, guests, name)


def _by_terminals(guests: Guests, name: str) -> None:
    at = f"{name}.{NAMESPACE}"
    assert guests.ssh.run("mira", guests.ssh.at(at), "echo ssh").returncode not in (0, 255)
    for words in (("send", name, "echo kubectl\r"), ("exec", name, "--", "echo kubectl")):
        done = subprocess.run(
            guests.plugin("mira", *words), env=ENV, capture_output=True, timeout=60, check=False
        )
        assert done.returncode != 0, done
    screens = [guests.ssh.terminal("mira", at), guests.attach("mira", name)]
    for screen in screens:
        _typed_in_vain(screen)


def _typed_in_vain(screen: Screen) -> None:
    try:
        screen.expect(b"ready")
        for form in FORMS:
            screen.type(form)
        # Who types in vain is told why.
        screen.expect(b"turn")
    finally:
        screen.close()


@pytest.mark.attacks(13)
def test_nothing_that_a_session_says_commands_a_terminal(lab: Lab, guests: Guests) -> None:
    """Its title and its last words, where people look with kubectl."""
    evil = "\\033]0;evil\\007\\033]52;c;aGk=\\007\\033[31mred\\033[2J\\n"
    session = lab.begin("evil", "bash", "-c", f"printf '{evil}'; exit 3")
    session.await_phase("Ended")
    told = json.dumps(session.body, ensure_ascii=False).encode().decode("unicode_escape")
    assert "red" in told, "its last words are kept"
    events = "\n".join(session.events())
    for text in (
        lab.kubectl("get", "sessions"), lab.kubectl("get", "sessions", "-o", "wide"),
        lab.kubectl("describe", "session", "evil"), lab.holdfast("ls"),
        lab.holdfast("describe", "evil"), events, *_strings(session.body),
    ):  # fmt: skip
        assert not CONTROL.search(text), text


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for one in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from _strings(one)


@pytest.mark.attacks(10)
@pytest.mark.timeout(120)
async def test_a_token_that_is_revoked_cuts_a_live_stream(lab: Lab, guests: Guests) -> None:
    session = guests.reached(lab.session("revoked", "bash", "--norc"))
    lab.kubectl("create", "serviceaccount", "brief")
    lab.kubectl("create", "rolebinding", "brief", "--clusterrole=holdfast-observer",
                f"--serviceaccount={NAMESPACE}:brief")  # fmt: skip
    try:
        token = lab.kubectl("create", "token", "brief", "--audience=holdfast").strip()
        stream = f"{guests.base(session.name)}/stream"
        async with viewing(stream, token, tls=guests.tls, patience=PATIENCE) as viewer:
            await viewer.until(lambda: "snapshot" in viewer.kinds)
            await asyncio.to_thread(lab.kubectl, "delete", "serviceaccount", "brief")
            began = time.monotonic()
            await viewer.until(lambda: "problem" in viewer.kinds)
        lab.report["revoked_token_cut_seconds"] = round(time.monotonic() - began, 1)
        assert viewer.seen[-1][1]["error"]["code"] == "unauthenticated"
        assert time.monotonic() - began < REVOKED_SECONDS
    finally:
        lab.kubectl("delete", "serviceaccount,rolebinding", "brief", "--ignore-not-found")
