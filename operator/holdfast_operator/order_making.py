"""What makes an order of a Checkpoint's manifest: its data key, and the signature.

keep    a fresh key, wrapped for later, sealed for the source
move    a fresh key, sealed for source and target; not wrapped, so that nobody opens it again
bring   the key of what was stored, unwrapped, and sealed for the target
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from datetime import datetime
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from holdfast_kube import order_keys
from holdfast_kube.order_keys import LEGACY, Of
from holdfast_operator.keyring import Keyring, UnknownKey
from holdfast_operator.orders import CheckpointSeen
from holdfast_wire.errors import Unavailable

Manifest = dict[str, Any]


class OrderMaking:
    """`certificate_of`: what the Node says of its agent, which is not yet believed."""

    def __init__(
        self,
        keyring: Keyring,
        certificate_of: Callable[[str], str],
        wall: Callable[[], datetime],
    ) -> None:
        self._keyring, self._certificate_of, self._wall = keyring, certificate_of, wall

    def keep(self, order: Manifest, source: str) -> Manifest:
        name, key, of = self._keyring.current(), order_keys.fresh(), _of(order)
        wrapped = order_keys.wrap(key, self._keyring.wrapping(name), of)
        return self._made(order, {"id": name, "wrapped": wrapped}, key, (source,))

    def move(self, order: Manifest, source: str, target: str) -> Manifest:
        name = self._keyring.current()
        return self._made(order, {"id": name}, order_keys.fresh(), (source, target))

    def bring(self, order: Manifest, stored: CheckpointSeen, target: str) -> Manifest:
        """Raises UnknownKey, Unopened."""
        name, key = self._opened(order["metadata"]["namespace"], stored)
        return self._made(order, {"id": name}, key, (target,))

    def _opened(self, namespace: str, stored: CheckpointSeen) -> tuple[str, bytes]:
        if not stored.keyed:
            # By a version that sealed everything with one key, which is its data key too.
            return LEGACY, self._keyring.wrapping(LEGACY)
        known = self._keyring.ids()
        of = Of(namespace, stored.name, stored.session[1])
        for name, wrapped in stored.wrapped:
            if name in known:
                return name, order_keys.unwrap(wrapped, self._keyring.wrapping(name), of)
        ids = ", ".join(dict.fromkeys(name for name, _ in stored.wrapped)) or "none"
        raise UnknownKey(
            f"checkpoint {stored.name} cannot be opened: its wrapping key is {ids}, which the"
            " operator does not have",
            f"put kek-{ids} back into the Secret that is mounted at {self._keyring.folder}",
        )

    def _made(
        self, order: Manifest, key: dict[str, Any], secret: bytes, nodes: tuple[str, ...]
    ) -> Manifest:
        of = _of(order)
        sealed = [
            {"node": node, "sealed": order_keys.seal_for(secret, self._known(node), node, of)}
            for node in dict.fromkeys(nodes)
        ]
        spec = {**order["spec"], "key": {**key, "for": sealed}}
        body = order_keys.body(of.namespace, of.name, spec)
        spec["signature"] = order_keys.sign(body, self._keyring.signer().key)
        return {**order, "spec": spec}

    def _known(self, node: str) -> x509.Certificate:
        """The certificate of its agent: one of ours, that names it, and that has not run out."""
        missing = f"the agent of node {node} has no certificate of the nodes' CA"
        try:
            found = x509.load_der_x509_certificate(
                base64.b64decode(self._certificate_of(node), validate=True)
            )
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            named = order_keys.node_of(names.get_values_for_type(x509.DNSName))
        except (ValueError, binascii.Error, x509.ExtensionNotFound):
            raise Unavailable(f"{missing} yet") from None
        now = self._wall()
        in_time = found.not_valid_before_utc <= now <= found.not_valid_after_utc
        if (
            named != node
            or not in_time
            or not any(_issued(found, one) for one in self._keyring.authorities())
        ):
            raise Unavailable(missing)
        return found


def _of(order: Manifest) -> Of:
    meta = order["metadata"]
    return Of(meta["namespace"], meta["name"], order["spec"]["sessionUID"])


def _issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
