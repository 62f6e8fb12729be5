"""`holdfast-keys`: makes the keys and certificates that a release needs, once.

Helm runs it as a Job: `make` before what uses them is installed or upgraded, `publish` after it,
which tells the API server the authorities of the webhook and of the gateway. What is there is kept:
an entry is only added, or replaced where its certificate ends soon. No template makes a key, so
that a chart that is rendered twice is the same twice.

`decide` and what it calls are pure but for chance and the clock, which it is given; `Cluster`
writes.
"""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast_kube import credentials
from holdfast_kube.client import Conflict, Kube, Resource
from holdfast_operator import log
from holdfast_wire.errors import AlreadyExists, BadRequest, HoldfastError

SECRETS: Final = Resource("/api/v1", "secrets")
CONFIG_MAPS: Final = Resource("/api/v1", "configmaps")
WEBHOOKS: Final = Resource(
    "/apis/admissionregistration.k8s.io/v1", "validatingwebhookconfigurations"
)
API_SERVICES: Final = Resource("/apis/apiregistration.k8s.io/v1", "apiservices")
API_SERVICE: Final = "v1alpha1.subresources.holdfast.dev"

AUTHORITY_DAYS: Final = 3650
SERVED_DAYS: Final = 825
# A certificate that ends within this is replaced by the next upgrade.
RENEW_DAYS: Final = 400
LEGACY: Final = "legacy"
KEEP: Final = {"helm.sh/resource-policy": "keep"}

Data = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the chart's values ask for."""

    namespace: str
    fullname: str
    generation: int = 1  # of the wrapping key
    ca_generation: int = 1  # of the nodes' authority
    # Whether each is ours to make; others bring their own Secret.
    keys: bool = True
    gateway: bool = True
    webhook: bool = True
    ssh: bool = False
    hosts: tuple[str, ...] = ()

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Wanted:
        def yes(name: str) -> bool:
            return env.get(name) == "true"

        try:
            return cls(
                env["HOLDFAST_NAMESPACE"],
                env["HOLDFAST_FULLNAME"],
                int(env.get("HOLDFAST_KEYS_GENERATION", "1")),
                int(env.get("HOLDFAST_KEYS_CA_GENERATION", "1")),
                yes("HOLDFAST_MAKE_KEYS"),
                yes("HOLDFAST_MAKE_GATEWAY"),
                yes("HOLDFAST_MAKE_WEBHOOK"),
                yes("HOLDFAST_MAKE_SSH"),
                tuple(filter(None, env.get("HOLDFAST_HOSTS", "").split(","))),
            )
        except (KeyError, ValueError) as error:
            raise BadRequest(
                f"the environment is not as the chart sets it: {error}", "use the chart's Job"
            ) from None


@dataclass(frozen=True, slots=True)
class Put:
    """An object that must have this data; `fresh` if there is none yet."""

    kind: Resource
    name: str
    data: Data = field(repr=False)
    fresh: bool = False


Found = Mapping[str, Data | None]
"""The data of each Secret by its name; None: there is none."""


def names_of(wanted: Wanted) -> tuple[str, ...]:
    name = wanted.fullname
    return (
        f"{name}-keys", f"{name}-node", f"{name}-gateway", f"{name}-webhook",
        f"{name}-gateway-ssh-host",
    )  # fmt: skip


