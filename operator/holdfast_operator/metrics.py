"""What is counted. Prometheus; described in docs/operator.md, which a test holds to be complete."""

from __future__ import annotations

from collections import Counter as Tally
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from holdfast_operator.model import Phase
from holdfast_operator.names import Key

disable_created_metrics()  # type: ignore[no-untyped-call]
REGISTRY: Final = CollectorRegistry()

SESSIONS: Final = Gauge(
    "holdfast_sessions", "Sessions by phase, as the leader last saw them.", ["phase"],
    registry=REGISTRY,
)  # fmt: skip
RECONCILE_SECONDS: Final = Histogram(
    "holdfast_reconcile_seconds", "One look at one session and one step.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30), registry=REGISTRY,
)  # fmt: skip
RECONCILE_ERRORS: Final = Counter(
    "holdfast_reconcile_errors", "Looks that failed and are tried again, by error code.", ["code"],
    registry=REGISTRY,
)  # fmt: skip
QUEUE_DEPTH: Final = Gauge(
    "holdfast_queue_depth", "Sessions waiting to be looked at, due or not.", registry=REGISTRY
)
API_REQUESTS: Final = Counter(
    "holdfast_api_requests", "Requests to the API server, kopf's own aside; code none: no answer.",
    ["verb", "code"], registry=REGISTRY,
)  # fmt: skip
TAKEOVERS: Final = Counter(
    "holdfast_takeovers", "Incarnations begun after one was lost, by cause.", ["cause"],
    registry=REGISTRY,
)  # fmt: skip
CONTACT_AGE: Final = Gauge(
    "holdfast_watch_contact_age_seconds", "Since each watch last heard from the API server.",
    ["watch"], registry=REGISTRY,
)  # fmt: skip
SAID: Final = Counter(
    "holdfast_events", "What was said of sessions, by the event's reason: Moved, NotMoved, …",
    ["reason"], registry=REGISTRY,
)  # fmt: skip
CONNECTIONS_CUT: Final = Counter(
    "holdfast_connections_cut", "Connections to the outside that no move brought along.",
    registry=REGISTRY,
)  # fmt: skip
EVICTIONS: Final = Counter(
    "holdfast_evictions", "Evictions of pods that look like a session's, by answer.", ["answer"],
    registry=REGISTRY,
)  # fmt: skip
WRAPPING_KEYS: Final = Gauge(
    "holdfast_wrapping_key_checkpoints",
    "Stored checkpoints that need this wrapping key; 0 and not the current one: it may be removed.",
    ["key"], registry=REGISTRY,
)  # fmt: skip
LEADER: Final = Gauge(
    "holdfast_leader", "1 if this operator acts, 0 if it stands by.", registry=REGISTRY
)


class Phases:
    """Keeps the gauge of sessions by phase from single notes."""

    def __init__(self) -> None:
        self._of: dict[Key, Phase] = {}

    def note(self, key: Key, phase: Phase) -> None:
        self._of[key] = phase

    def forget(self, key: Key) -> None:
        self._of.pop(key, None)

    def clear(self) -> None:
        """On losing the lead: the next leader counts."""
        self._of.clear()

    def publish(self) -> None:
        tally = Tally(self._of.values())
        for phase in Phase:
            SESSIONS.labels(phase.value).set(tally[phase])


phases: Final = Phases()
