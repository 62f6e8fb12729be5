"""The Lease as the API has it: what it says, in the words of `holdfast_wire.lease`."""

from __future__ import annotations

from typing import Any, Final

from holdfast_wire.lease import Epoch, Record

PREFIX: Final = "holdfast.dev/"
OFFER: Final = (PREFIX + "offer", PREFIX + "offered")
_DIGITS: Final = 18  # of an epoch; no session is moved so often


def record_of(lease: dict[str, Any]) -> Record:
    """Anything that cannot be read is taken as nobody's promise: epoch 0, which is below all."""
    metadata, spec = mapping(lease.get("metadata")), mapping(lease.get("spec"))
    notes = mapping(metadata.get("annotations"))
    epoch = _number(notes.get(PREFIX + "epoch"))
    return Record(
        version=str(metadata.get("resourceVersion", "")),
        epoch=Epoch(epoch),
        holder=str(spec.get("holderIdentity") or ""),
        released=_number(notes.get(PREFIX + "released")) == epoch > 0,
        offer=str(notes.get(OFFER[0]) or ""),
        offered=str(notes.get(OFFER[1]) or ""),
    )


def offer_in(lease: dict[str, Any]) -> tuple[str, str]:
    record = record_of(lease)
    return record.offer, record.offered


def mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(text: object) -> int:
    plain = isinstance(text, str) and len(text) <= _DIGITS and text.isascii() and text.isdigit()
    return int(str(text)) if plain else 0


def owners(lease: dict[str, Any]) -> set[object]:
    found = lease["metadata"].get("ownerReferences")
    listed = [mapping(owner) for owner in found] if isinstance(found, list) else []
    return {owner.get("uid") for owner in listed if owner.get("kind") == "Session"}


def kept(body: dict[str, Any]) -> dict[str, Any]:
    body["metadata"].pop("managedFields", None)  # the server keeps its own; large, and not ours
    return body
