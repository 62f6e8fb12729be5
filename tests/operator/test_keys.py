"""What the operator does with keys: orders that only the named nodes can obey, certificates that
name one node, wrapping keys that come and go. Attacks 34 and 40."""

from __future__ import annotations

import base64
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from crd_kit import crds, problems, schema_of
from holdfast_kube import order_keys
from holdfast_kube.client import CERTIFICATE_REQUESTS, CHECKPOINTS
from holdfast_kube.order_keys import Of, Unopened
from holdfast_node.certificate import request
from holdfast_operator import metrics, restores
from holdfast_operator.keyring import Keyring, UnknownKey
from holdfast_operator.node_certificates import (
    Deny,
    Grant,
    NodeCertificates,
    certificate,
    decide,
)
from holdfast_operator.order_making import OrderMaking
from holdfast_operator.orders import CheckpointSeen, Kind
from holdfast_operator.rotation import Rotation, due, needed
from holdfast_wire.errors import Unavailable
from node_keys import PEM, Authority, Json, keys_folder, shown
from operator_api import FakeApi
from operator_kit import World, session_object

from .test_keeps import order, running
from .test_stored_stories import change

UID = "0d3f7c1e-6a52-4b0e-9d0a-0f6f3c2b1a99"
ACCOUNT = "holdfast-system:holdfast-node"
LEGACY = bytes(range(32))


def now() -> datetime:
    return datetime.now(UTC)


def item(name: str, **spec: Any) -> Json:
    keep = {
        "sourceNode": "n1",
        "store": "Peer",
        "keepers": ["n2"],
        "volumes": [],
        "sessionName": "build",
        "sessionUID": UID,
        "epoch": 1,
        "trigger": "Periodic",
    }
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "Checkpoint",
        "metadata": {"namespace": "team", "name": name, "uid": name},
        "spec": keep | spec,
    }


class Place:
    """The Secret of one operator, and the agents' own keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authorities = [Authority()]
        self.wrapping = {"g1": os.urandom(32)}
        self.agents = {name: self.authorities[0].node(name) for name in ("n1", "n2", "n3")}
        self.claims: dict[str, str] = {}
        self.write("g1")
        self.keyring = Keyring(folder)
        self.orders = OrderMaking(self.keyring, self._claim, now)

    def write(self, current: str) -> None:
        keys_folder(self.folder, self.authorities, self.wrapping, current)

    def _claim(self, node: str) -> str:
        return self.claims.get(node) or shown(self.agents[node][0])

    def opened(self, made: Json, node: str, by: str = "") -> bytes:
        """`by`: whose key is tried."""
        meta, spec = made["metadata"], made["spec"]
        of = Of(meta["namespace"], meta["name"], spec["sessionUID"])
        (sealed,) = (one["sealed"] for one in spec["key"]["for"] if one["node"] == node)
        return order_keys.open_sealed(sealed, self.agents[by or node][1], node, of)

    def signed(self, made: Json) -> bool:
        meta, spec = made["metadata"], made["spec"]
        body = order_keys.body(meta["namespace"], meta["name"], spec)
        return order_keys.is_signed(body, spec["signature"], self.keyring.authorities())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "keys")


def test_a_keep_is_for_its_source_alone(place: Place) -> None:
    """Attack 34: keepers get no key, and what one node was given another cannot open."""
    made = place.orders.keep(item("k1"), "n1")
    assert [one["node"] for one in made["spec"]["key"]["for"]] == ["n1"]
    key = place.opened(made, "n1")
    assert len(key) == 32
    for other in ("n2", "n3"):
        with pytest.raises(Unopened):
            place.opened(made, "n1", by=other)
    assert key != place.opened(place.orders.keep(item("k1"), "n1"), "n1"), "one for each order"
    spec = schema_of(crds()["Checkpoint"])["properties"]["spec"]["properties"]
    for name in ("key", "signature"):
        assert list(problems(spec[name], made["spec"][name])) == []


def test_a_move_is_for_two_nodes_and_never_opened_again(place: Place) -> None:
    made = place.orders.move(item("m1"), "n1", "n2")
    assert place.opened(made, "n1") == place.opened(made, "n2")
    with pytest.raises(Unopened):
        place.opened(made, "n2", by="n3")
    assert "wrapped" not in made["spec"]["key"]
    assert not CheckpointSeen.of(made).wrapped


def test_a_key_belongs_to_one_order(place: Place) -> None:
    """Attack 34: what was sealed or wrapped for one order is of no use in another."""
    made = place.orders.keep(item("k1"), "n1")
    key = made["spec"]["key"]
    for meta, spec in (
        ({"name": "k2"}, {}), ({"namespace": "evil"}, {}), ({}, {"sessionUID": UID[::-1]}),
    ):  # fmt: skip
        moved = item("k1", **spec)
        moved["metadata"] |= meta
        moved["spec"]["key"] = key
        with pytest.raises(Unopened):
            place.opened(moved, "n1")
        seen = CheckpointSeen.of(moved)
        with pytest.raises(Unopened):
            place.orders._opened(moved["metadata"]["namespace"], seen)


def test_the_signature_is_over_all_of_it(place: Place) -> None:
    made = place.orders.keep(item("k1"), "n1")
    assert place.signed(made)
    changes: list[tuple[str, Json]] = [
        ("spec", {"sourceNode": "n2"}), ("spec", {"keepers": ["n3"]}), ("spec", {"epoch": 2}),
        ("spec", {"key": {}}), ("metadata", {"name": "k2"}), ("metadata", {"namespace": "evil"}),
        ("spec", {"signature": ""}), ("spec", {"signature": "!"}), ("spec", {"more": 1}),
    ]  # fmt: skip
    for where, more in changes:
        assert not place.signed({**made, where: {**made[where], **more}}), more


def test_an_agent_without_a_good_certificate_gets_no_order(place: Place) -> None:
    """Attack 34: a Node's annotation is only a claim."""
    stranger, expired = Authority().node("n2")[0], place.agents["n2"][0]
    for claim in (shown(stranger), shown(place.agents["n1"][0]), "", "!", "aaaa"):
        place.claims["n2"] = claim or " "
        with pytest.raises(Unavailable, match="the agent of node n2 has no certificate"):
            place.orders.move(item("m1"), "n1", "n2")
    del place.claims["n2"]
    later = OrderMaking(place.keyring, lambda _node: shown(expired), lambda: now() + 9 * DAY)
    with pytest.raises(Unavailable):
        later.move(item("m1"), "n1", "n2")


