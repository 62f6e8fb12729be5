"""Kubeconfigs as kubectl reads them: which cluster, as whom; and what is left to kubectl."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from holdfast import kubeconfig
from holdfast.access import Address, address_of, of_cluster, of_gateway, proxy_for
from holdfast.arguments import Target
from holdfast.credentials import Plugin, Token, User, cluster_info, impersonation
from holdfast.kubeconfig import Chosen, NotPlain, Unknown, choose
from holdfast_wire.errors import BadRequest, Unauthenticated


def entry(kind: str, name: str, **body: Any) -> dict[str, Any]:
    return {"name": name, kind: {key.replace("_", "-"): value for key, value in body.items()}}


def config(path: Path, current: str = "", **lists: list[dict[str, Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"current-context": current, **lists}))
    return str(path)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return config(
        tmp_path / "one" / "config", "c",
        clusters=[entry("cluster", "k", server="https://h:6443", certificate_authority="ca.crt")],
        users=[entry("user", "u", token="t", tokenFile="t.txt")],
        contexts=[
            entry("context", "c", cluster="k", user="u", namespace="team"),
            entry("context", "bare", cluster="k"),
            entry("context", "lost", cluster="nowhere", user="u"),
        ],
    )  # fmt: skip


def chosen(file: str, **more: str) -> Chosen:
    found = choose(Target("x", kubeconfig=file, **more))
    assert found is not None
    return found


def test_the_context_that_is_meant(file: str) -> None:
    folder = str(Path(file).parent)
    found = chosen(file)
    assert found.namespace == "team"
    # Paths are relative to the file they are in.
    assert found.cluster["certificate-authority"] == f"{folder}/ca.crt"
    assert found.user["tokenFile"] == f"{folder}/t.txt"
    assert chosen(file, context="bare") == Chosen(found.cluster, {}, "default")
    assert chosen(file, context="bare", namespace="mine").namespace == "mine"


@pytest.mark.parametrize(
    ("context", "said"), [("lost", "names no cluster"), ("absent", "no context 'absent'")]
)
def test_contexts_that_lead_nowhere(file: str, context: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        chosen(file, context=context)


def test_files_are_merged_and_the_first_wins(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = config(
        tmp_path / "two" / "config", "other",
        clusters=[entry("cluster", "k", server="https://wrong"),
                  entry("cluster", "k2", server="https://h2")],
        contexts=[entry("context", "other", cluster="k2", user="u")],
    )  # fmt: skip
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/absent:{file}:{other}")
    found = choose(Target("x"))
    assert found is not None
    assert found.cluster["server"] == "https://h:6443"
    second = choose(Target("x", context="other"))
    assert second is not None
    assert (second.cluster["server"], second.user["token"]) == ("https://h2", "t")
    monkeypatch.setenv("KUBECONFIG", f"{other}:{file}")
    third = choose(Target("x"))
    assert third is not None
    assert third.cluster["server"] == "https://h2"


def test_none_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert choose(Target("x")) is None
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("pod-token\n")
    (account / "namespace").write_text("mine")
    monkeypatch.setattr(kubeconfig, "ACCOUNT", account)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    found = choose(Target("x"))
    assert found is not None
    assert (found.cluster["server"], found.namespace) == ("https://[fd00::1]:443", "mine")
    assert User(found.user, {}).headers() == [("Authorization", "Bearer pod-token")]
    with pytest.raises(BadRequest, match="there is no kubeconfig"):
        choose(Target("x", kubeconfig="/nonexistent"))


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({}, {"auth-provider": {"name": "oidc"}}),
        ({}, {"username": "ana", "password": "p"}),
        ({"something-new": "x"}, {}),
    ],
)
def test_what_only_kubectl_knows(tmp_path: Path, cluster: Any, user: Any) -> None:
    path = config(
        tmp_path / "c", "c",
        clusters=[{"name": "k", "cluster": {"server": "https://h", **cluster}}],
        users=[{"name": "u", "user": user}],
        contexts=[entry("context", "c", cluster="k", user="u")],
    )  # fmt: skip
    with pytest.raises(Unknown):
        choose(Target("x", kubeconfig=path))


def test_a_way_of_writing_that_only_kubectl_reads(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_text("current-context: &a c\n")
    with pytest.raises(NotPlain):
        choose(Target("x", kubeconfig=str(path)))


@pytest.mark.parametrize(
    "cluster",
    [
        {"server": "https://h", "proxy-url": "socks5://p:1080"},
        {"server": "https://h", "proxy-url": "https://p"},
        {"server": "http://far.example.org"},
    ],
)
def test_ways_that_are_left_to_kubectl(cluster: dict[str, str]) -> None:
    with pytest.raises(Unknown):
        of_cluster(Chosen(cluster, {}, "default"))


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://h", Address("h", 443, True, "")),
        ("h:6443", Address("h", 6443, True, "")),
        ("https://h:8443/k8s/c-1/", Address("h", 8443, True, "/k8s/c-1")),
        ("http://[::1]:8001", Address("::1", 8001, False, "")),
    ],
)
def test_addresses(url: str, address: Address) -> None:
    assert address_of(url) == address


@pytest.mark.parametrize(
    "url", ["ftp://h", "https://", "https://u:p@h", "https://h:x", "https://h?q"]
)
def test_no_addresses(url: str) -> None:
    with pytest.raises(BadRequest):
        address_of(url)


def test_a_token_is_not_sent_in_the_clear() -> None:
    with pytest.raises(BadRequest, match="in the clear"):
        of_gateway("http://far.example.org", Token("t"))


@pytest.mark.parametrize(
    ("host", "environment", "proxy"),
    [
        ("h.example.org", {}, ""),
        ("h.example.org", {"HTTPS_PROXY": "http://p:3128"}, "http://p:3128"),
        ("h.example.org", {"https_proxy": "p:3128"}, "http://p:3128"),
        ("h.example.org", {"HTTPS_PROXY": "http://p", "NO_PROXY": "example.org"}, ""),
        ("h.example.org", {"HTTPS_PROXY": "http://p", "NO_PROXY": ".example.org"}, ""),
        ("h.example.org", {"HTTPS_PROXY": "http://p", "NO_PROXY": "ample.org"}, "http://p"),
        ("h.example.org", {"HTTPS_PROXY": "http://p", "NO_PROXY": "h.example.org:1"}, "http://p"),
        ("h.example.org", {"HTTPS_PROXY": "http://p", "no_proxy": "x, *"}, ""),
        ("10.1.2.3", {"HTTPS_PROXY": "http://p", "NO_PROXY": "10.0.0.0/8"}, ""),
        ("127.0.0.1", {"HTTPS_PROXY": "http://p"}, ""),
        ("h.example.org", {"HTTP_PROXY": "http://p"}, ""),
    ],
)
def test_proxies(host: str, environment: dict[str, str], proxy: str) -> None:
    assert proxy_for(Address(host, 443, True, ""), environment) == proxy


def test_impersonation() -> None:
    user = {"as": "ana", "as-uid": "7", "as-groups": ["a", "b"], "as-user-extra": {"x/y": ["z"]}}
    assert impersonation(user) == [
        ("Impersonate-User", "ana"), ("Impersonate-Uid", "7"), ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"), ("Impersonate-Extra-x%2Fy", "z"),
    ]  # fmt: skip


def test_a_token_of_a_file_may_be_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    token = Token(file=path)
    assert token.headers() == [("Authorization", "Bearer one")]
    path.write_text("two")
    assert (token.renew(), token.headers()) == (True, [("Authorization", "Bearer two")])
    path.write_text("a\nHost: b")
    with pytest.raises(Unauthenticated):
        token.headers()
    path.unlink()
    with pytest.raises(Unauthenticated, match="cannot be read"):
        token.headers()


def test_what_a_login_program_is_told(tmp_path: Path) -> None:
    (tmp_path / "ca").write_bytes(b"CA")
    cluster = {
        "server": "https://h", "certificate-authority": str(tmp_path / "ca"),
        "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"a": 1}}],
    }  # fmt: skip
    assert cluster_info(cluster) == {
        "server": "https://h",
        "certificate-authority-data": b64encode(b"CA").decode(),
        "config": {"a": 1},
    }


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "is not known"),
        ({"command": "/nonexistent/login", "installHint": "get it"}, "get it"),
        ({"command": "false"}, "ended with code 1"),
        ({"command": "echo"}, "did not answer as one"),
        ({"command": "echo", "args": ['{"apiVersion": "v2", "status": {}}']}, "another version"),
        ({"command": "true", "interactiveMode": "Always"}, "there is no terminal"),
    ],
)
def test_login_programs_that_fail(
    plugin: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.isatty", lambda _: False)
    usual = {"apiVersion": "client.authentication.k8s.io/v1", "command": "true"}
    with pytest.raises((Unauthenticated, BadRequest), match=said):
        Plugin({**usual, **plugin}, {}).token()
