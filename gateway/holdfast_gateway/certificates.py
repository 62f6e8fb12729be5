"""The gateway's own certificate, as the chart's Secret has it: kubelet swaps the files when the
Secret changes, and whoever connects from then on gets the new one. No connection is cut for it."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Final

from holdfast_gateway import log
from holdfast_wire.errors import BadRequest

_LOOK_SECONDS: Final = 10.0


class Certificate:
    def __init__(self, folder: Path) -> None:
        self._chain, self._key = folder / "tls.crt", folder / "tls.key"
        self._contexts: list[ssl.SSLContext] = []
        self._loaded = self._stamp()

    def _stamp(self) -> tuple[int, int]:
        try:
            found = self._chain.stat()
        except OSError as error:
            raise BadRequest(
                f"there is no certificate: {error}", "the chart makes one; see gateway.tls"
            ) from None
        return found.st_mtime_ns, found.st_ino

    def context(self, peers: str | None = None, *, optional: bool = False) -> ssl.SSLContext:
        """`peers`: the authority (PEM) that must have signed the certificate of whoever connects;
        None: they need none. `optional`: who shows none gets in as well, and is nobody."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.load_cert_chain(self._chain, self._key)
        if peers is not None:
            made.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
            made.load_verify_locations(cadata=peers)
        self._contexts.append(made)
        return made

    def forget(self, context: ssl.SSLContext) -> None:
        self._contexts.remove(context)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Takes what has changed. Half of a change, or one that is no certificate, changes nothing:
        it is looked at again."""
        try:
            now = self._stamp()
            if now == self._loaded:
                return
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._chain, self._key)
            for context in self._contexts:
                context.load_cert_chain(self._chain, self._key)
        except (BadRequest, OSError) as error:  # ssl.SSLError is an OSError
            log.warning("certificate_not_taken", why=str(error))
            return
        self._loaded = now
        log.info("certificate_taken")
