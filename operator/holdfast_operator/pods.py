"""The pod of one incarnation, from the user's template. Pure.

    init containers   the user's, then the sidecar: it runs on beside the session and is stopped
                      after it
    session           the user's container, its command started by hold, which waits until the
                      sidecar holds the Lease

The user's part of the manifest stays as it was written but for what is named here. The session's
container gets no token: only the sidecar can touch the Lease.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any, Final

from holdfast_operator import leaving, names, template
from holdfast_operator.model import PodSeen, Session
from holdfast_operator.notes import Fresh, Restore
from holdfast_operator.orders import CheckpointSeen
from holdfast_operator.settings import Settings

Manifest = dict[str, Any]

BIN: Final = "/run/holdfast-bin"
HOLD: Final = "/.holdfast"
RUN: Final = "/run/holdfast"
STATE: Final = "/var/lib/holdfast"
TOKEN: Final = "/var/run/secrets/holdfast"  # noqa: S105 - a path
NONCE: Final = f"{RUN}/nonce"  # the session's container mounts its folder read-only
PROBE: Final = f"{STATE}/probe.sock"
GATEWAY_AUDIENCE: Final = "holdfast-gateway"
TOKEN_SECONDS: Final = 3607  # what kubelet itself asks for; it renews at 80 %
GRACE_SECONDS: Final = 30
MOST_UNFIT: Final = 200  # nodes left out by name; one beyond them is refused by the agent
RESERVED_PIDS: Final = 300  # below them CRIU works when it restores a session
USER: Final = 65532  # "nonroot" of distroless images: no user of anybody's


def owner_reference(session: Session) -> Manifest:
    return {
        "apiVersion": names.API_VERSION,
        "kind": "Session",
        "name": session.name,
        "uid": session.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def metadata(session: Session, name: str) -> Manifest:
    """Of every object made for a Session."""
    return {
        "name": name,
        "namespace": session.key.namespace,
        "labels": {names.SESSION_LABEL: session.name},
        "ownerReferences": [owner_reference(session)],
    }


def build(
    session: Session, epoch: int, fresh: Fresh | None, settings: Settings, *, agents: bool = False
) -> Manifest:
    """`agents`: there are some, which can move it."""
    given = session.spec.get("template") or {}
    spec: Manifest = copy.deepcopy(dict(given.get("spec") or {}))
    command = template.command_of(session.spec)
    spec["restartPolicy"] = "Never"
    spec["hostname"] = session.name
    spec["automountServiceAccountToken"] = False
    spec["serviceAccountName"] = session.service_account or names.access_name(session.name)
    spec.pop("serviceAccount", None)  # the old name of the same field: two would have to agree
    if spec.get("terminationGracePeriodSeconds") is None:
        spec["terminationGracePeriodSeconds"] = GRACE_SECONDS
    spec["volumes"] = [*(spec.get("volumes") or ()), *_volumes(settings)]
    notice = fresh.message if fresh else ""
    spec["initContainers"] = [
        *(spec.get("initContainers") or ()),
        _sidecar(session, epoch, notice, command, settings),
    ]
    _confine(spec)
    spec["containers"] = [
        _session(container, session, command, agents)
        if container.get("name") == names.SESSION_CONTAINER
        else container
        for container in spec.get("containers") or ()
    ]
    if fresh is not None and fresh.avoid:
        _prefer_away_from(fresh.avoid, spec)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(session, epoch, given.get("metadata") or {}),
        "spec": spec,
    }


def _confine(spec: Manifest) -> None:
    """What a template does not say about confinement is the safe way."""
    whole = spec["securityContext"] = dict(spec.get("securityContext") or {})
    if not whole.get("seccompProfile"):
        whole["seccompProfile"] = {"type": "RuntimeDefault"}
    for kind in ("initContainers", "containers"):
        spec[kind] = [_unprivileged(container) for container in spec.get(kind) or ()]


def _unprivileged(container: Manifest) -> Manifest:
    own = dict(container.get("securityContext") or {})
    added = (own.get("capabilities") or {}).get("add") or ()
    # The API server refuses the two together.
    contradicts = own.get("privileged") or {"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(added)
    if own.get("allowPrivilegeEscalation") is None and not contradicts:
        own["allowPrivilegeEscalation"] = False
    return {**container, "securityContext": own} if own else container


def target(
    session: Session,
    epoch: int,
    source: PodSeen,
    to: str,
    settings: Settings,
    unfit: tuple[str, ...] = (),
) -> Manifest:
    """A pod that the session of `source` can arrive in: of the very image it runs, on another node
    whose agent can restore it, and not on one that is `unfit` for it."""
    made = build(session, epoch, None, settings, agents=True)
    spec, shuns = made["spec"], () if to else unfit[:MOST_UNFIT]
    _note(made, str(epoch - 1), shuns)
    _require_node(spec, *(("In", (to,)) if to else ("NotIn", (source.node, *shuns))))
    _arrives(spec, source.image, str(epoch - 1))
    return made


def restoring(
    session: Session,
    epoch: int,
    stored: CheckpointSeen,
    told: Restore | None,
    settings: Settings,
    unfit: tuple[str, ...] = (),
) -> Manifest:
    """A pod that what was stored can be brought into: of the very image, on a node whose agent can
    restore it; on the one that keeps it, if possible."""
    made = build(session, epoch, None, settings, agents=True)
    spec, shuns = made["spec"], unfit[:MOST_UNFIT]
    _note(made, names.STORED + stored.name, shuns)
    _require_node(spec, "NotIn", shuns)
    near = stored.location.removeprefix("peer://") if stored.location.startswith("peer://") else ""
    avoid = told.avoid if told is not None else ""
    if near and near != avoid:
        _prefer(spec, near, "In", 50)
    if avoid:
        _prefer_away_from(avoid, spec)
    if settings.former_image and not stored.keyed:
        spec["initContainers"].insert(-1, _former(settings))
    _arrives(spec, stored.image, "stored")
    return made


def _former(settings: Settings) -> Manifest:
    """What an older release stored goes on with that release's hold, which it did not store."""
    made: Manifest = {
        "name": "holdfast-former",
        "image": settings.former_image,
        "command": ["/usr/local/bin/hold", "--install", f"{BIN}/hold-former"],
        "resources": copy.deepcopy(dict(settings.sidecar_resources)),
        "volumeMounts": [{"name": "holdfast-bin", "mountPath": BIN}],
        "securityContext": _confined(),
    }
    if settings.image_pull_policy:
        made["imagePullPolicy"] = settings.image_pull_policy
    return made


