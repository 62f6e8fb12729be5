"""The objects beside the pod: access, Lease, budget. Pure."""

from __future__ import annotations

import copy
from typing import Any

from holdfast_operator import names
from holdfast_operator.model import Fresh, LeaseSeen, PodSeen, Session
from holdfast_operator.moves import CreateCheckpoint
from holdfast_operator.pods import metadata

Manifest = dict[str, Any]


def account(session: Session) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(session, names.access_name(session.name)),
        "automountServiceAccountToken": False,
    }


def role(session: Session) -> Manifest:
    """Its own Lease, and nothing else in the cluster."""
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
            }
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


def lease(session: Session, epoch: int, holder: str = "") -> Manifest:
    made = metadata(session, session.name)
    made["annotations"] = _notes(epoch, None)
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": made,
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": int(session.lease_seconds)},
    }


def swapped(seen: LeaseSeen, session: Session, epoch: int, fresh: Fresh | None) -> Manifest:
    """The Lease for another epoch, made from the version that was decided on."""
    if epoch <= seen.epoch:
        raise AssertionError(f"an epoch only grows: {seen.epoch} to {epoch}")
    made = copy.deepcopy(dict(seen.body))
    kept = made["metadata"].get("annotations") or {}
    others = {key: value for key, value in kept.items() if not key.startswith(names.PREFIX)}
    made["metadata"]["annotations"] = others | _notes(epoch, fresh)
    made["spec"] = {"holderIdentity": "", "leaseDurationSeconds": int(session.lease_seconds)}
    return made


def _notes(epoch: int, fresh: Fresh | None) -> dict[str, str]:
    notes = {names.EPOCH: str(epoch)}
    if fresh is not None:
        notes[names.FRESH] = fresh.encode()
    return notes


def checkpoint(session: Session, step: CreateCheckpoint, source: PodSeen) -> Manifest:
    """The order to the agent of the source's node. Its name is one for each target pod, so that
    an order given twice is one."""
    target = step.target
    name = names.checkpoint_name(session.name, step.epoch, target.uid)
    made = metadata(session, name)
    made["labels"][names.NODE] = source.node
    return {
        "apiVersion": names.API_VERSION,
        "kind": "Checkpoint",
        "metadata": made,
        "spec": {
            "sessionName": session.name,
            "sessionUID": session.uid,
            "epoch": step.epoch,
            "trigger": step.trigger.value,
            "sourceNode": source.node,
            "sourcePodUID": source.uid,
            "image": source.image,
            "targetNode": target.node,
            "targetPodUID": target.uid,
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
