"""The objects beside the pod: access, Lease, budget. Pure."""

from __future__ import annotations

import copy
from typing import Any

from holdfast_operator import names
from holdfast_operator.keeps import CreateKeep
from holdfast_operator.model import LeaseSeen, PodSeen, Session
from holdfast_operator.moves import CreateCheckpoint
from holdfast_operator.notes import Fresh, Restore
from holdfast_operator.pods import metadata
from holdfast_operator.restores import CreateBring
from holdfast_operator.times import stamp

Manifest = dict[str, Any]


def account(session: Session) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(session, names.access_name(session.name)),
        "automountServiceAccountToken": False,
    }


def role(session: Session) -> Manifest:
    """Its own Lease and a look at its own Session, and nothing else in the cluster."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": metadata(session, names.access_name(session.name)),
        "rules": [
            {
                "apiGroups": ["coordination.k8s.io"],
                "resources": ["leases"],
                "resourceNames": [session.name],
                "verbs": ["get", "update"],
            },
            {
                "apiGroups": [names.GROUP],
                "resources": ["sessions"],
                "resourceNames": [session.name],
                "verbs": ["get"],
            },
        ],
    }


def binding(session: Session) -> Manifest:
    name = names.access_name(session.name)
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata(session, name),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [
            {
                "kind": "ServiceAccount",
                "name": session.service_account or name,
                "namespace": session.key.namespace,
            }
        ],
    }


def lease(session: Session, epoch: int, holder: str = "", told: Restore | None = None) -> Manifest:
    made = metadata(session, session.name)
    made["annotations"] = _notes(epoch, told)
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": made,
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": int(session.lease_seconds)},
    }


def swapped(
    seen: LeaseSeen, session: Session, epoch: int, told: Fresh | Restore | None
) -> Manifest:
    """The Lease for another epoch, made from the version that was decided on."""
    if epoch <= seen.epoch:
        raise AssertionError(f"an epoch only grows: {seen.epoch} to {epoch}")
    made = copy.deepcopy(dict(seen.body))
    kept = made["metadata"].get("annotations") or {}
    others = {key: value for key, value in kept.items() if not key.startswith(names.PREFIX)}
    made["metadata"]["annotations"] = others | _notes(epoch, told)
    made["spec"] = {"holderIdentity": "", "leaseDurationSeconds": int(session.lease_seconds)}
    return made


def _notes(epoch: int, told: Fresh | Restore | None) -> dict[str, str]:
    notes = {names.EPOCH: str(epoch)}
    if told is not None:
        notes[names.FRESH if isinstance(told, Fresh) else names.RESTORE] = told.encode()
    return notes


def checkpoint(session: Session, step: CreateCheckpoint, source: PodSeen) -> Manifest:
    """The order to the agent of the source's node. Its name is one for each target pod, so that
    an order given twice is one."""
    target = step.target
    name = names.checkpoint_name(session.name, step.epoch, target.uid)
    more = {
        **_of_source(source),
        "targetNode": target.node,
        "targetPodUID": target.uid,
    }
    if step.post_copy:
        more["memory"] = "PostCopy"
    if step.until is not None:
        more["until"] = stamp(step.until)
    return _order(session, name, source.node, step.epoch, step.trigger.value, more)


def keep(
    session: Session, step: CreateKeep, source: PodSeen, keepers: tuple[str, ...], fork: Session
) -> Manifest:
    """The order to store `session`. Its number is in its name, so that of two at once there is
    one. `fork`: for whom, which is the session itself but for a fork."""
    name = names.keep_name(session.name, source.epoch, step.number)
    store = str((session.spec.get("checkpoints") or {}).get("store", "Peer"))
    more = {
        **_of_source(source),
        "store": store,
        "then": "Stop" if step.stops else "RunOn",
    }
    if store == "Peer":
        more["keepers"] = list(keepers)
    made = _order(session, name, source.node, source.epoch, step.trigger.value, more)
    if fork.uid != session.uid:
        made["metadata"]["labels"][names.FORK] = fork.name
        made["metadata"]["annotations"] = {names.FORK: fork.uid}
    return made


def bring(session: Session, step: CreateBring) -> Manifest:
    """The order to the agent of the pod's node. Its epoch is the one that was stored; its image is
    what the pod runs, which the agent holds against what was stored."""
    stored, pod = step.checkpoint, step.pod
    name = names.bring_name(session.name, pod.epoch, pod.uid)
    origin = {
        "checkpoint": stored.name,
        "sessionName": stored.session[0],
        "sessionUID": stored.session[1],
        "digest": stored.digest,
        "location": stored.location,
        "takenAt": stored.taken,
    }
    more = {
        "image": pod.image,
        "targetNode": pod.node,
        "targetPodUID": pod.uid,
        "from": origin,
    }
    return _order(session, name, pod.node, stored.epoch, step.trigger.value, more)


def _of_source(source: PodSeen) -> Manifest:
    return {"sourceNode": source.node, "sourcePodUID": source.uid, "image": source.image}


def _order(
    session: Session, name: str, node: str, epoch: int, trigger: str, more: Manifest
) -> Manifest:
    made = metadata(session, name)
    made["labels"][names.NODE] = node
    return {
        "apiVersion": names.API_VERSION,
        "kind": "Checkpoint",
        "metadata": made,
        "spec": {
            "sessionName": session.name,
            "sessionUID": session.uid,
            "epoch": epoch,
            "trigger": trigger,
            **more,
            "volumes": _carried(session),
            "deadlineSeconds": int((session.spec.get("move") or {}).get("deadlineSeconds", 60)),
        },
    }


def _carried(session: Session) -> list[str]:
    """Where the session's container has volumes that live and die with the pod."""
    pod = (session.spec.get("template") or {}).get("spec") or {}
    own = {volume["name"] for volume in pod.get("volumes") or () if "emptyDir" in volume}
    return [
        mount["mountPath"]
        for container in pod.get("containers") or ()
        if container.get("name") == names.SESSION_CONTAINER
        for mount in container.get("volumeMounts") or ()
        if mount.get("name") in own and not mount.get("subPath") and not mount.get("subPathExpr")
    ]


def budget(session: Session, epoch: int) -> Manifest:
    """Over the holder's pod alone: a budget over two pods would let the live one go once the
    other is ready."""
    labels = {names.SESSION_LABEL: session.name, names.EPOCH: str(epoch)}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(session, names.access_name(session.name)),
        "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
    }