def _confined() -> Manifest:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def in_vain(pod: PodSeen, unfit: tuple[str, ...]) -> bool:
    """It waits for a node, and keeps off one that could take it by now."""
    return not pod.node and pod.trouble is not None and not set(pod.shuns) <= set(unfit)


def _note(made: Manifest, restores: str, shuns: tuple[str, ...]) -> None:
    notes = made["metadata"].setdefault("annotations", {})
    notes |= {names.RESTORE: restores} | ({names.UNFIT: " ".join(shuns)} if shuns else {})


def _arrives(spec: Manifest, image: str, what: str) -> None:
    """The same image by its digest, and a sidecar that waits for it."""
    for container in spec["containers"]:
        if container["name"] == names.SESSION_CONTAINER and "@sha256:" in image:
            container["image"] = image
    spec["initContainers"][-1]["env"] += _env({"HOLDFAST_RESTORE": what})


def _require_node(spec: Manifest, operator: str, listed: tuple[str, ...]) -> None:
    """Beside what the template asks for: terms are alternatives, so each gets these. The API server
    takes one name in a field."""
    fields = [{"key": "metadata.name", "operator": operator, "values": [name]} for name in listed]
    able = {"key": names.AGENT, "operator": "In", "values": ["ready"]}
    affinity = spec["affinity"] = copy.deepcopy(dict(spec.get("affinity") or {}))
    nodes = affinity["nodeAffinity"] = dict(affinity.get("nodeAffinity") or {})
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = (nodes.get(required) or {}).get("nodeSelectorTerms") or [{}]
    nodes[required] = {
        "nodeSelectorTerms": [
            {
                **term,
                "matchExpressions": [*(term.get("matchExpressions") or ()), able],
                **_fields([*(term.get("matchFields") or ()), *fields]),
            }
            for term in terms
        ]
    }