def decide(wanted: Wanted, found: Found, now: datetime) -> list[Put]:
    """What is missing. What is there is kept, but for a certificate that ends soon."""
    name, made = wanted.fullname, []

    def secret(which: str, data: Data) -> None:
        before = found.get(which)
        if before is None or before != data:
            made.append(Put(SECRETS, which, data, fresh=before is None))

    if wanted.keys:
        shared = found.get(f"{name}-node") or {}  # of an older chart
        keys = _keys(wanted, found.get(f"{name}-keys") or {}, shared, now)
        secret(f"{name}-keys", keys)
        made.append(Put(CONFIG_MAPS, f"{name}-node-ca", {"ca-bundle.crt": keys["ca-bundle.crt"]}))
    if wanted.gateway:
        secret(f"{name}-gateway", _served(found.get(f"{name}-gateway") or {}, "holdfast-gateway",
                                          gateway_names(wanted), now))  # fmt: skip
    if wanted.webhook:
        # A Secret of an older chart has no key of its authority: then all of it is made anew.
        own = found.get(f"{name}-webhook") or {}
        kept = own if "ca.key" in own else {}
        path = {"path": own.get("path") or secrets.token_hex(20).encode()}
        host = f"{name}-webhook.{wanted.namespace}.svc"
        secret(f"{name}-webhook", path | _served(kept, "holdfast-webhook", (host,), now))
    if wanted.ssh:
        which = f"{name}-gateway-ssh-host"
        secret(which, {"ssh_host_key": _host_key()} | (found.get(which) or {}))
    return made


def gateway_names(wanted: Wanted) -> tuple[str, ...]:
    services = (f"{wanted.fullname}-gateway{end}" for end in ("", "-uplink", "-front"))
    full = (f"{service}.{wanted.namespace}.svc" for service in services)
    return (*(name + end for name in full for end in ("", ".cluster.local")), *wanted.hosts)


def _keys(wanted: Wanted, before: Data, shared: Data, now: datetime) -> Data:
    data = dict(before)
    identity = f"g{wanted.generation}"
    data.setdefault(f"kek-{identity}", base64.b64encode(secrets.token_bytes(32)))
    if _generation(before.get("current", b"")) <= wanted.generation:
        data["current"] = identity.encode()
    # What was stored before there were wrapping keys is sealed with this one.
    if "seal.key" in shared:
        data.setdefault(f"kek-{LEGACY}", shared["seal.key"])
    if "ca.crt" not in before or _generation(before.get("ca", b"")) < wanted.ca_generation:
        key, certificate = _authority("holdfast-nodes", now)
        data["ca.key"], data["ca.crt"] = key, certificate
        data["ca"] = f"g{wanted.ca_generation}".encode()
        data["ca-bundle.crt"] = certificate + before.get("ca-bundle.crt", b"")
    return data


def _generation(identity: bytes) -> int:
    text = identity.decode().removeprefix("g")
    return int(text) if text.isdigit() else 0


def _served(before: Data, common: str, hosts: tuple[str, ...], now: datetime) -> Data:
    """An authority, which is kept, and a certificate, which is renewed."""
    data = dict(before)
    if "ca.crt" not in data or "ca.key" not in data:
        data["ca.key"], data["ca.crt"] = _authority(f"{common}-ca", now)
        data.pop("tls.crt", None)
    if "tls.crt" not in data or "tls.key" not in data or not _good(data["tls.crt"], hosts, now):
        data["tls.key"], data["tls.crt"] = _signed(
            common, hosts, data["ca.key"], data["ca.crt"], now
        )
    return data


def _good(certificate: bytes, hosts: tuple[str, ...], now: datetime) -> bool:
    """Long enough, and for these names."""
    try:
        found = x509.load_pem_x509_certificate(certificate)
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    enough = found.not_valid_after_utc - now > timedelta(days=RENEW_DAYS)
    return enough and set(names.get_values_for_type(x509.DNSName)) == set(hosts)


