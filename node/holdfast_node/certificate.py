"""Who this agent is, and whom it believes.

Its key is made here, in memory, and lies nowhere else; an agent that is started anew has another.
The operator signs a certificate for it that names this node, if the API server says that the
request came from here. By it other agents know this one, and to it the data keys of orders are
sealed. It is renewed after two thirds of its life, and the former keys stay for what was sealed to
them before.

    none ── CSR ── signed ── published on the Node ──┐
              └──────── two thirds of its life ──────┘
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import secrets
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast_kube import order_keys
from holdfast_kube.client import CERTIFICATE_REQUESTS, Object, Resource
from holdfast_kube.order_keys import Of, Unopened
from holdfast_node import log
from holdfast_node.order import Order
from holdfast_node.pair import Keys
from holdfast_wire.errors import Forbidden, HoldfastError, Unauthenticated, Unavailable

BUNDLE: Final = "ca-bundle.crt"
SECONDS: Final = 86400  # that it is asked for
ASK_SECONDS: Final = 0.5  # between two looks whether it was signed
WAIT_SECONDS: Final = 60.0  # then another request is made
AGAIN_SECONDS: Final = 5.0
_FORMER: Final = 3  # keys


class Untrusted(Forbidden):
    """An order that is not obeyed. `reason` is for the Checkpoint's condition."""

    code = "untrusted_order"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Api(Protocol):
    async def get(self, kind: Resource, namespace: str, name: str) -> Object | None: ...

    async def create(self, kind: Resource, namespace: str, body: Object) -> Object: ...


@dataclass(frozen=True, eq=False)
class Pair:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    def renew_in(self, now: datetime) -> float:
        """Seconds until two thirds of its life are over."""
        begin, end = self.certificate.not_valid_before_utc, self.certificate.not_valid_after_utc
        return (begin + (end - begin) * 2 / 3 - now).total_seconds()

    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM) + self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