DAY = timedelta(days=1)


def stored(made: Json, **status: Any) -> Json:
    done = {"phase": "Complete", "digest": "sha256:1", "location": "peer://n2", "startedAt": "x"}
    return {**made, "status": {**done, **status}}


def brought(place: Place, kept: Json) -> bytes:
    wanted = item("b1", targetNode="n3", store=None, **{"from": {"checkpoint": "k"}})
    made = place.orders.bring(wanted, CheckpointSeen.of(kept), "n3")
    assert place.signed(made)
    return place.opened(made, "n3")


def test_what_older_versions_stored_is_opened_with_their_key(place: Place) -> None:
    with pytest.raises(UnknownKey, match="no wrapping key legacy"):
        brought(place, stored(item("k1")))
    place.wrapping["legacy"] = LEGACY
    place.write("g1")
    assert brought(place, stored(item("k1"))) == LEGACY


async def test_three_stored_and_rotated_twice(place: Place) -> None:
    """Attack 40: keys can be replaced, and what was stored before still opens."""
    api = FakeApi()
    place.wrapping["legacy"] = LEGACY
    place.write("g1")
    keys: dict[str, bytes] = {}

    def keep(name: str) -> None:
        made = place.orders.keep(item(name), "n1")
        keys[name] = place.opened(made, "n1")
        put(name, stored(made))

    def put(name: str, made: Json) -> None:
        made["metadata"]["resourceVersion"] = "1"
        api.items[CHECKPOINTS.plural, "team", name] = made

    rotation = Rotation(api, place.keyring, (), lambda: True)
    put("old", stored(item("old")))
    keys["old"] = LEGACY
    keep("k1")
    for generation in (2, 3):
        place.wrapping[f"g{generation}"] = os.urandom(32)
        place.authorities.insert(0, Authority(f"nodes {generation}"))
        place.write(f"g{generation}")
        keep(f"k{generation}")
        await rotation.look()
        await rotation.look()
        assert metrics.WRAPPING_KEYS.labels(f"g{generation}")._value.get() == generation
        assert metrics.WRAPPING_KEYS.labels(f"g{generation - 1}")._value.get() == 0
    for gone in ("g1", "g2"):
        del place.wrapping[gone]
    del place.authorities[2]
    place.write("g3")
    place.agents["n3"] = place.authorities[0].node("n3")
    for name, key in keys.items():
        kept = api.items[CHECKPOINTS.plural, "team", name]
        assert brought(place, kept) == key
        status = schema_of(crds()["Checkpoint"])["properties"]["status"]["properties"]["key"]
        assert list(problems(status, kept["status"].get("key", {"id": "a", "wrapped": ""}))) == []
    assert len(set(keys.values())) == 4
    seen = [CheckpointSeen.of(one) for one in api.all(CHECKPOINTS)]
    assert due(seen, "g3") == []
    assert needed(seen, place.keyring.ids()) == {"g3": 3, "legacy": 1}


