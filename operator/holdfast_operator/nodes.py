"""What the watch last showed of the nodes: who is cordoned, and where an agent is ready."""

from __future__ import annotations

from typing import Any

from holdfast_operator.model import NodeSeen, Object


class Nodes:
    """Bounded by the number of nodes."""

    def __init__(self) -> None:
        self._seen: dict[str, NodeSeen] = {}

    def get(self, name: str) -> NodeSeen | None:
        return self._seen.get(name)

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