def _prefer_away_from(node: str, spec: Manifest) -> None:
    """A dead node looks alive to the scheduler for a minute. Only preferred: it may be the only
    one, and back already."""
    _prefer(spec, node, "NotIn", 100)


def _fields(found: list[Manifest]) -> Manifest:
    return {"matchFields": found} if found else {}


def _prefer(spec: Manifest, node: str, operator: str, weight: int) -> None:
    which = {"key": "metadata.name", "operator": operator, "values": [node]}
    rule = {"weight": weight, "preference": {"matchFields": [which]}}
    affinity = spec["affinity"] = dict(spec.get("affinity") or {})
    nodes = affinity["nodeAffinity"] = dict(affinity.get("nodeAffinity") or {})
    field = "preferredDuringSchedulingIgnoredDuringExecution"
    nodes[field] = [*(nodes.get(field) or ()), rule]


def _metadata(session: Session, epoch: int, given: Mapping[str, Any]) -> Manifest:
    made = metadata(session, names.pod_name(session.name, epoch))
    made["labels"] = {
        **_without_reserved(given.get("labels") or {}),
        **made["labels"],
        names.EPOCH: str(epoch),
    }
    kept = _without_reserved(given.get("annotations") or {})
    if kept:
        made["annotations"] = kept
    return made


def _without_reserved(keys: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in keys.items() if not key.startswith(names.PREFIX)}


def _volumes(settings: Settings) -> list[Manifest]:
    token: Manifest = {"path": "token", "expirationSeconds": TOKEN_SECONDS}
    if settings.token_audience:
        token["audience"] = settings.token_audience
    for_gateway = {
        "path": "gateway-token",
        "audience": GATEWAY_AUDIENCE,
        "expirationSeconds": TOKEN_SECONDS,
    }
    sources = [
        {"serviceAccountToken": token},
        *([{"serviceAccountToken": for_gateway}] if settings.gateway else []),
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {
            "downwardAPI": {
                "items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]
            }
        },
    ]
    return [
        {"name": "holdfast-bin", "emptyDir": {}},
        {"name": "holdfast-hold", "emptyDir": {}},
        {"name": "holdfast-run", "emptyDir": {}},
        {"name": "holdfast-state", "emptyDir": {}},
        {"name": "holdfast-token", "projected": {"sources": sources}},
    ]


def _session(container: Manifest, session: Session, command: list[str], agents: bool) -> Manifest:
    made = {**container}
    # hold gives the command its terminal; kubelet's would be a second one.
    for field in ("args", "tty", "stdin", "stdinOnce"):
        made.pop(field, None)
    movable = (session.spec.get("move") or {}).get("syscallFilter", True)
    given = (session.spec.get("template") or {}).get("spec") or {}
    moves = agents and session.on_drain == "Live"
    linger = leaving.linger(given, session.grace) if moves else []
    made["command"] = [
        f"{BIN}/hold", "--socket", f"{HOLD}/hold.sock", "--shared", "--wait",
        "--nonce-from", NONCE, "--reserve", str(RESERVED_PIDS),
        *(["--movable"] if movable else []), *linger, "--", *command,
    ]  # fmt: skip
    made["volumeMounts"] = [
        *(made.get("volumeMounts") or ()),
        {"name": "holdfast-bin", "mountPath": BIN, "readOnly": True},
        {"name": "holdfast-hold", "mountPath": HOLD},
        {"name": "holdfast-run", "mountPath": RUN, "readOnly": True},
    ]
    ours = {
        "HOLDFAST_EPOCH_FILE": f"{RUN}/epoch",
        "HOLDFAST_FORK_FILE": f"{RUN}/fork",
        "HOLDFAST_SESSION": session.name,
    }
    given = [entry for entry in made.get("env") or () if entry.get("name") not in ours]
    if not any(entry.get("name") == "TERM" for entry in given):
        ours["TERM"] = "xterm-256color"
    made["env"] = [*given, *_env(ours)]
    return made


