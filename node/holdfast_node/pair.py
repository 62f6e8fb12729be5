"""A checkpoint: memory images, the sidecar's state and the files, bound to each other and to one
incarnation by a signed manifest. It is whole or it is refused; nothing is restored from a part.

A part is named by its tag, a Poly1305 under a key that is made for this part of this checkpoint
alone and never again: four times as fast as SHA-256 with the processor's help, and only those who
hold the order's data key must be convinced. The manifest lists the tags and is signed by
HMAC-SHA256 under another key from the same data key. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, Self

from cryptography.hazmat.primitives.poly1305 import Poly1305

from holdfast_node import cpu
from holdfast_wire.errors import BadRequest, Permanent

FORMAT: Final = 1
_FIRST: Final = b"holdfast-checkpoint 1 "
_SIGNATURE: Final = 64  # hexadecimal digits of HMAC-SHA256
MANIFEST_MAX: Final = 4 << 20
SALT: Final = 32
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
# `images/pages-1.img`, `state/journal`, `layer`, `layer.later`, `volumes/NAME`, `queued`
_PART: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9._-]{1,128}){0,2}")


class Fault(StrEnum):
    CORRUPT = "corrupt"
    TRUNCATED = "truncated"
    UNSIGNED = "unsigned"
    VERSION = "version"
    FOREIGN = "foreign"
    OLDER = "older"
    NEWER = "newer"
    ARCHITECTURE = "architecture"
    IMAGE = "image"
    CPU = "cpu"


class Unfit(Permanent):
    """This checkpoint must not be restored here. `fault` says why for programs."""

    code = "unfit_checkpoint"
    http_status = 422

    def __init__(self, fault: Fault, message: str, advice: str = "") -> None:
        super().__init__(message, advice)
        self.fault = fault


def check_part(name: str) -> str:
    if not _PART.fullmatch(name) or any(part in (".", "..") for part in name.split("/")):
        raise BadRequest(f"{name[:80]!r} cannot be the name of a part of a checkpoint")
    return name


def check_checkpoint(name: str) -> str:
    if not _NAME.fullmatch(name) or ".." in name:
        raise BadRequest(f"{name[:80]!r} cannot be the name of a checkpoint or a session")
    return name


@dataclass(frozen=True, slots=True)
class Part:
    size: int
    tag: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Of which incarnation a checkpoint is, and what it was taken on."""

    checkpoint: str
    session: str  # UID
    namespace: str
    name: str
    epoch: int
    source_pod: str  # UIDs
    target_pod: str  # empty: of no pod yet, it is kept
    image: str  # digest of the session container's image
    architecture: str
    kernel: str
    features: tuple[str, ...]  # of the processor, sorted
    created: float  # seconds since 1970
    cluster: str = ""  # a short word for the nodes' CA: whose it is, in a bucket that others use

    @property
    def cpu(self) -> str:
        """One word for the processor's features."""
        return cpu.digest(self.features)


@dataclass(frozen=True, slots=True)
class Manifest:
    facts: Facts
    salt: bytes
    parts: Mapping[str, Part]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts.values())

    @property
    def digest(self) -> str:
        """Names this very checkpoint, for people and for the API: of all it says."""
        return "sha256:" + hashlib.sha256(self._body()).hexdigest()

    def _body(self) -> bytes:
        body = {
            "format": FORMAT,
            "facts": _facts(self.facts),
            "cpu": self.facts.cpu,
            "salt": self.salt.hex(),
            "parts": {name: asdict(part) for name, part in sorted(self.parts.items())},
        }
        return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()

    def signed(self, keys: Keys) -> bytes:
        body = self._body()
        return _FIRST + keys.signature(body) + b"\n" + body

    @classmethod
    def read(cls, raw: bytes, keys: Keys) -> Self:
        """Raises Unfit: nothing in it is looked at before its signature is found right."""
        if not raw.startswith(_FIRST):
            raise Unfit(
                Fault.VERSION,
                "this is no manifest of a checkpoint, or one of another version",
                "let both nodes run the same version of holdfast",
            )
        line = len(_FIRST) + _SIGNATURE
        signature, body = raw[len(_FIRST) : line], raw[line + 1 :]
        if raw[line : line + 1] != b"\n":
            raise Unfit(Fault.TRUNCATED, "the checkpoint's manifest breaks off")
        if not hmac.compare_digest(signature, keys.signature(body)):
            raise Unfit(
                Fault.UNSIGNED,
                "the checkpoint's manifest was altered, or signed with another data key",
            )
        return cls._parsed(body)

    @classmethod
    def glance(cls, raw: bytes) -> Self:
        """What it says, which nobody has proved: for those who only keep it."""
        if not raw.startswith(_FIRST):
            raise Unfit(Fault.VERSION, "this is no manifest of a checkpoint")
        return cls._parsed(raw[len(_FIRST) + _SIGNATURE + 1 :])

    @classmethod
    def _parsed(cls, raw: bytes) -> Self:
        try:
            body: Any = json.loads(raw)
            if body["format"] != FORMAT:
                raise Unfit(Fault.VERSION, f"the checkpoint has format {body['format']}")
            named = {item.name for item in fields(Facts)}
            facts = {key: value for key, value in body["facts"].items() if key in named}
            facts["features"] = tuple(facts["features"])
            parts = {
                check_part(name): Part(int(part["size"]), str(part["tag"]))
                for name, part in body["parts"].items()
            }
            return cls(Facts(**facts), bytes.fromhex(body["salt"]), parts)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Unfit(
                Fault.CORRUPT, f"the checkpoint's manifest lacks something: {error}"
            ) from None


