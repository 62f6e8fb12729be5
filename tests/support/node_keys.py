"""What the chart's hook makes, and what the operator makes of it: the nodes' CA, wrapping keys,
certificates of agents, orders with keys and signatures. Real ones, made here."""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast_kube import order_keys
from holdfast_kube.order_keys import Of

Json = dict[str, Any]
PEM: Final = serialization.Encoding.PEM
KEY: Final = b"0123456789abcdef0123456789abcdef"  # the data key of orders that do not care


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def shown(certificate: x509.Certificate) -> str:
    """As the Node's annotation has it."""
    return base64.b64encode(certificate.public_bytes(serialization.Encoding.DER)).decode()


class Authority:
    """A CA of nodes."""

    def __init__(self, name: str = "holdfast-nodes") -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        public = self.key.public_key()
        self.certificate = (
            _began(subject, subject, public)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    @classmethod
    def read(cls, certificate: bytes, key: bytes) -> Authority:
        """One that is in use."""
        made = cls.__new__(cls)
        made.certificate = x509.load_pem_x509_certificate(certificate)
        found = serialization.load_pem_private_key(key, None)
        assert isinstance(found, ec.EllipticCurvePrivateKey)
        made.key = found
        return made

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(PEM)

    def issue(
        self, names: Iterable[str], key: ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey
    ) -> x509.Certificate:
        found = tuple(names)
        public = key.public_key() if isinstance(key, ec.EllipticCurvePrivateKey) else key
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, found[0][:64])])
        both = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        return (
            _began(subject, self.certificate.subject, public)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.DNSName(one) for one in found]), critical=False
            )
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(authority, critical=False)
            .sign(self.key, hashes.SHA256())
        )

    def node(self, name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        key = ec.generate_private_key(ec.SECP256R1())
        return self.issue([order_keys.dns_name(name)], key), key

    def sign(self, item: Mapping[str, Any]) -> Json:
        """The Checkpoint with its signature."""
        meta, spec = item["metadata"], item["spec"]
        signed = order_keys.body(meta["namespace"], meta["name"], spec)
        return {**item, "spec": {**spec, "signature": order_keys.sign(signed, self.key)}}

    def order(
        self, item: Mapping[str, Any], nodes: Mapping[str, x509.Certificate], key: bytes = KEY
    ) -> Json:
        """With a data key for these nodes, and a signature."""
        meta, spec = item["metadata"], item["spec"]
        of = Of(meta["namespace"], meta["name"], spec["sessionUID"])
        sealed = [
            {"node": node, "sealed": order_keys.seal_for(key, certificate, node, of)}
            for node, certificate in nodes.items()
        ]
        return self.sign({**item, "spec": {**spec, "key": {"id": "g1", "for": sealed}}})


def _began(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=2))
    )


def context(
    trusted: Authority,
    purpose: ssl.Purpose,
    shown: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
    folder: Path,
) -> ssl.SSLContext:
    made = ssl.create_default_context(purpose, cadata=trusted.pem.decode())
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    if shown is not None:
        path = folder / f"{os.urandom(4).hex()}.pem"
        path.write_bytes(shown[0].public_bytes(PEM) + private_pem(shown[1]))
        made.load_cert_chain(path)
    return made


def keys_folder(
    folder: Path,
    authorities: Iterable[Authority],
    wrapping: Mapping[str, bytes],
    current: str,
) -> Path:
    """As the Secret is mounted into the operator; the newest CA first. Made anew."""
    folder.mkdir(exist_ok=True)
    for left in folder.iterdir():
        left.unlink()
    newest, *_ = found = list(authorities)
    (folder / "ca.crt").write_bytes(newest.pem)
    (folder / "ca.key").write_bytes(private_pem(newest.key))
    (folder / "ca-bundle.crt").write_bytes(b"".join(one.pem for one in found))
    (folder / "current").write_text(f"{current}\n")
    for name, key in wrapping.items():
        (folder / f"kek-{name}").write_bytes(base64.b64encode(key))
    return folder
