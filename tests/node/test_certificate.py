"""Who an agent is, and whom it believes: its certificate, and orders that are for it. Attack 34."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast_kube.client import CERTIFICATE_REQUESTS, Resource
from holdfast_node import certificate
from holdfast_node.certificate import Identity, Untrusted
from holdfast_node.order import read
from holdfast_wire.errors import HoldfastError, Unauthenticated, Unavailable
from node_keys import KEY, PEM, Authority, Json

UID = "11111111-2222-3333-4444-555555555555"
ORDER: Json = {
    "metadata": {"namespace": "team", "name": "build-2-k1", "uid": "c"},
    "spec": {
        "sessionName": "build", "sessionUID": UID, "epoch": 2, "image": "i", "trigger": "Periodic",
        "sourceNode": "n1", "sourcePodUID": "p", "store": "Peer", "keepers": ["n2"],
    },
}  # fmt: skip


class Api:
    """Signs with `authority`, as the operator does; None: nobody signs."""

    def __init__(self, authority: Authority | None) -> None:
        self.authority = authority
        self.asked: list[Json] = []
        self.denied = ""

    async def create(self, kind: Resource, namespace: str, body: Any) -> Json:
        assert (kind, namespace) == (CERTIFICATE_REQUESTS, "")
        self.asked.append(dict(body))
        return dict(body)

    async def get(self, kind: Resource, namespace: str, name: str) -> Json | None:
        (found,) = (one for one in self.asked if one["metadata"]["name"] == name)
        if self.denied:
            said = [{"type": "Denied", "message": self.denied}]
            return {**found, "status": {"conditions": said}}
        if self.authority is None:
            return found
        made = x509.load_pem_x509_csr(base64.b64decode(found["spec"]["request"]))
        names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        key = made.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        pem = self.authority.issue(names.get_values_for_type(x509.DNSName), key).public_bytes(PEM)
        return {**found, "status": {"certificate": base64.b64encode(pem).decode()}}


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "ASK_SECONDS", 0.001)
    monkeypatch.setattr(certificate, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(certificate, "AGAIN_SECONDS", 0.001)


def trusting(folder: Path, *authorities: Authority) -> Path:
    (folder / "ca-bundle.crt").write_bytes(b"".join(one.pem for one in authorities))
    return folder


async def agent(folder: Path, node: str, authority: Authority) -> Identity:
    made = Identity(node, trusting(folder, authority), Api(authority))
    await made.obtain()
    return made


def shown(identity: Identity) -> x509.Certificate:
    return x509.load_der_x509_certificate(base64.b64decode(identity.published))


async def test_its_key_lies_on_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    load = ssl.SSLContext.load_cert_chain

    def loaded(self: ssl.SSLContext, path: str, *rest: Any) -> None:
        opened.append(str(Path(path).readlink()))
        load(self, path, *rest)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", loaded)
    one = await agent(tmp_path, "n1", Authority())
    for purpose in ssl.Purpose:
        assert one.tls(purpose) is one.tls(purpose)
    assert opened == ["/memfd:certificate (deleted)"] * 2
    assert os.listdir(tmp_path) == ["ca-bundle.crt"]  # noqa: PTH208


async def test_it_waits_for_who_signs(tmp_path: Path) -> None:
    api = Api(None)
    one = Identity("n1", trusting(tmp_path, ours := Authority()), api)
    with pytest.raises(Unavailable, match="no certificate yet"):
        one.tls(ssl.Purpose.CLIENT_AUTH)
    waiting = asyncio.create_task(one.obtain())
    await asyncio.wait([waiting], timeout=0.2)
    assert len(api.asked) > 2, "it asks again"
    assert not waiting.done()
    api.denied = "it must name n1, and nothing else"
    with pytest.raises(Unauthenticated, match="must name n1"):
        await one._requested()
    api.denied, api.authority = "", Authority()  # of another cluster
    with pytest.raises(Unauthenticated, match="is of no CA in"):
        await one._requested()
    api.authority = ours
    await asyncio.wait_for(waiting, 5)
    assert one.tls(ssl.Purpose.CLIENT_AUTH).verify_mode is ssl.CERT_REQUIRED


async def test_it_is_renewed_and_what_was_sealed_before_still_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, newer = Authority(), Authority("newer")
    one = await agent(tmp_path, "n1", ours)
    former, context = one.published, one.tls(ssl.Purpose.SERVER_AUTH)
    order = read(ours.order(ORDER, {"n1": shown(one)}))
    monkeypatch.setattr(certificate.Pair, "renew_in", lambda *_: 0.0)
    trusting(tmp_path, newer, ours)
    published: asyncio.Queue[str] = asyncio.Queue()
    tries = iter([Unavailable("no answer"), None])

    async def publish() -> None:
        if (error := next(tries, None)) is not None:
            raise error
        published.put_nowait(one.published)

    keeping = asyncio.create_task(one.keep(publish))
    assert await asyncio.wait_for(published.get(), 5) != former
    keeping.cancel()
    assert one.tls(ssl.Purpose.SERVER_AUTH) is not context
    assert one.keys(order).secret == KEY
    one.check(ours.order(ORDER, {"n1": shown(one)}))
    one.check(newer.order(ORDER, {"n1": shown(one)}))
    trusting(tmp_path, newer)
    with pytest.raises(Untrusted, match="is not trusted any more"):
        one.check(ours.order(ORDER, {"n1": shown(one)}))


def changed(made: Json, **spec: Any) -> Json:
    return {**made, "spec": {**made["spec"], **spec}}


CHANGES: dict[str, Callable[[Json], Json]] = {
    "by hand": lambda made: {**made, "spec": ORDER["spec"]},
    "empty": lambda made: changed(made, signature=""),
    "another node": lambda made: changed(made, keepers=["n3"]),
    "another pod": lambda made: changed(made, sourcePodUID="victim"),
    "another name": lambda made: {**made, "metadata": {**made["metadata"], "name": "x"}},
    "another namespace": lambda made: {**made, "metadata": {**made["metadata"], "namespace": "x"}},
    "another's CA": lambda made: Authority().sign(made),
    "no text": lambda made: changed(made, signature=["x"]),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_an_order_that_the_operator_did_not_make(tmp_path: Path, name: str) -> None:
    one = await agent(tmp_path, "n1", ours := Authority())
    made = ours.order(ORDER, {"n1": shown(one)})
    one.check(made)
    with pytest.raises(Untrusted) as raised:
        one.check(CHANGES[name](made))
    assert raised.value.reason in ("Unsigned", "BadSignature")


async def test_an_order_for_another_node(tmp_path: Path) -> None:
    """n1 has the order and all that n1 has; the key is n2's."""
    ours = Authority()
    one, two = await agent(tmp_path, "n1", ours), await agent(tmp_path, "n2", ours)
    order = read(ours.order(ORDER, {"n2": shown(two)}))
    assert two.keys(order).secret == KEY
    with pytest.raises(Untrusted, match="has no key for node n1") as raised:
        one.keys(order)
    assert raised.value.reason == "KeyNotForNode"
    one.node = "n2"  # it says so
    with pytest.raises(Untrusted, match="is not sealed to the certificate") as raised:
        one.keys(order)
    assert raised.value.reason == "KeyNotForNode"
    assert KEY.decode() not in repr(order)
    assert repr(two.keys(order)) == "Keys()"


async def test_without_a_bundle_nobody_is_believed(tmp_path: Path) -> None:
    one = await agent(tmp_path, "n1", ours := Authority())
    made = ours.order(ORDER, {"n1": shown(one)})
    for damage in (b"", b"garbage"):
        (tmp_path / "ca-bundle.crt").write_bytes(damage)
        with pytest.raises(HoldfastError):
            one.check(made)
        with pytest.raises(HoldfastError):
            one.tls(ssl.Purpose.CLIENT_AUTH)
