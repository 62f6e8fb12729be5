"""Where a session is to go: what the Node says of the agent there, looked at before anything is
done to the session."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any, Final, Protocol

from holdfast_kube.client import NODES, Object, Resource
from holdfast_kube.order_keys import CERTIFICATE
from holdfast_node import cpu, pair
from holdfast_wire.errors import Unavailable

__all__ = [
    "ADDRESS",
    "CERTIFICATE",
    "CPU",
    "FOLLOWS",
    "MEMORY",
    "WITHOUT_CERTIFICATE",
    "Target",
    "look",
]

ADDRESS: Final = "holdfast.dev/agent-address"
CPU: Final = "holdfast.dev/agent-cpu"
MEMORY: Final = "holdfast.dev/agent-memory"
WITHOUT_CERTIFICATE: Final = {"metadata": {"annotations": {CERTIFICATE: None}}}
FOLLOWS: Final = "PostCopy"  # what it says there, if memory can go from process to process


@dataclass(frozen=True)
class Target:
    address: tuple[str, int]
    follows: bool


class Reads(Protocol):
    """The part of the API that this needs."""

    async def get(self, kind: Resource, namespace: str, name: str) -> Object | None: ...


async def look(kube: Reads, node: str, features: tuple[str, ...] | None) -> Target:
    """What its agent says. Unfit, and nobody is told where it is, if the processor there lacks what
    a session may have come to rely on here: `features`, or None if no session is to run there. An
    agent that does not say what its processor can looks for itself, when the session comes."""
    item = await kube.get(NODES, "", node)
    notes: dict[str, Any] = ((item or {}).get("metadata") or {}).get("annotations") or {}
    host, _, port = str(notes.get(ADDRESS, "")).rpartition(":")
    if not host or not port.isdigit():
        raise Unavailable(f"no agent is ready on node {node}")
    heard = cpu.heard(str(notes.get(CPU, "")))
    if heard is not None and features is not None:
        pair.check_architecture(platform.machine(), heard[0], f"node {node}")
        pair.check_features(features, heard[1], f"node {node}")
    return Target((host.strip("[]"), int(port)), notes.get(MEMORY) == FOLLOWS)
