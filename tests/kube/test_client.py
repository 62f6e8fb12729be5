"""What goes over the wire to the API server, and whom it is trusted as."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import Any

import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from holdfast_kube.client import PODS, ROLES, Invalid, Kube
from holdfast_kube.credentials import Credentials
from holdfast_operator import handlers


async def test_unknown_fields_are_refused_where_asked() -> None:
    asked: list[dict[str, str]] = []

    async def create(request: web.Request) -> web.Response:
        asked.append(dict(request.query))
        if request.query.get("fieldValidation") == "Strict":
            message = 'strict decoding error: unknown field "spec.nodeSelektor"'
            return web.json_response({"message": message}, status=400)
        return web.json_response(await request.json(), status=201)

    app = web.Application()
    app.router.add_post("/{tail:.*}", create)
    async with TestServer(app) as server, Kube(Credentials(str(server.make_url("")))) as kube:
        assert await kube.create(ROLES, "n", {"kind": "Role"}) == {"kind": "Role"}
        with pytest.raises(Invalid, match="nodeSelektor"):
            await kube.create(PODS, "n", {"kind": "Pod"}, strict=True)
    assert asked == [{}, {"fieldValidation": "Strict"}]


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=30)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A CA and a server's certificate with the extensions that the Internet asks for left out, as
    clusters have them."""
    (tmp_path / "c.cnf").write_text(
        "[req]\ndistinguished_name = name\nprompt = no\n[name]\nCN = kubernetes\n"
        "[ca]\nbasicConstraints = CA:TRUE\n[server]\nsubjectAltName = DNS:kubernetes\n"
    )
    made = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-config", "c.cnf")
    openssl(tmp_path, "req", "-new", *made, "-keyout", "ca.key", "-out", "ca.csr")
    openssl(tmp_path, "req", "-new", *made, "-keyout", "key", "-out", "csr")
    signed = ("x509", "-req", "-days", "2", "-extfile", "c.cnf")
    openssl(
        tmp_path, *signed, "-extensions", "ca", "-in", "ca.csr", "-signkey", "ca.key", "-out", "ca"
    )
    by_ca = ("-CA", "ca", "-CAkey", "ca.key", "-set_serial", "2")
    openssl(tmp_path, *signed, "-extensions", "server", "-in", "csr", *by_ca, "-out", "crt")
    return tmp_path


def shake_hands(client: ssl.SSLContext, folder: Path) -> None:
    """In memory."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "crt", folder / "key")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(back, there, server_hostname="kubernetes"),
        server.wrap_bio(there, back, server_side=True),
    ]
    for _ in range(3):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ends[0].getpeercert()


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from Python 3.13 on."""
    default = ssl.create_default_context

    def made(*args: Any, **more: Any) -> ssl.SSLContext:
        context = default(*args, **more)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", made)


@pytest.mark.usefixtures("strict")
def test_a_clusters_bare_certificates_are_taken(bare: Path, tmp_path: Path) -> None:
    ca = (bare / "ca").read_text()
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(ssl.create_default_context(cadata=ca), bare)
    shake_hands(Credentials("https://kubernetes", ca=ca).tls(), bare)
    shake_hands(handlers.Connection(server="https://kubernetes", ca_data=ca).as_ssl_context(), bare)


@pytest.mark.usefixtures("strict")
def test_but_no_others(bare: Path) -> None:
    for context in (
        Credentials("https://kubernetes").tls(),
        handlers.Connection(server="https://kubernetes").as_ssl_context(),
    ):
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(context, bare)


def test_kopf_logs_in_as_we_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "current-context: c\n"
        "contexts: [{name: c, context: {cluster: k, user: u, namespace: n}}]\n"
        "clusters: [{name: k, cluster: {server: 'https://h'}}]\n"
        "users: [{name: u, user: {token: t}}]\n"
    )
    monkeypatch.setenv("KUBECONFIG", str(config))
    found = handlers.login("https://10.0.0.1:443", settings=kopf.OperatorSettings())
    assert isinstance(found, handlers.Connection)
    assert (found.server, found.token) == ("https://10.0.0.1:443", "t")
    assert found.default_namespace == "n"
