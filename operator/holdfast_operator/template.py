"""Whether a Session can be run as it is written: what its schema cannot refuse. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast_operator.names import PREFIX, SESSION_CONTAINER
from holdfast_wire.lease import LONGEST, SHORTEST

Object = Mapping[str, Any]

RESERVED_NAME: Final = "holdfast"  # how our containers and volumes begin
RESERVED_PATHS: Final = ("/.holdfast", "/run/holdfast", "/run/holdfast-bin")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Becomes the condition Accepted=False. The message says what to change."""

    reason: str
    message: str


def refusal(spec: Object) -> Refusal | None:
    """The first thing that keeps this spec from being run."""
    return next(_refusals(spec), None)


def reserved_keys(spec: Object) -> tuple[str, ...]:
    """Labels and annotations of the template that are ours to set; they are left out."""
    meta = (spec.get("template") or {}).get("metadata") or {}
    found = [
        key
        for kind in ("labels", "annotations")
        for key in (meta.get(kind) or {})
        if key.startswith(PREFIX)
    ]
    return tuple(sorted(set(found)))


def command_of(spec: Object) -> list[str]:
    """spec.command, else the session container's own command and args; empty if there is none."""
    if spec.get("command"):
        return list(spec["command"])
    container = session_container(spec) or {}
    if not container.get("command"):
        return []
    return [*container["command"], *(container.get("args") or ())]


def session_container(spec: Object) -> Object | None:
    for container in _pod(spec).get("containers") or ():
        if container.get("name") == SESSION_CONTAINER:
            found: Object = container
            return found
    return None


def _pod(spec: Object) -> Object:
    pod: Object = (spec.get("template") or {}).get("spec") or {}
    return pod


def _refusals(spec: Object) -> Iterator[Refusal]:
    seconds = (spec.get("lease") or {}).get("durationSeconds", 20)
    if not SHORTEST <= seconds <= LONGEST:
        yield Refusal(
            "UnsafeLease",
            f"set spec.lease.durationSeconds between {SHORTEST} and {LONGEST}: with less, two"
            " incarnations could run at once",
        )
    session = session_container(spec)
    if session is None:
        yield Refusal(
            "NoSessionContainer",
            f'name one container of spec.template "{SESSION_CONTAINER}": it is the one whose'
            " terminal is held",
        )
        return
    if not command_of(spec):
        yield Refusal(
            "NoCommand",
            "set spec.command (for example [bash, -l]): an image's own ENTRYPOINT cannot be seen"
            " from here",
        )
    yield from _session_refusals(session)
    yield from _pod_refusals(_pod(spec))


def _session_refusals(session: Object) -> Iterator[Refusal]:
    if session.get("livenessProbe") or session.get("startupProbe"):
        yield Refusal(
            "ProbeWouldKill",
            'remove livenessProbe and startupProbe from the container "session": a frozen session'
            " does not answer, and the probe would kill what the freeze protects; a"
            " readinessProbe without exec may stay",
        )
    hooks = session.get("lifecycle") or {}
    if hooks.get("postStart") or hooks.get("preStop"):
        yield Refusal(
            "RunsBesideHold",
            'remove lifecycle from the container "session": its hooks would be run beside hold,'
            " outside the session; do that in spec.command, or in an init container",
        )
    if "exec" in (session.get("readinessProbe") or {}):
        yield Refusal(
            "RunsBesideHold",
            'remove exec from the readinessProbe of the container "session": it would be run beside'
            " hold, outside the session; use httpGet, tcpSocket or grpc",
        )
    if session.get("restartPolicy"):
        yield Refusal(
            "RestartPolicy",
            'remove restartPolicy from the container "session": a session that ended has ended',
        )


def _pod_refusals(pod: Object) -> Iterator[Refusal]:
    for field in ("hostPID", "hostNetwork", "shareProcessNamespace"):
        if pod.get(field):
            yield Refusal(
                "SharedNamespace",
                f"remove {field} from spec.template.spec: the session must have its own"
                " namespaces, so that its first process is ours and it can be moved",
            )
    if pod.get("restartPolicy", "Never") != "Never":
        yield Refusal(
            "RestartPolicy",
            "remove restartPolicy from spec.template.spec or set it to Never: what comes after a"
            " lost incarnation is spec.recovery.onHostLoss",
        )
    yield from _volume_refusals(pod)
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in pod.get(kind) or ():
            yield from _container_refusals(container)


def _volume_refusals(pod: Object) -> Iterator[Refusal]:
    for volume in pod.get("volumes") or ():
        name = volume.get("name", "")
        if name.startswith(RESERVED_NAME):
            yield Refusal("ReservedName", f'rename the volume "{name}": names that begin with'
                          f' "{RESERVED_NAME}" are ours')  # fmt: skip
        for source in (volume.get("projected") or {}).get("sources") or ():
            if "serviceAccountToken" in source:
                yield Refusal(
                    "TokenInSession",
                    f'remove serviceAccountToken from the volume "{name}": a session that holds'
                    " its account's token could renew or give away its own Lease",
                )


def _container_refusals(container: Object) -> Iterator[Refusal]:
    name = container.get("name", "")
    if name.startswith(RESERVED_NAME):
        yield Refusal("ReservedName", f'rename the container "{name}": names that begin with'
                      f' "{RESERVED_NAME}" are ours')  # fmt: skip
    for mount in container.get("volumeMounts") or ():
        volume = str(mount.get("name", ""))
        if volume.startswith(RESERVED_NAME):
            yield Refusal(
                "ReservedName",
                f'remove the mount of "{volume}" from container "{name}": volumes that begin with'
                f' "{RESERVED_NAME}" are ours, and one of them holds the token that renews the'
                " Lease",
            )
        path = _where_it_lands(str(mount.get("mountPath", "")))
        for reserved in RESERVED_PATHS:
            if path == reserved or path.startswith(reserved + "/"):
                yield Refusal(
                    "ReservedPath",
                    f'mount something elsewhere in container "{name}": {path} belongs to holdfast',
                )


def _where_it_lands(path: str) -> str:
    """As the runtime resolves it: in most images /var/run is a link to /run."""
    found = posixpath.normpath("/" + path.lstrip("/"))
    return found.removeprefix("/var") if found.startswith("/var/run/") else found