def _authority(common: str, now: datetime) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
    made = (
        _builder(name, name, key, now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _pem(key), made.public_bytes(serialization.Encoding.PEM)


def _signed(
    common: str, hosts: tuple[str, ...], ca_key: bytes, ca: bytes, now: datetime
) -> tuple[bytes, bytes]:
    signer = serialization.load_pem_private_key(ca_key, password=None)
    issuer = x509.load_pem_x509_certificate(ca)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise BadRequest("the key of an authority is not on an elliptic curve", "delete its Secret")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
    # As the authority has it: an older chart's was not made here.
    known = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    authority = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known)
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    made = (
        _builder(name, issuer.subject, key, now, SERVED_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(authority, critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    return _pem(key), made.public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # for clocks that are behind
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=signs, crl_sign=signs,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _pem(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _host_key() -> bytes:
    return _pem(ed25519.Ed25519PrivateKey.generate())


class Cluster:
    """Reads and writes by the names that the Job's Role lists."""

    def __init__(self, kube: Kube, wanted: Wanted) -> None:
        self._kube, self._wanted = kube, wanted

    async def make(self) -> None:
        found = {name: await self._secret(name) for name in names_of(self._wanted)}
        for one in decide(self._wanted, found, datetime.now(UTC)):
            await self._put(one)

    async def publish(self) -> None:
        """Which authorities the API server finds the webhook and the gateway by."""
        name = self._wanted.fullname
        if self._wanted.webhook:
            bundle = await self._authority(f"{name}-webhook")
            path = ((await self._secret(f"{name}-webhook") or {}).get("path") or b"").decode()
            hook = await self._kube.get(WEBHOOKS, "", f"{name}-webhook")
            if hook is not None:
                body: Any = {**hook}
                for one in body["webhooks"]:
                    one["clientConfig"]["caBundle"] = bundle
                    one["clientConfig"]["service"]["path"] = f"/evictions/{path}"
                await self._kube.replace(WEBHOOKS, "", f"{name}-webhook", body)
        if self._wanted.gateway:
            bundle = await self._authority(f"{name}-gateway")
            if await self._kube.get(API_SERVICES, "", API_SERVICE) is not None:
                change = {"spec": {"caBundle": bundle}}
                await self._kube.patch(API_SERVICES, "", API_SERVICE, change)

    async def _authority(self, name: str) -> str:
        data = await self._secret(name)
        if not data or "ca.crt" not in data:
            raise BadRequest(f"the Secret {name} has no ca.crt", "upgrade the release again")
        return base64.b64encode(data["ca.crt"]).decode()

    async def _secret(self, name: str) -> Data | None:
        item = await self._kube.get(SECRETS, self._wanted.namespace, name)
        if item is None:
            return None
        return {key: base64.b64decode(text) for key, text in (item.get("data") or {}).items()}

    async def _put(self, one: Put) -> None:
        body: dict[str, Any] = {
            "metadata": {"annotations": KEEP, "labels": {"app.kubernetes.io/part-of": "holdfast"}}
        }
        if one.kind is SECRETS:
            body["data"] = {key: base64.b64encode(text).decode() for key, text in one.data.items()}
        else:
            body["data"] = {key: text.decode() for key, text in one.data.items()}
        namespace = self._wanted.namespace
        fresh = one.fresh
        if one.kind is CONFIG_MAPS:
            fresh = await self._kube.get(CONFIG_MAPS, namespace, one.name) is None
        if not fresh:
            await self._kube.patch(one.kind, namespace, one.name, body)
        else:
            kind = "Secret" if one.kind is SECRETS else "ConfigMap"
            body |= {"apiVersion": "v1", "kind": kind}
            body["metadata"]["name"] = one.name
            try:
                await self._kube.create(one.kind, namespace, body)
            except AlreadyExists:
                raise Conflict(f"another holdfast-keys made {one.name}") from None
        log.info("a key was written", kind=one.kind.plural, name=one.name, entries=sorted(one.data))


async def run(verb: str, wanted: Wanted) -> None:
    async with Kube(credentials.find(), lambda _verb, _code: None) as kube:
        cluster = Cluster(kube, wanted)
        await (cluster.make() if verb == "make" else cluster.publish())


def main() -> int:
    log.configure("INFO")
    verbs = sys.argv[1:] or ["make"]
    try:
        if verbs not in (["make"], ["publish"]):
            raise BadRequest(f"unexpected arguments {verbs}", "use: holdfast-keys make|publish")
        asyncio.run(run(verbs[0], Wanted.from_env(os.environ)))
    except HoldfastError as error:
        print(f"holdfast-keys: {error}", file=sys.stderr)
        return error.exit_code
    return 0