def _env(values: Mapping[str, str]) -> list[Manifest]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _from_field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _sidecar(
    session: Session, epoch: int, notice: str, command: list[str], settings: Settings
) -> Manifest:
    made: Manifest = {
        "name": names.SIDECAR_CONTAINER,
        "image": settings.image,
        "command": ["holdfast-sidecar"],
        "restartPolicy": "Always",
        "env": [
            *_sidecar_env(session, epoch, notice, command),
            *_gateway_env(settings),
            *_journal_env(settings),
            *_env(dict(settings.sidecar_env)),
        ],
        "lifecycle": {
            "postStart": {
                "exec": {
                    "command": [
                        "/usr/local/bin/hold",
                        "--nonce-fifo",
                        NONCE,
                        "--install",
                        f"{BIN}/hold",
                    ]
                }
            }
        },
        # Executed, for nothing in the pod listens on a port; and not often, for each costs the
        # node a process. Whether the session is ready the Lease says.
        "livenessProbe": _probe("--probe", period=30),
        "readinessProbe": _probe("--probe-ready", period=10),
        "resources": copy.deepcopy(dict(settings.sidecar_resources)),
        "securityContext": _confined(),
        "volumeMounts": [
            {"name": "holdfast-bin", "mountPath": BIN},
            {"name": "holdfast-hold", "mountPath": HOLD},
            {"name": "holdfast-run", "mountPath": RUN},
            {"name": "holdfast-state", "mountPath": STATE},
            {"name": "holdfast-token", "mountPath": TOKEN, "readOnly": True},
        ],
    }
    if settings.image_pull_policy:
        made["imagePullPolicy"] = settings.image_pull_policy
    return made


def _sidecar_env(session: Session, epoch: int, notice: str, command: list[str]) -> list[Manifest]:
    terminal = session.spec.get("terminal") or {}
    return [
        *_env(
            {
                "HOLDFAST_SESSION": session.name,
                "HOLDFAST_NAMESPACE": session.key.namespace,
                "HOLDFAST_SESSION_UID": session.uid,
                "HOLDFAST_EPOCH": str(epoch),
                "HOLDFAST_LEASE_SECONDS": f"{session.lease_seconds:g}",
                "HOLDFAST_COLUMNS": str(terminal.get("columns", 120)),
                "HOLDFAST_ROWS": str(terminal.get("rows", 40)),
                "HOLDFAST_SCROLLBACK": str(terminal.get("scrollbackLines", 10000)),
                "HOLDFAST_COMMAND": _literal(json.dumps(command)),
                "HOLDFAST_NOTICE": _literal(notice),
            }
        ),
        _from_field("HOLDFAST_POD_UID", "metadata.uid"),
        _from_field("HOLDFAST_POD", "metadata.name"),
        _from_field("HOLDFAST_NODE", "spec.nodeName"),
    ]


def _literal(text: str) -> str:
    """kubelet would expand $(NAME) in a value; $$ is its escape for $."""
    return text.replace("$", "$$")


def _gateway_env(settings: Settings) -> list[Manifest]:
    if not settings.gateway:
        return []
    return _env({"HOLDFAST_GATEWAY": settings.gateway, "HOLDFAST_GATEWAY_CA": settings.gateway_ca})


def _journal_env(settings: Settings) -> list[Manifest]:
    told = {
        "HOLDFAST_JOURNAL_FILE_BYTES": settings.journal_file_bytes,
        "HOLDFAST_JOURNAL_FILES": settings.journal_files,
    }
    return _env({name: value for name, value in told.items() if value})


def _probe(option: str, period: int) -> Manifest:
    return {
        "exec": {"command": ["/usr/local/bin/hold", option, PROBE]},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": 3,
    }
