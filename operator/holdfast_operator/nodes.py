"""What the watch last showed of the nodes: who is cordoned, and where an agent is ready."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from holdfast_operator.model import NodeSeen, Object

KEEPERS: Final = 8  # how many nodes an order names


class Nodes:
    """Bounded by the number of nodes."""

    def __init__(self) -> None:
        self._seen: dict[str, NodeSeen] = {}

    def get(self, name: str) -> NodeSeen | None:
        return self._seen.get(name)

    def certificate(self, name: str) -> str:
        """Of the node's agent, as the Node says; "": it has none."""
        found = self._seen.get(name)
        return "" if found is None else found.certificate

    @property
    def agents(self) -> bool:
        return any(node.agent for node in self._seen.values())

    def keepers(self, uid: str, source: str) -> tuple[str, ...]:
        """Who can keep a checkpoint of this session, first choice first: nodes whose agent is
        ready, each session's in another order, those that are drained after the others; and its
        own node last, for it is what may be lost."""
        others = [node for node in self._seen.values() if node.agent and node.name != source]
        others.sort(key=lambda node: (node.cordoned, _shuffled(uid, node.name)))
        return (*(node.name for node in others[: KEEPERS - 1]), source)

    def unfit(self, name: str) -> tuple[str, ...]:
        """Where a session of this node cannot go on: its programs may use what is not there."""
        own = self._seen.get(name)
        if own is None or own.cpu is None:
            return ()
        others = (node for node in self._seen.values() if node.agent and node.cpu is not None)
        return tuple(sorted(node.name for node in others if not own.cpu <= (node.cpu or set())))

    def watched(self, item: Object | dict[str, Any], gone: bool) -> bool:
        """True if something changed that a session on the node, or one that waits, may act on."""
        node = NodeSeen.of(item)
        before = self._seen.get(node.name)
        if gone:
            return self._seen.pop(node.name, None) is not None
        self._seen[node.name] = node
        return node != before


def _shuffled(uid: str, node: str) -> bytes:
    return hashlib.sha256(f"{uid}/{node}".encode()).digest()
