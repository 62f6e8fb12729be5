"""Which cluster, as whom: what the kubeconfig says, as kubectl reads it.

Files of $KUBECONFIG are merged, the first that knows a name wins; paths in a file are relative to
it. What kubectl knows and this does not (`Unknown`) is left to kubectl.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast_wire.errors import BadRequest

if TYPE_CHECKING:
    from holdfast.arguments import Target

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PATHS: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_LISTS: Final = ("clusters", "users", "contexts")
_CLUSTER_KEYS: Final = frozenset(
    ("server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority",
     "certificate-authority-data", "proxy-url", "disable-compression", "extensions")
)  # fmt: skip
_USER_KEYS: Final = frozenset(
    ("client-certificate", "client-certificate-data", "client-key", "client-key-data", "token",
     "tokenFile", "as", "as-uid", "as-groups", "as-user-extra", "exec", "extensions")
)  # fmt: skip
_CONTEXT_ADVICE: Final = "see: kubectl config get-contexts"


class Unknown(Exception):
    """The kubeconfig asks for something that only kubectl can do."""


class NotPlain(Unknown):
    """It is written in a way that only kubectl can read."""


class Chosen(NamedTuple):
    cluster: dict[str, Any]
    user: dict[str, Any]
    namespace: str


def choose(target: Target, view: Any = None) -> Chosen | None:
    """None if there is no kubeconfig at all. `view`: what `kubectl config view` has made of the
    files, where they could not be read here."""
    merged = view if view is not None else _merged(_files(target.kubeconfig))
    if merged is None:
        return _account(target.namespace)
    name = target.context or _text(merged, "current-context")
    if not name:
        raise BadRequest("the kubeconfig has no current context", _CONTEXT_ADVICE)
    context = _entry(merged, "contexts", "context", name)
    if context is None:
        raise BadRequest(f"the kubeconfig has no context {name!r}", _CONTEXT_ADVICE)
    cluster = _entry(merged, "clusters", "cluster", _text(context, "cluster"))
    if cluster is None or not _text(cluster, "server"):
        raise BadRequest(f"the context {name!r} names no cluster", _CONTEXT_ADVICE)
    user = _entry(merged, "users", "user", _text(context, "user")) or {}
    unknown = (_set(cluster) - _CLUSTER_KEYS) | (_set(user) - _USER_KEYS)
    if unknown:
        raise Unknown(", ".join(sorted(unknown)))
    namespace = target.namespace or _text(context, "namespace") or "default"
    return Chosen(cluster, user, namespace)


def _set(entry: dict[str, Any]) -> set[str]:
    return {key for key, value in entry.items() if value not in (None, "", [], {}, False)}


def _text(body: dict[str, Any], key: str) -> str:
    value = body.get(key)
    return value if isinstance(value, str) else ""


def _files(given: str | None) -> list[Path]:
    if given:
        if not Path(given).is_file():
            raise BadRequest(f"there is no kubeconfig {given}", "check the path")
        return [Path(given)]
    listed = [Path(part) for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    if not listed:
        home = os.environ.get("HOME")
        listed = [Path(home) / ".kube" / "config"] if home else []
    return [path for path in listed if path.is_file()]


def _merged(files: list[Path]) -> dict[str, Any] | None:
    merged: dict[str, Any] | None = None
    for path in files:
        body = _read(path)
        if merged is None:
            merged = {name: {} for name in _LISTS}
        for name in _LISTS:
            for entry in body.get(name) or []:
                if isinstance(entry, dict) and isinstance(entry.get("name"), str):
                    merged[name].setdefault(entry["name"], entry)
        merged.setdefault("current-context", body.get("current-context") or "")
        merged["current-context"] = merged["current-context"] or body.get("current-context") or ""
    return merged


def _read(path: Path) -> dict[str, Any]:
    from holdfast.plainyaml import Unreadable, read

    try:
        body = read(path.read_text())
    except Unreadable as error:
        raise NotPlain(f"{path}: {error}") from error
    except (OSError, UnicodeError) as error:
        raise BadRequest(f"the kubeconfig {path} cannot be read: {error}") from error
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise NotPlain(f"{path} is not a kubeconfig")
    for part in [entry.get(kind) for kind in ("cluster", "user") for entry in _entries(body, kind)]:
        if isinstance(part, dict):
            _resolve(part, path.parent)
    return body


def _entries(body: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [entry for entry in body.get(f"{kind}s") or [] if isinstance(entry, dict)]


def _resolve(part: dict[str, Any], folder: Path) -> None:
    for key in _PATHS:
        if _text(part, key):
            part[key] = str(folder / part[key])
    plugin = part.get("exec")
    if isinstance(plugin, dict) and "/" in _text(plugin, "command"):
        plugin["command"] = str(folder / plugin["command"])


def _entry(merged: dict[str, Any], name: str, kind: str, wanted: str) -> dict[str, Any] | None:
    entries = merged.get(name) or {}
    if isinstance(entries, list):  # as kubectl prints it
        entries = {one.get("name"): one for one in entries if isinstance(one, dict)}
    found = (entries.get(wanted) or {}).get(kind) if wanted in entries else None
    return found if isinstance(found, dict) else None


def _account(namespace: str | None) -> Chosen | None:
    """In a pod: its service account."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
    if not host or not (ACCOUNT / "token").exists():
        return None
    if not namespace and (ACCOUNT / "namespace").exists():
        namespace = (ACCOUNT / "namespace").read_text().strip()
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    cluster = {"server": server, "certificate-authority": str(ACCOUNT / "ca.crt")}
    return Chosen(cluster, {"tokenFile": str(ACCOUNT / "token")}, namespace or "default")