class Identity:
    def __init__(self, node: str, folder: Path, kube: Api) -> None:
        self.node, self._bundle, self._kube = node, folder / BUNDLE, kube
        self._pairs: list[Pair] = []  # the newest first
        self._contexts: dict[ssl.Purpose, tuple[tuple[str, Pair], ssl.SSLContext]] = {}

    # -- the certificate --------------------------------------------------------------------------

    @property
    def published(self) -> str:
        """For the Node's annotation."""
        return base64.b64encode(
            self._pair.certificate.public_bytes(serialization.Encoding.DER)
        ).decode()

    @property
    def _pair(self) -> Pair:
        if not self._pairs:
            raise Unavailable("this agent has no certificate yet: the operator has to sign it")
        return self._pairs[0]

    async def obtain(self) -> None:
        """Returns when there is a new one. What is lacking is said, once."""
        told = ""
        while True:
            try:
                self._pairs = [await self._requested(), *self._pairs][: 1 + _FORMER]
            except HoldfastError as error:
                if str(error) != told:
                    log.warning("no certificate yet", why=str(error))
                told = str(error)
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                until = self._pair.certificate.not_valid_after_utc.isoformat()
                log.info("certificate", node=self.node, until=until)
                return

    async def keep(self, publish: Callable[[], Awaitable[object]]) -> None:
        """For ever: renews it in time."""
        while True:
            await asyncio.sleep(max(AGAIN_SECONDS, self._pair.renew_in(datetime.now(UTC))))
            await self.obtain()
            while True:
                try:
                    await publish()
                except HoldfastError as error:
                    log.warning("the certificate was not published", why=str(error))
                    await asyncio.sleep(AGAIN_SECONDS)
                else:
                    break

    async def _requested(self) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        name = f"holdfast-{hashlib.sha256(self.node.encode()).hexdigest()[:12]}"
        name = f"{name}-{secrets.token_hex(5)}"
        await self._kube.create(CERTIFICATE_REQUESTS, "", request(name, self.node, key))
        for _ in range(int(WAIT_SECONDS / ASK_SECONDS)):
            item = await self._kube.get(CERTIFICATE_REQUESTS, "", name)
            if item is None:
                break
            status = item.get("status") or {}
            if status.get("certificate"):
                return self._taken(base64.b64decode(status["certificate"]), key)
            for one in status.get("conditions") or ():
                if one.get("type") in ("Denied", "Failed"):
                    raise Unauthenticated(
                        f"the request for a certificate was denied: {one.get('message', '')}"
                    )
            await asyncio.sleep(ASK_SECONDS)
        raise Unavailable("the operator has not signed this agent's certificate: does it run?")

    def _taken(self, pem: bytes, key: ec.EllipticCurvePrivateKey) -> Pair:
        certificate = x509.load_pem_x509_certificate(pem)
        if certificate.public_key() != key.public_key():
            raise Unauthenticated("what was signed is not this agent's key")
        if not any(_issued(certificate, one) for one in self.authorities()):
            raise Unauthenticated(f"the certificate is of no CA in {self._bundle}")
        return Pair(certificate, key)

    # -- connections ------------------------------------------------------------------------------

    def authorities(self) -> list[x509.Certificate]:
        """Read each time: they are replaced while we run."""
        try:
            return x509.load_pem_x509_certificates(self._bundle.read_bytes())
        except (OSError, ValueError) as error:
            raise Unavailable(f"the nodes' CAs cannot be read: {error}") from None

    def tls(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        """Each side shows its certificate and wants to see one. Made anew when one of them is."""
        pem = "".join(
            one.public_bytes(serialization.Encoding.PEM).decode() for one in self.authorities()
        )
        made_of, context = self._contexts.get(purpose, (None, None))
        if context is None or made_of != (pem, self._pair):
            context = _context(purpose, pem, self._pair.pem())
            self._contexts[purpose] = (pem, self._pair), context
        return context

    def marks(self) -> list[str]:
        """Words for this cluster; that of the newest CA first."""
        return [order_keys.mark(one) for one in self.authorities()]

    # -- orders -----------------------------------------------------------------------------------

    def check(self, item: Mapping[str, Any]) -> None:
        """Only the operator can have made this order. Raises Untrusted."""
        meta, spec = item["metadata"], item.get("spec") or {}
        signature = spec.get("signature")
        signed = order_keys.body(str(meta["namespace"]), str(meta["name"]), spec)
        if not isinstance(signature, str) or not signature:
            raise Untrusted(
                "Unsigned",
                f"{meta['name']} has no signature: the operator did not make it. Delete it",
            )
        if not order_keys.is_signed(signed, signature, self.authorities()):
            raise Untrusted(
                "BadSignature",
                f"the signature of {meta['name']} is not that of the operator: the order was made"
                " or changed by somebody else, or the CA that signed it is not trusted any more",
            )

    def keys(self, order: Order) -> Keys:
        """Made of its data key. Raises Untrusted."""
        sealed = order.sealed.get(self.node)
        if sealed is None:
            raise Untrusted("KeyNotForNode", f"{order.name} has no key for node {self.node}")
        of = Of(order.namespace, order.name, order.session_uid)
        for pair in self._pairs:
            try:
                return Keys(order_keys.open_sealed(sealed, pair.key, self.node, of))
            except Unopened:
                continue
        raise Untrusted(
            "KeyNotForNode",
            f"the key of {order.name} is not sealed to the certificate that the agent of"
            f" {self.node} has now: it was started anew meanwhile, or the order is another's",
        )


def request(name: str, node: str, key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
    """A CertificateSigningRequest."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, order_keys.common_name(node))])
    names = x509.SubjectAlternativeName([x509.DNSName(order_keys.dns_name(node))])
    made = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name, "labels": {order_keys.CSR_LABEL: "node"}},
        "spec": {
            "request": base64.b64encode(pem).decode(),
            "signerName": order_keys.SIGNER,
            "usages": list(order_keys.USAGES),
            "expirationSeconds": SECONDS,
        },
    }


def _issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # of three kinds, and all say no
        return False
    return True


def _context(purpose: ssl.Purpose, authorities: str, pair: bytes) -> ssl.SSLContext:
    context = ssl.create_default_context(purpose, cadata=authorities)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # link.py compares the names of nodes
    context.verify_mode = ssl.CERT_REQUIRED
    # The ssl module loads a pair from files only: this one is in memory and has no name.
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pair)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context
