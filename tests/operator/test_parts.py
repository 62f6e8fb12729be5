"""Settings, credentials, leader, server, logs: the parts around the decisions."""

from __future__ import annotations

import ast
import base64
import itertools
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import kopf
import pytest
from aiohttp.test_utils import TestClient, TestServer

from holdfast_kube.client import LEASES
from holdfast_kube.credentials import Credentials, Token, find, from_kubeconfig
from holdfast_operator import handlers, log, metrics, serve
from holdfast_operator.contact import Contact
from holdfast_operator.leader import NAME, SECONDS, Leader
from holdfast_operator.model import Phase
from holdfast_operator.names import Key
from holdfast_operator.settings import DEFAULT_RESOURCES, Settings
from holdfast_wire.errors import BadRequest, Unavailable, Unsupported
from operator_kit import FakeApi

PACKAGE = Path(handlers.__file__).parent


def test_settings() -> None:
    assert Settings.from_env({"HOLDFAST_IMAGE": "i"}) == Settings(image="i")
    full = Settings.from_env(
        {
            "HOLDFAST_IMAGE": "i",
            "HOLDFAST_IMAGE_PULL_POLICY": "Never",
            "HOLDFAST_SIDECAR_RESOURCES": '{"limits": {"memory": "1Gi"}}',
            "HOLDFAST_SIDECAR_ENV": '[{"name": "TZ", "value": "UTC"}, {"name": "X", "value": ""}]',
            "HOLDFAST_TOKEN_AUDIENCE": "a",
            "HOLDFAST_NAMESPACE": "n",
            "HOLDFAST_POD_NAME": "p",
            "HOLDFAST_WATCH_NAMESPACES": "b, a,b",
            "HOLDFAST_LOG_LEVEL": "debug",
            "HOLDFAST_PORT": "9",
            "HOLDFAST_WEBHOOK_KEYS": "/k",
            "HOLDFAST_WEBHOOK_CLIENT_CA": "PEM",
            "HOLDFAST_WEBHOOK_CLIENT_NAMES": "a,b.c",
            "HOLDFAST_FORMER_IMAGE": "old:1",
            "HOLDFAST_ADMISSION_POLICIES": "false",
            "HOLDFAST_GATEWAY": "g.svc:7070",
            "HOLDFAST_GATEWAY_CA": "-----BEGIN CERTIFICATE-----",
        }
    )
    assert full == Settings("i", "Never", {"limits": {"memory": "1Gi"}},
                            (("TZ", "UTC"), ("X", "")), "a", "n", "p", ("b", "a"),
                            "DEBUG", 9, "g.svc:7070", "-----BEGIN CERTIFICATE-----",
                            False, "/k", former_image="old:1", webhook_client_ca="PEM",
                            webhook_client_names=("a", "b.c"))  # fmt: skip
    # What kubelet sets in every container beside a Service named "holdfast".
    linked = {"HOLDFAST_IMAGE": "i", "HOLDFAST_PORT": "tcp://10.0.0.1:80"}
    assert Settings.from_env(linked).port == 8080
    assert Settings(image="i").sidecar_resources == DEFAULT_RESOURCES


