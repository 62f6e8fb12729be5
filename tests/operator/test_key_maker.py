"""Keys are made once and kept (attack 40): what is there stays, what is missing is made."""

from __future__ import annotations

import base64
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from cryptography import x509

from holdfast_operator import key_maker
from holdfast_operator.key_maker import CONFIG_MAPS, Data, Put, Wanted, decide, gateway_names
from holdfast_wire.errors import BadRequest

NOW = datetime.now(UTC)
WANTED = Wanted("ns", "hf", ssh=True)


def made(wanted: Wanted, found: dict[str, Data | None], now: datetime = NOW) -> dict[str, Put]:
    every = {name: found.get(name) for name in key_maker.names_of(wanted)}
    return {put.name: put for put in decide(wanted, every, now)}


def installed(wanted: Wanted = WANTED, now: datetime = NOW) -> dict[str, Data | None]:
    return {name: put.data for name, put in made(wanted, {}, now).items()}


def again(wanted: Wanted, before: dict[str, Data | None], now: datetime = NOW) -> dict[str, Put]:
    """The Secrets that are written; the ConfigMap is, each time."""
    found = made(wanted, before, now)
    return {name: put for name, put in found.items() if put.kind is not CONFIG_MAPS}


def test_a_first_installation_gets_everything() -> None:
    found = made(WANTED, {})
    assert found.keys() == {*key_maker.names_of(WANTED), "hf-node-ca"} - {"hf-node"}
    keys = found["hf-keys"].data
    assert keys.keys() == {
        "ca",
        "ca.crt",
        "ca.key",
        "ca-bundle.crt",
        "current",
        "kek-g1",
    }
    assert keys["current"] == b"g1"
    assert len(base64.b64decode(keys["kek-g1"], validate=True)) == 32
    assert found["hf-node-ca"].data == {"ca-bundle.crt": keys["ca.crt"]}
    assert all(put.fresh for name, put in found.items() if name != "hf-node-ca")


def test_nothing_is_written_twice() -> None:
    assert again(WANTED, installed()) == {}
    assert again(WANTED, installed(), NOW + timedelta(days=300)) == {}


def test_no_secret_is_shown() -> None:
    assert "PRIVATE" not in repr(decide(WANTED, dict.fromkeys(key_maker.names_of(WANTED)), NOW))


def test_a_raised_generation_adds_a_key_and_keeps_the_others() -> None:
    before = installed()
    old = before["hf-keys"]
    assert old is not None
    new = again(Wanted("ns", "hf", ssh=True, generation=3), before)["hf-keys"].data
    assert new["current"] == b"g3"
    assert new["kek-g1"] == old["kek-g1"] != new["kek-g3"]
    assert new["ca.crt"] == old["ca.crt"]
    # One that is lowered by mistake changes nothing.
    lowered = again(WANTED, {**before, "hf-keys": new})
    assert lowered == {}


def test_a_raised_authority_is_trusted_beside_the_former() -> None:
    before = installed()
    old = before["hf-keys"]
    assert old is not None
    found = made(Wanted("ns", "hf", ssh=True, ca_generation=2), before)
    new = found["hf-keys"].data
    assert new["ca.crt"] != old["ca.crt"]
    assert new["ca-bundle.crt"] == new["ca.crt"] + old["ca.crt"]
    assert found["hf-node-ca"].data["ca-bundle.crt"] == new["ca-bundle.crt"]
    assert again(Wanted("ns", "hf", ssh=True, ca_generation=2), {**before, "hf-keys": new}) == {}


def test_an_older_charts_keys_are_adopted() -> None:
    """Its Secrets: no hf-keys; the agents' with seal.key; the webhook's without its CA's key."""
    now = installed()
    node = {"ca.crt": b"a", "tls.crt": b"b", "tls.key": b"c", "seal.key": b"sealed"}
    gateway, webhook = now["hf-gateway"], now["hf-webhook"]
    assert gateway is not None
    assert webhook is not None
    old = {**now, "hf-keys": None, "hf-node": node}
    old["hf-webhook"] = {key: value for key, value in webhook.items() if key != "ca.key"}
    found = again(WANTED, old)
    assert found.keys() == {"hf-keys", "hf-webhook"}
    assert found["hf-keys"].data["kek-legacy"] == node["seal.key"]
    assert found["hf-keys"].data["current"] == b"g1"
    assert found["hf-webhook"].data["ca.crt"] != webhook["ca.crt"]
    assert found["hf-webhook"].data["path"] == webhook["path"]


def test_a_certificate_that_ends_soon_is_renewed_by_the_same_authority() -> None:
    before = installed()
    later = NOW + timedelta(days=key_maker.SERVED_DAYS - key_maker.RENEW_DAYS + 1)
    found = again(WANTED, before, later)
    assert found.keys() == {"hf-gateway", "hf-webhook"}
    for name, put in found.items():
        old = before[name]
        assert old is not None
        assert put.data["ca.crt"] == old["ca.crt"]
        assert put.data["tls.crt"] != old["tls.crt"]


def test_another_name_of_the_gateway_renews_its_certificate() -> None:
    wanted = Wanted("ns", "hf", ssh=True, hosts=("holdfast.example.com",))
    found = again(wanted, installed())
    assert found.keys() == {"hf-gateway"}
    assert names_in(found["hf-gateway"].data["tls.crt"]) == set(gateway_names(wanted))


def names_in(certificate: bytes) -> set[str]:
    found = x509.load_pem_x509_certificate(certificate)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return set(names.get_values_for_type(x509.DNSName))


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("hf-gateway", "hf-gateway.ns.svc"),
        ("hf-gateway", "hf-gateway-uplink.ns.svc.cluster.local"),
        ("hf-webhook", "hf-webhook.ns.svc"),
    ],
)
def test_openssl_believes_them_strictly(tmp_path: Path, name: str, host: str) -> None:
    data = installed()[name]
    assert data is not None
    for file in ("ca.crt", "tls.crt", "tls.key"):
        (tmp_path / file).write_bytes(data[file])
    done = subprocess.run(
        ["openssl", "verify", "-x509_strict", "-CAfile", tmp_path / "ca.crt", "-purpose",
         "sslserver", "-verify_hostname", host, tmp_path / "tls.crt"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
        tmp_path / "tls.crt", tmp_path / "tls.key"
    )


def test_the_host_key_is_one_that_openssh_reads() -> None:
    data = installed()["hf-gateway-ssh-host"]
    assert data is not None
    key = asyncssh.import_private_key(data["ssh_host_key"])
    assert key.get_algorithm() == "ssh-ed25519"


@pytest.mark.parametrize("part", ["keys", "gateway", "webhook", "ssh"])
def test_what_others_bring_is_left_alone(part: str) -> None:
    parts: dict[str, Any] = {"ssh": True} | {part: False}
    left = {
        "keys": {"hf-keys", "hf-node-ca"}, "gateway": {"hf-gateway"},
        "webhook": {"hf-webhook"}, "ssh": {"hf-gateway-ssh-host"},
    }[part]  # fmt: skip
    assert made(WANTED, {}).keys() - made(Wanted("ns", "hf", **parts), {}).keys() == left


def test_the_environment_must_be_the_charts() -> None:
    with pytest.raises(BadRequest):
        Wanted.from_env({})
    with pytest.raises(BadRequest):
        Wanted.from_env(
            {"HOLDFAST_NAMESPACE": "a", "HOLDFAST_FULLNAME": "b", "HOLDFAST_KEYS_GENERATION": "x"}
        )