def _facts(facts: Facts) -> dict[str, Any]:
    """Without what older versions did not have, so that what they stored keeps its digest."""
    made = asdict(facts) | {"features": list(facts.features)}
    return made if facts.cluster else {key: made[key] for key in made if key != "cluster"}


@dataclass(frozen=True, slots=True)
class Keys:
    """All that is made of an order's data key. Never shown."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) < 32:
            raise BadRequest("the data key is shorter than 32 bytes")

    def signature(self, body: bytes) -> bytes:
        return hmac.new(self.derive(b"manifest"), body, hashlib.sha256).hexdigest().encode()

    def tagger(self, salt: bytes, part: str) -> Poly1305:
        """For one part of the one checkpoint that has this random salt: used twice for different
        bytes, such a key gives itself away."""
        return Poly1305(self.derive(b"part\0" + part.encode(), salt))

    def derive(self, purpose: bytes, salt: bytes = b"") -> bytes:
        """HKDF-SHA256, 32 bytes."""
        extracted = hmac.new(salt or bytes(32), self.secret, hashlib.sha256).digest()
        return hmac.new(extracted, b"holdfast " + purpose + b"\x01", hashlib.sha256).digest()


def unkeyed(salt: bytes) -> Keys:
    """For what is sealed already, and goes between agents of which one has no key for it: its tags
    show that it came whole. Who sent it, TLS has proved; that it is right, its own seal proves."""
    return Keys(salt)


@dataclass(frozen=True, slots=True)
class Expected:
    """What the one who would restore it knows. `epoch`: the incarnation it must be of."""

    session: str
    namespace: str
    name: str
    epoch: int
    image: str
    architecture: str
    features: Collection[str]
    target_pod: str = ""  # empty: whichever


def verify(manifest: Manifest, found: Mapping[str, Part]) -> None:
    """What was received, or lies on the disk, is what the manifest lists. Raises Unfit."""
    for name, part in manifest.parts.items():
        have = found.get(name)
        if have is None:
            raise Unfit(Fault.TRUNCATED, f"the checkpoint lacks its part {name}")
        if have.size < part.size:
            raise Unfit(Fault.TRUNCATED, f"the checkpoint's part {name} is cut short")
        if have.size != part.size or not hmac.compare_digest(have.tag, part.tag):
            raise Unfit(Fault.CORRUPT, f"the checkpoint's part {name} was altered on the way")
    for name in found.keys() - manifest.parts.keys():
        raise Unfit(Fault.CORRUPT, f"the checkpoint has a part that its manifest lacks: {name}")


def check(manifest: Manifest, expected: Expected) -> None:
    """It may be restored here. Raises Unfit with the first reason why not."""
    facts = manifest.facts
    whose = (facts.session, facts.namespace, facts.name)
    if whose != (expected.session, expected.namespace, expected.name):
        raise Unfit(
            Fault.FOREIGN,
            f"this is a checkpoint of another session, {facts.namespace}/{facts.name} "
            f"({facts.session})",
        )
    if expected.target_pod and facts.target_pod not in ("", expected.target_pod):
        raise Unfit(Fault.FOREIGN, f"this checkpoint is for another pod, {facts.target_pod}")
    if facts.epoch != expected.epoch:
        older = facts.epoch < expected.epoch
        raise Unfit(
            Fault.OLDER if older else Fault.NEWER,
            f"this checkpoint is of epoch {facts.epoch}, "
            f"{'older' if older else 'newer'} than {expected.epoch}",
        )
    check_architecture(facts.architecture, expected.architecture)
    if facts.image != expected.image:
        raise Unfit(
            Fault.IMAGE,
            f"the session ran in the image {facts.image}, this container has {expected.image}",
            "name the image by its digest, so that a moved tag does not matter",
        )
    check_features(facts.features, expected.features)


def check_architecture(session: str, node: str, called: str = "this node") -> None:
    """`called`: whose it is. Before a move it is another's."""
    if session != node:
        raise Unfit(
            Fault.ARCHITECTURE,
            f"the session ran on {session}, {called} is {node}",
            "give the session's template a node selector for its architecture",
        )


def check_features(
    session: Collection[str], node: Collection[str], called: str = "this node"
) -> None:
    lacking = sorted(set(session) - set(node))
    if lacking:
        named = ", ".join(lacking[:8]) + (", ..." if len(lacking) > 8 else "")
        raise Unfit(
            Fault.CPU,
            f"{called}'s processor lacks what the session may be using: {named}",
            "move it to a node with the same kind of processor",
        )