@pytest.mark.parametrize(
    "wrong",
    [
        {"HOLDFAST_IMAGE": ""},
        {"HOLDFAST_GATEWAY": "g.svc:7070"},
        {"HOLDFAST_SIDECAR_RESOURCES": "{"},
        {"HOLDFAST_SIDECAR_RESOURCES": "[]"},
        {"HOLDFAST_SIDECAR_ENV": "{"},
        {"HOLDFAST_SIDECAR_ENV": "7"},
        {"HOLDFAST_SIDECAR_ENV": '{"TZ": "UTC"}'},
        {"HOLDFAST_SIDECAR_ENV": '[{"name": "TZ"}]'},
        {"HOLDFAST_SIDECAR_ENV": '[{"name": "TZ", "value": 1}]'},
        {"HOLDFAST_SIDECAR_ENV": '[{"name": "", "value": "x"}]'},
        {"HOLDFAST_SIDECAR_ENV": '[{"name": "HOLDFAST_EPOCH", "value": "9"}]'},
        {"HOLDFAST_LOG_LEVEL": "loud"},
        {"HOLDFAST_PORT": "70000"},
        {"HOLDFAST_WEBHOOK_CLIENT_NAMES": "a"},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(BadRequest):
        Settings.from_env({"HOLDFAST_IMAGE": "i", **wrong})


def kubeconfig(user: dict[str, Any]) -> dict[str, Any]:
    ca = base64.b64encode(b"CA").decode()
    return {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [
            {"name": "k", "cluster": {"server": "https://h/", "certificate-authority-data": ca}}
        ],
        "users": [{"name": "u", "user": user}],
    }


def test_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "cert").write_text("CERT")
    user = {"client-certificate": "cert", "client-key-data": base64.b64encode(b"KEY").decode()}
    found = from_kubeconfig(kubeconfig(user), tmp_path)
    assert found == Credentials("https://h", ca="CA", certificate="CERT", key="KEY")
    assert from_kubeconfig(kubeconfig({"token": "t"}), tmp_path).token == "t"
    with pytest.raises(Unsupported, match="exec plugin"):
        from_kubeconfig(kubeconfig({"exec": {"command": "login"}}), tmp_path)
    with pytest.raises(BadRequest):
        from_kubeconfig({"contexts": []}, tmp_path)
    with pytest.raises(BadRequest, match="KUBECONFIG"):
        find({"KUBECONFIG": str(tmp_path / "none")})


def test_a_token_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    token = Token(Credentials("s", token_file=file))
    assert token.get(0) == "one"
    (tmp_path / "new").write_text("two")
    (tmp_path / "new").rename(file)  # as kubelet does
    assert token.get(1) == "two"
    assert Token(Credentials("s", token="fixed")).get(0) == "fixed"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def leaders() -> tuple[FakeApi, Clock, Leader, Leader]:
    api, clock = FakeApi(), Clock()
    made = [Leader(api, "system", name, clock, lambda _leads: None) for name in ("a/1", "b/1")]
    return api, clock, made[0], made[1]


def holder(api: FakeApi) -> tuple[str, str]:
    item = api.items[(LEASES.plural, "system", NAME)]
    return item["spec"]["holderIdentity"], item["metadata"]["annotations"]["holdfast.dev/epoch"]


async def test_one_leads_and_the_other_waits_its_time() -> None:
    api, clock, first, second = leaders()
    await first.attempt()
    await second.attempt()
    assert (first.leads, second.leads) == (True, False)
    for _ in range(5):
        clock.now += 3
        await first.attempt()
        await second.attempt()
    assert holder(api) == ("a/1", "1")
    clock.now += SECONDS * 0.6
    assert not first.leads  # by its own clock, before anybody may take over
    await second.attempt()
    assert not second.leads
    clock.now += SECONDS * 0.4
    await second.attempt()
    assert second.leads
    assert holder(api) == ("b/1", "2")
    await first.attempt()
    assert not first.leads


async def test_a_leader_that_is_told_to_stop_makes_way_at_once() -> None:
    api, _clock, first, second = leaders()
    await first.attempt()
    await second.attempt()
    await first._give_back()
    assert not first.leads
    await second.attempt()
    assert second.leads
    assert holder(api) == ("b/1", "2")
    await second.attempt()
    assert second.leads


async def test_the_deadline_runs_from_the_send_time(monkeypatch: pytest.MonkeyPatch) -> None:
    api, clock, first, _ = leaders()
    await first.attempt()
    replace = api.replace

    async def slow(*args: Any) -> Any:
        clock.now += 5
        return await replace(*args)

    monkeypatch.setattr(api, "replace", slow)
    await first.attempt()
    clock.now = 100.0 + SECONDS * 0.6 - 0.01
    assert first.leads
    clock.now = 100.0 + SECONDS * 0.6
    assert not first.leads


async def test_a_lost_race_is_not_a_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    api, clock, first, second = leaders()
    await first.attempt()
    clock.now += SECONDS
    await second.attempt()  # its first sight: it waits from here
    clock.now += SECONDS
    get = api.get

    async def overtaken(*args: Any) -> Any:
        found = await get(*args)
        api.touch(api.items[(LEASES.plural, "system", NAME)])
        return found

    monkeypatch.setattr(api, "get", overtaken)
    await second.attempt()
    assert not second.leads
    assert holder(api) == ("a/1", "1")


async def test_the_pages() -> None:
    contact, clock, ready = Contact(100.0), Clock(), False
    contact.expect("sessions")
    app = serve.application(contact, clock, lambda: ready, lambda: 3)
    metrics.phases.clear()  # of other tests
    metrics.phases.note(Key("n", "s"), Phase.RUNNING)
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/readyz")).status == 503
        ready = True
        assert (await client.get("/readyz")).status == 200
        assert (await client.get("/healthz")).status == 200
        page = await (await client.get("/metrics")).text()
        assert 'holdfast_sessions{phase="Running"} 1.0' in page
        assert "holdfast_queue_depth 3.0" in page
        assert 'holdfast_watch_contact_age_seconds{watch="sessions"} 0.0' in page
        clock.now += 601
        answer = await client.get("/healthz")
        assert (answer.status, await answer.text()) == (
            503,
            "no contact for too long: sessions\n",
        )
    metrics.phases.clear()


def test_logs_are_lines_of_json_without_escapes() -> None:
    record = logging.LogRecord("holdfast", logging.INFO, "f", 1, "a\x1b[1m\nb", None, None)
    record.holdfast_fields = {"session": "s\x07", "epoch": 3}
    line = log.Lines().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert (found["message"], found["session"], found["epoch"]) == ("a b", "s", 3)
    try:
        raise Unavailable("x")
    except Unavailable:
        record.exc_info = sys.exc_info()
    assert "Unavailable" in json.loads(log.Lines().format(record))["traceback"]


def test_kopf_writes_nothing_and_its_watches_end() -> None:
    settings = kopf.OperatorSettings()
    handlers.configure(settings)
    assert settings.posting.enabled is False
    # A float is refused by the API server, and kopf would end on it.
    assert type(settings.watching.server_timeout) is int
    assert settings.watching.inactivity_timeout < settings.watching.server_timeout
    # An outage of any length is waited out, by every request anew.
    for _request in range(2):
        backoffs = settings.networking.error_backoffs
        assert not isinstance(backoffs, float)
        pauses = list(itertools.islice(backoffs, 1000))
        assert (len(pauses), pauses[0], max(pauses)) == (1000, 0.5, 5.0)


PURE = ("conditions", "contact", "decide", "events", "evictions", "forks", "keeps", "memory",
        "model", "moves", "names", "notes", "objects", "orders", "pods", "progress", "quota",
        "restores", "settings", "sightings", "status", "steps", "stored", "suspension", "template",
        "text", "times", "usage")  # fmt: skip


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_stay_pure(module: str) -> None:
    tree = ast.parse((PACKAGE / f"{module}.py").read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    assert not found & {"asyncio", "aiohttp", "kopf", "time", "socket", "os"}
    ours = {name.removeprefix("holdfast_operator.") for name in found if "operator." in name}
    assert ours <= set(PURE)


def test_the_import_budget() -> None:
    """kopf alone is 41 MiB; with a kubernetes client it finds, 92."""
    code = (
        "import holdfast_operator.__main__, sys\n"
        "assert 'kubernetes' not in sys.modules and 'pykube' not in sys.modules\n"
        "line = next(l for l in open('/proc/self/status') if l.startswith('VmRSS'))\n"
        "print(line.split()[1])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 * 1024
