"""What makes a Checkpoint an order, and what seals what it stores. Pure.

Each order has a data key of its own, 32 random bytes that the operator makes. In the API it is
never in the clear: `wrapped` by one of the operator's wrapping keys, so that it can be opened again
to bring back what was stored; and sealed `for` the nodes that the order names, each to the public
key of that node's certificate. All of it is bound to the order's namespace and name and the
session's UID, so that nothing of it can be put into another order.

The order is signed with the key of the nodes' CA. An agent obeys no other.

Both sides of the API import this module, and nobody else does: it needs `cryptography`.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from holdfast_wire.errors import Forbidden

SIZE: Final = 32  # bytes of each key
LEGACY: Final = "legacy"  # the id of the one key that older versions sealed everything with
KEY_ID: Final = re.compile(r"[a-z0-9]{1,16}")
SIGNER: Final = "holdfast.dev/node"
SUFFIX: Final = ".node.holdfast.dev"
CERTIFICATE: Final = "holdfast.dev/agent-certificate"  # the Node's annotation: base64 of DER
CSR_LABEL: Final = "holdfast.dev/certificate"  # of the agents' requests: "node"
USAGES: Final = ("digital signature", "client auth", "server auth")
NODE_NAME: Final = "authentication.kubernetes.io/node-name"  # the API server's stamp
_NONCE: Final = 12
_POINT: Final = 65  # of P-256, uncompressed
_COMMON_NAME: Final = 64  # X.509 allows no more


class Unopened(Forbidden):
    """This key does not open it, or it is not of this order."""

    code = "unopened"


@dataclass(frozen=True, slots=True)
class Of:
    """The order, or the stored checkpoint, that a key belongs to."""

    namespace: str
    name: str
    session: str  # UID

    def bound(self, node: str = "") -> bytes:
        return "\0".join((self.namespace, self.name, self.session, node)).encode()


def fresh() -> bytes:
    return os.urandom(SIZE)


# -- wrapped: for the operator itself -------------------------------------------------------------


def wrap(key: bytes, wrapping: bytes, of: Of) -> str:
    nonce = os.urandom(_NONCE)
    return _text(nonce + AESGCM(wrapping).encrypt(nonce, key, of.bound()))


def unwrap(wrapped: str, wrapping: bytes, of: Of) -> bytes:
    """Raises Unopened."""
    raw = _bytes(wrapped)
    try:
        return AESGCM(wrapping).decrypt(raw[:_NONCE], raw[_NONCE:], of.bound())
    except (InvalidTag, ValueError):
        raise Unopened(f"the wrapped key of {of.namespace}/{of.name} was altered") from None


# -- sealed: for one node -------------------------------------------------------------------------


def seal_for(key: bytes, certificate: x509.Certificate, node: str, of: Of) -> str:
    """ECDH with a key that is used once, HKDF, AES-256-GCM."""
    public = certificate.public_key()
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise Unopened(f"the certificate of node {node} has no key on P-256")
    once = ec.generate_private_key(ec.SECP256R1())
    point = _point(once.public_key())
    cipher = _agreed(once.exchange(ec.ECDH(), public), point + _point(public))
    return _text(point + cipher.encrypt(bytes(_NONCE), key, of.bound(node)))


def open_sealed(sealed: str, private: ec.EllipticCurvePrivateKey, node: str, of: Of) -> bytes:
    """Raises Unopened."""
    raw = _bytes(sealed)
    try:
        point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), raw[:_POINT])
        shared = private.exchange(ec.ECDH(), point)
        cipher = _agreed(shared, raw[:_POINT] + _point(private.public_key()))
        return cipher.decrypt(bytes(_NONCE), raw[_POINT:], of.bound(node))
    except (InvalidTag, ValueError):
        raise Unopened(f"the key of {of.namespace}/{of.name} is not sealed to {node}") from None


def _agreed(shared: bytes, points: bytes) -> AESGCM:
    """The key is used for one message, so its nonce may be zero."""
    made = HKDF(hashes.SHA256(), SIZE, salt=None, info=b"holdfast order key 1\0" + points)
    return AESGCM(made.derive(shared))


def _point(public: ec.EllipticCurvePublicKey) -> bytes:
    return public.public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )


# -- the signature --------------------------------------------------------------------------------


def body(namespace: str, name: str, spec: Mapping[str, Any]) -> bytes:
    """What is signed: canonical JSON of all that the order says."""
    said = {key: value for key, value in spec.items() if key != "signature"}
    whole = {"namespace": namespace, "name": name, "spec": said}
    return json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def sign(signed: bytes, authority: ec.EllipticCurvePrivateKey) -> str:
    return _text(authority.sign(signed, ec.ECDSA(hashes.SHA256())))


def is_signed(signed: bytes, signature: str, authorities: Iterable[x509.Certificate]) -> bool:
    """By any of them."""
    try:
        raw = _bytes(signature)
    except Unopened:
        return False
    for one in authorities:
        public = one.public_key()
        if isinstance(public, ec.EllipticCurvePublicKey):
            try:
                public.verify(raw, signed, ec.ECDSA(hashes.SHA256()))
            except InvalidSignature:
                continue
            return True
    return False


# -- certificates ---------------------------------------------------------------------------------


def dns_name(node: str) -> str:
    return node + SUFFIX


def common_name(node: str) -> str:
    """For people; X.509 cuts it. What counts is the DNS name."""
    return f"system:holdfast-node:{node}"[:_COMMON_NAME]


def node_of(names: Iterable[str]) -> str:
    """Whose certificate has these DNS names; "": it is no node's."""
    found = tuple(names)
    if len(found) != 1 or not found[0].endswith(SUFFIX):
        return ""
    return found[0].removesuffix(SUFFIX)


def mark(authority: x509.Certificate) -> str:
    """A short word for one CA: whose cluster something belongs to."""
    public = authority.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digest = hashes.Hash(hashes.SHA256())
    digest.update(public)
    return digest.finalize().hex()[:16]


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Unopened("this is no base64") from None
