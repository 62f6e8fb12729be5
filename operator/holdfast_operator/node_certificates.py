"""Certificates of the nodes' agents, which the operator signs.

A request is granted only if the API server says that it comes from the agents' service account, by
a token that is bound to a pod on the very node that the certificate is to name. What the request
itself says beside that must be just what is expected, and nothing of it is copied but the key.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast_kube import order_keys
from holdfast_kube.client import CERTIFICATE_REQUESTS, Conflict, Gone, Object, Resource
from holdfast_operator import log
from holdfast_operator.keyring import Keyring, Signer
from holdfast_wire.errors import HoldfastError

LIFE: Final = timedelta(hours=24)
SKEW: Final = timedelta(minutes=5)  # by which clocks of nodes may be behind ours
WATCH_SECONDS: Final = 60
SILENCE_SECONDS: Final = 100.0
PAUSE_SECONDS: Final = 1.0
LABELS: Final = f"{order_keys.CSR_LABEL}=node"


@dataclass(frozen=True, slots=True)
class Grant:
    node: str
    key: ec.EllipticCurvePublicKey


@dataclass(frozen=True, slots=True)
class Deny:
    why: str


def decide(item: Mapping[str, Any], account: str) -> Grant | Deny | None:
    """None: it is none of ours, or is done with. `account`: NAMESPACE:NAME. Pure."""
    spec, status = item.get("spec") or {}, item.get("status") or {}
    if spec.get("signerName") != order_keys.SIGNER or status.get("certificate"):
        return None
    if any(one.get("type") in ("Denied", "Failed") for one in status.get("conditions") or ()):
        return None
    if spec.get("username") != f"system:serviceaccount:{account}":
        return Deny("it was not made by the agents' service account")
    stamped: Sequence[str] = (spec.get("extra") or {}).get(order_keys.NODE_NAME) or ()
    if len(stamped) != 1 or not stamped[0]:
        return Deny("the token that it was made with is bound to no node")
    if sorted(spec.get("usages") or ()) != sorted(order_keys.USAGES):
        return Deny(f"its usages must be {', '.join(order_keys.USAGES)}")
    return _read(str(spec.get("request") or ""), str(stamped[0]))


def _read(request: str, node: str) -> Grant | Deny:
    try:
        made = x509.load_pem_x509_csr(base64.b64decode(request, validate=True))
        valid = made.is_signature_valid
        subject = made.subject
        names = {type(one.value): one.value for one in made.extensions}
    except (ValueError, binascii.Error, x509.UnsupportedGeneralNameType):
        return Deny("it holds no certificate request that can be read")
    key = made.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        return Deny("its key is not one on P-256")
    if not valid:
        return Deny("it is not signed with its own key")
    common = [one.value for one in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if len(list(subject)) != 1 or common != [order_keys.common_name(node)]:
        return Deny(f"its subject must be {order_keys.common_name(node)}")
    wanted = x509.SubjectAlternativeName([x509.DNSName(order_keys.dns_name(node))])
    if set(names) != {x509.SubjectAlternativeName} or [*names.values()] != [wanted]:
        return Deny(f"it must name {order_keys.dns_name(node)}, and nothing else")
    return Grant(node, key)


def certificate(grant: Grant, by: Signer, now: datetime) -> bytes:
    """PEM."""
    public = by.key.public_key()
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=False, crl_sign=False, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    both = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, order_keys.common_name(grant.node))]
    names = x509.SubjectAlternativeName([x509.DNSName(order_keys.dns_name(grant.node))])
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(subject))
        .issuer_name(by.certificate.subject)
        .public_key(grant.key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(min(now + LIFE, by.certificate.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(names, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(grant.key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(by.key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


class Requests(Protocol):
    """What this needs of the API."""

    async def list_all(
        self, kind: Resource, namespace: str | None, labels: str = "", metadata_only: bool = False
    ) -> tuple[list[Object], str]: ...

    def watch(
        self, kind: Resource, namespace: str | None, labels: str, version: str, *,
        seconds: int, silence: float, metadata_only: bool = True,
    ) -> AsyncIterator[Object]: ...  # fmt: skip

    async def update(self, kind: Resource, name: str, sub: str, body: Object) -> Object: ...


class NodeCertificates:
    def __init__(
        self, api: Requests, keyring: Keyring, account: str, leads: Callable[[], bool]
    ) -> None:
        self._api, self._keyring, self._account, self._leads = api, keyring, account, leads

    async def run(self) -> None:
        """For ever; acts while it leads."""
        while True:
            try:
                if self._leads():
                    await self._follow()
            except Gone:
                continue
            except HoldfastError as error:
                log.warning("requests for certificates are not seen", error=error.message)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _follow(self) -> None:
        """All that there are, and for a while those that come."""
        items, version = await self._api.list_all(CERTIFICATE_REQUESTS, None, LABELS)
        for item in items:
            await self.answer(item)
        async for event in self._api.watch(
            CERTIFICATE_REQUESTS, None, LABELS, version,
            seconds=WATCH_SECONDS, silence=SILENCE_SECONDS, metadata_only=False,
        ):  # fmt: skip
            if not self._leads():
                return
            if event["type"] in ("ADDED", "MODIFIED"):
                await self.answer(event["object"])

    async def answer(self, item: Object) -> None:
        """The one place that acts. What cannot be done now is done at the next look."""
        answer = decide(item, self._account)
        if answer is None:
            return
        name = item["metadata"]["name"]
        try:
            if isinstance(answer, Deny):
                log.warning("a certificate was denied", request=name, why=answer.why)
                await self._approval(item, "Denied", answer.why)
                return
            await self._sign(item, answer)
            log.info("a certificate was signed", request=name, node=answer.node)
        except Conflict:
            return  # what was written since comes by the watch
        except HoldfastError as error:
            log.warning("a request was not answered", request=name, error=error.message)

    async def _sign(self, item: Object, grant: Grant) -> None:
        pem = certificate(grant, self._keyring.signer(), datetime.now(UTC))
        status = item.get("status") or {}
        if not any(one.get("type") == "Approved" for one in status.get("conditions") or ()):
            why = f"the API server says that it comes from the agent of {grant.node}"
            item = await self._approval(item, "Approved", why)
        whole = {**(item.get("status") or {}), "certificate": base64.b64encode(pem).decode()}
        body = {**item, "status": whole}
        await self._api.update(CERTIFICATE_REQUESTS, item["metadata"]["name"], "status", body)

    async def _approval(self, item: Object, kind: str, why: str) -> Object:
        status = dict(item.get("status") or {})
        said = {"type": kind, "status": "True", "reason": "HoldfastOperator", "message": why}
        status["conditions"] = [*(status.get("conditions") or ()), said]
        name = item["metadata"]["name"]
        body = {**item, "status": status}
        return await self._api.update(CERTIFICATE_REQUESTS, name, "approval", body)