async def test_a_key_that_is_gone_is_named(place: Place) -> None:
    made = stored(place.orders.keep(item("k1"), "n1"))
    place.wrapping = {"g2": os.urandom(32)}
    place.write("g2")
    with pytest.raises(UnknownKey, match="its wrapping key is g1") as raised:
        brought(place, made)
    assert "put kek-g1 back" in str(raised.value)
    assert needed([CheckpointSeen.of(made)], place.keyring.ids()) == {"g1": 1}
    api = FakeApi()
    api.items[CHECKPOINTS.plural, "team", "k1"] = made
    await Rotation(api, place.keyring, ("team",), lambda: True).look()
    assert "key" not in made["status"], "and is not wrapped with a key that opens nothing"


def test_no_key_is_shown(place: Place) -> None:
    assert "EllipticCurve" not in repr(place.keyring.signer())
    with pytest.raises(UnknownKey) as raised:
        place.keyring.wrapping("../ca.key")
    assert "PRIVATE" not in str(raised.value)
    (place.folder / "kek-g1").write_text("short")
    with pytest.raises(UnknownKey) as raised:
        place.keyring.wrapping("g1")
    assert "short" not in str(raised.value)


async def test_the_session_says_which_key_is_missing() -> None:
    """A suspended session whose checkpoint needs a key that the operator does not have."""
    world = World()
    world.api.put(session_object())
    await world.run(30)
    change(world, suspended=True)
    await world.run(60)
    (kept,) = world.api.all(CHECKPOINTS)
    assert kept["status"]["phase"] == "Complete"
    kept["spec"]["key"]["id"] = "g9"
    change(world, suspended=False)
    await world.run(30)
    (ready,) = (one for one in world.status["conditions"] if one["type"] == "Ready")
    assert ready["reason"] == "KeyUnknown", ready
    assert "its wrapping key is g9" in ready["message"]
    kept["spec"]["key"]["id"] = "g1"
    await world.run(120)
    assert world.status["phase"] == "Running"


# -- certificates ---------------------------------------------------------------------------------


def asked(node: str = "n1", **spec: Any) -> Json:
    """As the API server shows what an agent asked for."""
    made = request("csr-1", node, ec.generate_private_key(ec.SECP256R1()))
    stamp = {order_keys.NODE_NAME: ["n1"], "authentication.kubernetes.io/pod-name": ["p"]}
    name = {"username": "system:serviceaccount:" + ACCOUNT, "extra": stamp}
    made["spec"] |= name | spec
    made["metadata"]["resourceVersion"] = "1"
    return made


def forged(*names: str, common: str = "system:holdfast-node:n1", **more: Any) -> str:
    key = more.get("key") or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])
    found = x509.SubjectAlternativeName([x509.DNSName(one) for one in names])
    made = x509.CertificateSigningRequestBuilder().subject_name(subject)
    made = made.add_extension(found, critical=False)
    if more.get("ca"):
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return base64.b64encode(made.sign(key, hashes.SHA256()).public_bytes(PEM)).decode()


def test_an_agents_own_request_is_granted(place: Place) -> None:
    grant = decide(asked(), ACCOUNT)
    assert isinstance(grant, Grant)
    signer = place.keyring.signer()
    made = x509.load_pem_x509_certificate(certificate(grant, signer, now()))
    made.verify_directly_issued_by(signer.certificate)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["n1.node.holdfast.dev"]
    assert timedelta(hours=23) < made.not_valid_after_utc - now() < timedelta(hours=25)
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    place.claims["n1"] = shown(made)
    assert place.orders.keep(item("k1"), "n1")
    long = "n" + "o" * 80
    named = {order_keys.NODE_NAME: [long]}
    assert isinstance(decide(asked(long, extra=named), ACCOUNT), Grant), "longer than X.509 allows"


