"""What the operator knows of one Session at one moment, read from the API's objects. Pure.

Nothing here guesses: what an object does not have is None or empty, and whoever decides says why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from holdfast_kube.order_keys import CERTIFICATE
from holdfast_operator import leaving, names
from holdfast_operator.names import Key
from holdfast_operator.notes import Exit, Fresh, Restore
from holdfast_operator.orders import CheckpointSeen
from holdfast_operator.template import Refusal
from holdfast_operator.text import plain
from holdfast_operator.times import moment
from holdfast_operator.usage import UNLIMITED, Usage
from holdfast_wire.lease import NOBODY, Epoch, Record

Object = Mapping[str, Any]

MOST_CUT: Final = 16
MOST_BLOCKERS: Final = 3


class Phase(StrEnum):
    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    MOVING = "Moving"
    FROZEN = "Frozen"
    LOST = "Lost"
    SUSPENDED = "Suspended"
    RESTORING = "Restoring"
    ENDED = "Ended"
    FAILED = "Failed"


TERMINAL: Final = frozenset({Phase.ENDED, Phase.FAILED})


class Recovery(StrEnum):
    RESTORE_LAST = "RestoreLast"
    RESTART = "Restart"
    FAIL = "Fail"


class Cause(StrEnum):
    """Why an incarnation is over without its session being over. Also the reason of Fresh."""

    HOST_LOST = "HostLost"
    POD_DELETED = "PodDeleted"
    POD_FAILED = "PodFailed"
    RELEASED = "Released"
    MEMORY_LOST = "MemoryLost"
    LEASE_MISSING = "LeaseMissing"
    ROLLED_BACK = "RolledBack"
    SUSPENDED = "Suspended"

    @property
    def sentence(self) -> str:
        return {
            Cause.HOST_LOST: "its host stopped renewing the Lease",
            Cause.POD_DELETED: "its pod was deleted",
            Cause.POD_FAILED: "its pod failed before the command ran",
            Cause.RELEASED: "it gave up its Lease",
            Cause.MEMORY_LOST: "memory that was to follow it to another node did not come",
            Cause.LEASE_MISSING: "its Lease was deleted",
            Cause.ROLLED_BACK: "the cluster's storage went back in time",
            Cause.SUSPENDED: "it was suspended",
        }[self]


@dataclass(frozen=True, slots=True)
class Session:
    key: Key
    uid: str
    version: str
    generation: int
    deleting: bool
    finalizers: tuple[str, ...]
    annotations: Mapping[str, str]
    spec: Object
    status: Object

    @classmethod
    def of(cls, item: Object) -> Session:
        meta = item["metadata"]
        return cls(
            key=Key(meta["namespace"], meta["name"]),
            uid=meta["uid"],
            version=meta["resourceVersion"],
            generation=int(meta.get("generation", 1)),
            deleting=bool(meta.get("deletionTimestamp")),
            finalizers=tuple(meta.get("finalizers") or ()),
            annotations=meta.get("annotations") or {},
            spec=item.get("spec") or {},
            status=item.get("status") or {},
        )

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def lease_seconds(self) -> float:
        return float((self.spec.get("lease") or {}).get("durationSeconds", 20))

    @property
    def ended(self) -> bool:
        return bool(self.spec.get("ended"))

    @property
    def recovery(self) -> Recovery:
        chosen = (self.spec.get("recovery") or {}).get("onHostLoss", Recovery.RESTORE_LAST)
        return Recovery(chosen)

    @property
    def on_drain(self) -> str:
        return str((self.spec.get("move") or {}).get("onDrain", "Live"))

    @property
    def post_copy(self) -> bool:
        """Its memory may follow when it moves."""
        return (self.spec.get("move") or {}).get("memory") == "PostCopy"

    @property
    def asked_to_move(self) -> tuple[int, str] | None:
        """From which epoch, and to which node ("": any)."""
        epoch, _, node = self.annotations.get(names.MOVE, "").partition("/")
        found = number(epoch)
        return None if found is None else (found, plain(node, 253))

    @property
    def suspended(self) -> bool:
        return bool(self.spec.get("suspended"))

    @property
    def asked_to_wake(self) -> int:
        """Which incarnation somebody wants to see again; 0: none."""
        return number(self.annotations.get(names.WAKE)) or 0

    @property
    def idle_seconds(self) -> float:
        """How long nobody may be there before `when_idle` comes to pass."""
        return float((self.spec.get("idle") or {}).get("afterSeconds", 86400))

    @property
    def when_idle(self) -> str:
        return str((self.spec.get("idle") or {}).get("then", "Hibernate"))

    @property
    def keep_every(self) -> float:
        """Seconds between two checkpoints; 0: none."""
        return float((self.spec.get("checkpoints") or {}).get("everySeconds", 600))

    @property
    def keep_count(self) -> int:
        return int((self.spec.get("checkpoints") or {}).get("keep", 3))

    @property
    def fork_from(self) -> Object | None:
        """What it is to begin from; None once it has, or if it begins with its command."""
        return None if self.status.get("forkedFrom") else self.spec.get("forkFrom")

    @property
    def evicted(self) -> int | None:
        """The epoch whose pod somebody wanted to evict."""
        return number(self.annotations.get(names.EVICTED))

    @property
    def ttl(self) -> float:
        return float(self.spec.get("ttlSecondsAfterEnded", 86400))

    @property
    def grace(self) -> float:
        pod = (self.spec.get("template") or {}).get("spec") or {}
        given = pod.get("terminationGracePeriodSeconds")
        return 30.0 if given is None else float(given)

    @property
    def service_account(self) -> str | None:
        """The user's own, if the template names one."""
        pod = (self.spec.get("template") or {}).get("spec") or {}
        return pod.get("serviceAccountName") or pod.get("serviceAccount") or None

    @property
    def phase(self) -> Phase:
        return Phase(self.status.get("phase") or Phase.PENDING)

    @property
    def accepted_epoch(self) -> int | None:
        text = self.annotations.get(names.ACCEPT_EPOCH, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


@dataclass(frozen=True, slots=True)
class Blocker:
    """A process of the session with which it cannot move."""

    pid: int
    command: str
    what: str
    advice: str

    @classmethod
    def of(cls, item: Object) -> Blocker:
        texts = (plain(str(item["command"]), 32), plain(str(item["what"]), 200))
        return cls(int(item["pid"]), *texts, plain(str(item["advice"]), 120))

    @property
    def sentence(self) -> str:
        return f"process {self.pid} ({self.command}) {self.what}; {self.advice}"


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    record: Record
    owned: bool
    annotations: Mapping[str, str]
    body: Object = field(compare=False)  # as read: what a compare-and-swap is built from

    @classmethod
    def of(cls, item: Object, owner: str) -> LeaseSeen:
        meta, spec = item["metadata"], item.get("spec") or {}
        notes: Mapping[str, str] = meta.get("annotations") or {}
        epoch = number(notes.get(names.EPOCH)) or 0
        record = Record(
            version=meta["resourceVersion"],
            epoch=Epoch(epoch),
            holder=spec.get("holderIdentity") or "",
            released=notes.get(names.RELEASED) == str(epoch),
        )
        return cls(record, owned_by(item, owner), notes, item)

    @property
    def epoch(self) -> int:
        return self.record.epoch

    @property
    def started(self) -> bool:
        return self.annotations.get(names.STARTED) == str(self.epoch)

    @property
    def exit(self) -> Exit | None:
        text = self.annotations.get(names.EXIT)
        return None if text is None else Exit.of(text)

    @property
    def start_error(self) -> str | None:
        text = self.annotations.get(names.START_ERROR)
        return None if text is None else plain(text)

    @property
    def moved(self) -> bool:
        """It goes on where the incarnation before it was."""
        return self.annotations.get(names.MOVED) == str(self.epoch - 1)

    @property
    def restore(self) -> Restore | None:
        """What this incarnation goes on from."""
        text = self.annotations.get(names.RESTORE)
        return None if text is None else Restore.of(text)

    @property
    def suspended(self) -> str:
        """The checkpoint it was stored in before it was given back; "": it was not."""
        return plain(self.annotations.get(names.SUSPENDED, ""), 253) if self.record.released else ""

    @property
    def vacant(self) -> bool:
        return self.record.holder == "" and not self.record.released

    @property
    def renewed(self) -> str:
        """By its holder's clock, for people."""
        return str((self.body.get("spec") or {}).get("renewTime") or "")

    @property
    def cut(self) -> list[dict[str, str]]:
        """Connections to the outside that the move to this incarnation ended."""
        try:
            found = json.loads(self.annotations.get(names.CUT, "[]"))
            pairs = [(plain(str(local), 64), plain(str(remote), 64)) for local, remote in found]
        except (ValueError, TypeError):
            return []
        return [{"local": local, "remote": remote} for local, remote in pairs[:MOST_CUT]]

    @property
    def blockers(self) -> tuple[Blocker, ...]:
        """What in the session would keep it from moving, when its sidecar last looked."""
        try:
            found = json.loads(self.annotations.get(names.BLOCKERS, "[]"))
            return tuple(Blocker.of(item) for item in found[:MOST_BLOCKERS])
        except (ValueError, TypeError, KeyError, OverflowError):
            return ()

    @property
    def fresh(self) -> Fresh | None:
        return Fresh.of(self.annotations.get(names.FRESH, ""))


@dataclass(frozen=True, slots=True)
class PodSeen:
    name: str
    uid: str
    owned: bool
    epoch: int
    node: str
    finished: bool
    deleting: bool
    trouble: tuple[str, str] | None = None  # reason and message of what keeps it from running
    restores: bool = False  # made for a session that is to move into it
    stored: str = ""  # made for what this checkpoint stored
    up: bool = False  # its containers run; what runs in them is another question
    image: str = ""  # what the session's container really runs, as the runtime names it
    goes_at: datetime | None = None  # when its grace is up, if it is being deleted
    lingers: bool = False  # its hold puts off a SIGTERM
    shuns: tuple[str, ...] = ()  # nodes whose processor lacked something when it was made

    @classmethod
    def of(cls, item: Object, owner: str) -> PodSeen:
        meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
        waits = (meta.get("annotations") or {}).get(names.RESTORE, "")
        return cls(
            name=meta["name"],
            uid=meta["uid"],
            owned=owned_by(item, owner),
            epoch=number((meta.get("labels") or {}).get(names.EPOCH)) or 0,
            node=spec.get("nodeName") or "",
            finished=status.get("phase") in ("Succeeded", "Failed"),
            deleting=bool(meta.get("deletionTimestamp")),
            trouble=_trouble(status),
            restores=waits != "" and not waits.startswith(names.STORED),
            stored=waits.removeprefix(names.STORED) if waits.startswith(names.STORED) else "",
            up=_up(status),
            image=_image(status),
            goes_at=moment(meta.get("deletionTimestamp")),
            lingers=leaving.lingers(spec),
            shuns=tuple((meta.get("annotations") or {}).get(names.UNFIT, "").split()),
        )


def _up(status: Object) -> bool:
    """Both the session's container and the sidecar."""
    every = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    running = {one.get("name") for one in every if "running" in (one.get("state") or {})}
    return {names.SESSION_CONTAINER, names.SIDECAR_CONTAINER} <= running


def _image(status: Object) -> str:
    for one in status.get("containerStatuses") or ():
        if one.get("name") == names.SESSION_CONTAINER:
            return str(one.get("imageID") or "")
    return ""


_PULLING: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_BROKEN: Final = ("CreateContainerConfigError", "CreateContainerError", "CrashLoopBackOff",
                  "RunContainerError", "PostStartHookError")  # fmt: skip


def _trouble(status: Object) -> tuple[str, str] | None:
    if status.get("phase") == "Failed":
        said = f"{status.get('reason') or ''} {status.get('message') or ''}"
        return "PodFailed", plain(said) or "the pod failed"
    containers = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason", "")
        if reason in _PULLING or reason in _BROKEN:
            kind = "ImagePull" if reason in _PULLING else "ContainerStuck"
            said = f"container {container.get('name')}: {reason}: {waiting.get('message') or ''}"
            return kind, plain(said)
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return "Unschedulable", plain(str(condition.get("message") or "no node takes the pod"))
    return None


@dataclass(frozen=True, slots=True)
class Problem:
    message: str  # why the last write of ours was refused
    of_spec: bool  # the pod is not a valid one: only another spec will do
    reason: str = "PodRefused"


@dataclass(frozen=True, slots=True)
class NodeSeen:
    name: str
    cordoned: bool
    agent: bool  # sessions can leave it and arrive on it, alive
    cpu: frozenset[str] | None = None  # what its processor can; None: its agent does not say
    post_copy: bool = False  # a session's memory can follow it, from here and to here
    certificate: str = field(default="", repr=False)  # of its agent, as the Node says

    @classmethod
    def of(cls, item: Object) -> NodeSeen:
        meta, spec = item["metadata"], item.get("spec") or {}
        agent = (meta.get("labels") or {}).get(names.AGENT) == "ready"
        notes = meta.get("annotations") or {}
        told = str(notes.get(names.AGENT_CPU, "")).split()  # its kind, a digest, and its features
        cpu = frozenset((told[0], *told[2:])) if len(told) > 2 else None
        follows = notes.get(names.AGENT_MEMORY) == "PostCopy"
        shut, shown = bool(spec.get("unschedulable")), str(notes.get(CERTIFICATE, ""))
        return cls(meta["name"], shut, agent, cpu, follows, shown)


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything `decide` and `status_of` look at. Times are this process's monotonic seconds,
    but `wall`, which is only ever shown or compared with what was shown."""

    session: Session
    refusal: Refusal | None  # why the spec cannot be run, if so
    lease: LeaseSeen | None
    pods: tuple[PodSeen, ...]  # all with this session's label, owned or not
    access: bool  # ServiceAccount, Role and RoleBinding are there
    budget: int | None  # the epoch that the PodDisruptionBudget covers
    may_take: bool  # the Observer's word on exactly this `lease`
    take_at: float | None  # when it will say so if nothing changes
    high_water: int  # the highest epoch this process, status or any pod ever showed
    now: float
    wall: datetime
    deleting_since: float | None = None
    retry_at: float = 0.0  # no further incarnation before this
    problem: Problem | None = None
    node: NodeSeen | None = None  # the current pod's
    target_node: NodeSeen | None = None  # the target's
    checkpoint: CheckpointSeen | None = None  # of the move to `target`
    move_retry_at: float = 0.0  # no further move before this
    move_problem: str = ""  # why the last one failed
    orders: tuple[CheckpointSeen, ...] | None = None  # all of this session; None: not looked at
    keepers: tuple[str, ...] = ()  # nodes that can keep a checkpoint, first choice first
    origin: Observed | None = None  # the session that this one is to be a fork of
    origins: tuple[CheckpointSeen, ...] = ()  # checkpoints it can begin from
    unfit: tuple[str, ...] = ()  # nodes whose processor lacks what its own node's has
    agents: bool = False  # there is a node that sessions can leave and arrive on
    usage: Usage | None = UNLIMITED  # what the namespace has stored; None: not looked at

    @property
    def target(self) -> PodSeen | None:
        """The pod that the current incarnation is to move into."""
        wanted = names.pod_name(self.session.name, self.epoch + 1)
        return next((p for p in self.pods if p.owned and p.name == wanted and p.restores), None)

    @property
    def drained(self) -> bool:
        """Its node is cordoned, or the eviction of this incarnation's pod was asked for; an older
        one's is over."""
        cordoned = self.node is not None and self.node.cordoned
        return cordoned or self.session.evicted == self.epoch

    @property
    def epoch(self) -> int:
        return self.lease.epoch if self.lease else self.high_water

    @property
    def begun(self) -> bool:
        """An epoch was granted, now or ever."""
        return self.lease is not None or self.high_water > 0

    @property
    def pod(self) -> PodSeen | None:
        """The current incarnation's."""
        wanted = names.pod_name(self.session.name, self.epoch)
        return next((p for p in self.pods if p.owned and p.name == wanted), None)

    @property
    def barred(self) -> bool:
        """Its Lease was deleted; what there is now, if anything, is nobody's."""
        return self.lease is None or self.lease.record.holder == NOBODY

    @property
    def rolled_back(self) -> bool:
        return self.lease is not None and self.lease.epoch < self.high_water


def owned_by(item: Object, uid: str) -> bool:
    owners = item["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)


def number(text: object) -> int | None:
    """A decimal of a label or annotation; anything else is no number."""
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 16:
        return int(text)
    return None
