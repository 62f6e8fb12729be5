"""The keys that the chart's hook made: the nodes' CA, and the wrapping keys.

Read anew each time they are needed, which is seldom: kubelet replaces the files while we run. None
of them is kept, shown or logged.

    ca.crt, ca.key   the newest CA of the nodes        current     the id of the wrapping key in use
    ca-bundle.crt    all CAs that are trusted          kek-<id>    a wrapping key, base64
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast_kube.order_keys import KEY_ID, SIZE
from holdfast_wire.errors import Permanent, Unavailable

FOLDER: Final = Path("/etc/holdfast-keys")
_KEK: Final = "kek-"


class UnknownKey(Permanent):
    """Something is wrapped with a key that we do not have."""

    code = "unknown_key"


@dataclass(frozen=True, slots=True)
class Signer:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)


@dataclass(frozen=True, slots=True)
class Keyring:
    folder: Path = FOLDER

    def signer(self) -> Signer:
        try:
            certificate = x509.load_pem_x509_certificate((self.folder / "ca.crt").read_bytes())
            key = serialization.load_pem_private_key((self.folder / "ca.key").read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise Unavailable(f"the nodes' CA cannot be read: {_short(error)}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise Unavailable("the key of the nodes' CA is not one on P-256")
        return Signer(certificate, key)

    def authorities(self) -> list[x509.Certificate]:
        try:
            return x509.load_pem_x509_certificates((self.folder / "ca-bundle.crt").read_bytes())
        except (OSError, ValueError) as error:
            raise Unavailable(f"the nodes' CAs cannot be read: {_short(error)}") from None

    def current(self) -> str:
        """The id of the key with which new orders are wrapped."""
        try:
            return (self.folder / "current").read_text().strip()
        except (OSError, ValueError) as error:
            raise Unavailable(f"the current wrapping key is not known: {_short(error)}") from None

    def wrapping(self, name: str) -> bytes:
        """Raises UnknownKey."""
        key = b""
        if KEY_ID.fullmatch(name):
            try:
                key = base64.b64decode((self.folder / f"{_KEK}{name}").read_bytes(), validate=True)
            except (OSError, binascii.Error):
                key = b""
        if len(key) != SIZE:
            raise UnknownKey(
                f"the operator has no wrapping key {name}",
                f"put kek-{name} back into the Secret that is mounted at {self.folder}",
            )
        return key

    def ids(self) -> frozenset[str]:
        try:
            found = [path.name for path in self.folder.iterdir()]
        except OSError:
            return frozenset()
        return frozenset(one.removeprefix(_KEK) for one in found if one.startswith(_KEK))


def _short(error: Exception) -> str:
    """Never what a file holds."""
    return f"{type(error).__name__} {getattr(error, 'filename', None) or ''}".strip()