OTHER = {order_keys.NODE_NAME: ["n2"]}
REFUSED: dict[str, tuple[Json, str]] = {
    "another node": ({"extra": OTHER}, "its subject must be system:holdfast-node:n2"),
    "no node": ({"extra": {}}, "bound to no node"),
    "no extra": ({"extra": None}, "bound to no node"),
    "two nodes": ({"extra": {order_keys.NODE_NAME: ["n1", "n2"]}}, "bound to no node"),
    "another account": ({"username": "system:serviceaccount:x:holdfast-node"}, "service account"),
    "a person": ({"username": "admin"}, "service account"),
    "other usages": ({"usages": ["client auth"]}, "usages"),
    "may sign": ({"usages": [*order_keys.USAGES, "cert sign"]}, "usages"),
    "two names": ({"request": forged("n1.node.holdfast.dev", "n2.node.holdfast.dev")}, "name"),
    "another name": ({"request": forged("n2.node.holdfast.dev")}, "must name n1"),
    "a pattern": ({"request": forged("*.node.holdfast.dev")}, "must name n1"),
    "another subject": (
        {"request": forged("n1.node.holdfast.dev", common="system:masters")}, "subject"
    ),
    "a CA": ({"request": forged("n1.node.holdfast.dev", ca=True)}, "nothing else"),
    "another curve": (
        {"request": forged("n1.node.holdfast.dev", key=ec.generate_private_key(ec.SECP384R1()))},
        "P-256",
    ),
    "no request": ({"request": "AAAA"}, "can be read"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_denied(name: str) -> None:
    """Attack 34: nobody gets a certificate for another node."""
    change, why = REFUSED[name]
    answer = decide(asked(**change), ACCOUNT)
    assert isinstance(answer, Deny), name
    assert why in answer.why


def test_what_is_none_of_ours() -> None:
    assert decide(asked(signerName="kubernetes.io/kubelet-serving"), ACCOUNT) is None
    for status in ({"certificate": "x"}, {"conditions": [{"type": "Denied"}]}):
        assert decide({**asked(), "status": status}, ACCOUNT) is None


class Requests:
    """The API's part of it."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Json]] = []

    async def update(self, kind: Any, name: str, sub: str, body: Any) -> Json:
        assert (kind, name) == (CERTIFICATE_REQUESTS, "csr-1")
        self.said.append((sub, body["status"]))
        return dict(body)

    async def list_all(self, *_: Any) -> Any:
        raise NotImplementedError

    def watch(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


async def test_it_is_approved_and_then_signed(place: Place) -> None:
    api = Requests()
    signing = NodeCertificates(api, place.keyring, ACCOUNT, lambda: True)
    await signing.answer(asked())
    (first, approved), (second, signed) = api.said
    assert (first, second) == ("approval", "status")
    assert [one["type"] for one in approved["conditions"]] == ["Approved"]
    made = x509.load_pem_x509_certificate(base64.b64decode(signed["certificate"]))
    made.verify_directly_issued_by(place.authorities[0].certificate)
    api.said.clear()
    # Killed between the two: it is approved already.
    await signing.answer({**asked(), "status": {"conditions": [{"type": "Approved"}]}})
    assert [sub for sub, _ in api.said] == ["status"]
    api.said.clear()
    await signing.answer(asked(extra=OTHER))
    ((sub, denied),) = api.said
    assert (sub, denied["conditions"][0]["type"]) == ("approval", "Denied")
    assert "certificate" not in denied


def test_an_order_that_came_too_late_for_its_key_says_nothing_of_the_checkpoint() -> None:
    """Its agent was started anew meanwhile: the checkpoint is as good as before."""
    kept = order(1)
    tried = order(2, kind=Kind.BRING, origin=kept.name, phase="Failed")
    late = replace(tried, reason="KeyNotForNode")
    assert restores.failures(running(kept, tried, tried), kept.name) == 2
    assert restores.failures(running(kept, tried, late, late), kept.name) == 1
