"""Who we are to an API server or a gateway: a token, a certificate, or a program that is asked.

Nothing of it is written to a disk, kept between two runs, shown, or put into an argument list.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from holdfast_wire.errors import BadRequest, Unauthenticated

_EXEC_VERSIONS: Final = (
    "client.authentication.k8s.io/v1",
    "client.authentication.k8s.io/v1beta1",
)
# A credential about to expire would not survive the connection it is for.
_EARLY_SECONDS: Final = 10.0


class Certificate(NamedTuple):
    chain: bytes
    key: bytes


class Credentials(Protocol):
    def headers(self) -> list[tuple[str, str]]: ...

    def certificate(self) -> Certificate | None: ...

    def renew(self) -> bool:
        """They were not believed. Whether others can be had."""


class Token:
    """A token; of a file, which may be written anew, whatever it holds at the moment."""

    def __init__(self, token: str = "", file: Path | None = None) -> None:
        self._token, self._file = token, file

    def headers(self) -> list[tuple[str, str]]:
        token = self._token
        if self._file is not None:
            try:
                token = self._file.read_text()
            except (OSError, UnicodeError) as error:
                raise Unauthenticated(
                    f"the token in {self._file} cannot be read", "check the file and its mode"
                ) from error
        token = token.strip()
        if not token:
            return []
        if not token.isascii() or not token.isprintable() or " " in token:
            raise Unauthenticated("the token is none: it holds blanks or control characters")
        return [("Authorization", f"Bearer {token}")]

    def certificate(self) -> Certificate | None:
        return None

    def renew(self) -> bool:
        return self._file is not None


class User:
    """As a kubeconfig's `user` says it."""

    def __init__(self, user: Mapping[str, Any], cluster: Mapping[str, Any]) -> None:
        self._user = user
        file = user.get("tokenFile")
        self._token = Token(str(user.get("token") or ""), Path(file) if file else None)
        plugin = user.get("exec")
        static = file or user.get("token")
        self._plugin = Plugin(plugin, cluster) if isinstance(plugin, dict) and not static else None

    def headers(self) -> list[tuple[str, str]]:
        given = self._plugin.token() if self._plugin is not None else self._token
        return [*given.headers(), *impersonation(self._user)]

    def certificate(self) -> Certificate | None:
        if self._plugin is not None and (found := self._plugin.certificate()):
            return found
        chain, key = (self._pem(name) for name in ("client-certificate", "client-key"))
        return Certificate(chain, key) if chain and key else None

    def _pem(self, name: str) -> bytes:
        return pem(self._user, name)

    def renew(self) -> bool:
        if self._plugin is not None:
            return self._plugin.renew()
        return self._token.renew()


def pem(entry: Mapping[str, Any], name: str) -> bytes:
    """What `NAME-data` holds, or the file NAME names; empty if neither is there."""
    from base64 import b64decode

    try:
        if data := entry.get(f"{name}-data"):
            return b64decode(str(data))
        return Path(entry[name]).read_bytes() if entry.get(name) else b""
    except (OSError, ValueError) as error:
        raise BadRequest(f"the kubeconfig's {name} cannot be read: {error}") from error


def impersonation(user: Mapping[str, Any]) -> list[tuple[str, str]]:
    from urllib.parse import quote

    headers = [("Impersonate-User", user.get("as")), ("Impersonate-Uid", user.get("as-uid"))]
    headers += [("Impersonate-Group", group) for group in user.get("as-groups") or ()]
    for key, values in (user.get("as-user-extra") or {}).items():
        name = f"Impersonate-Extra-{quote(str(key), safe='')}"
        headers += [(name, value) for value in values or ()]
    return [(name, str(value)) for name, value in headers if value]


class Plugin:
    """A program that logs in (`exec` in a kubeconfig). Asked once for as long as its answer is
    good, and again when that was not believed."""

    def __init__(self, plugin: Mapping[str, Any], cluster: Mapping[str, Any]) -> None:
        self._plugin, self._cluster = plugin, cluster
        self._status: dict[str, Any] | None = None
        self._until = float("inf")

    def token(self) -> Token:
        return Token(str(self._answer().get("token") or ""))

    def certificate(self) -> Certificate | None:
        status = self._answer()
        chain, key = (status.get(f"client{part}Data") for part in ("Certificate", "Key"))
        return Certificate(str(chain).encode(), str(key).encode()) if chain and key else None

    def renew(self) -> bool:
        self._status = None
        return True

    def _answer(self) -> dict[str, Any]:
        import time

        if self._status is None or time.time() > self._until - _EARLY_SECONDS:
            self._status = self._ask()
            self._until = _moment(self._status.get("expirationTimestamp"))
        return self._status

    def _ask(self) -> dict[str, Any]:
        import json
        import subprocess

        plugin = self._plugin
        version = str(plugin.get("apiVersion"))
        if version not in _EXEC_VERSIONS:
            raise BadRequest(f"a login program of {version!r} is not known", "update it")
        command = str(plugin.get("command") or "")
        interactive = _interactive(plugin, command)
        spec: dict[str, Any] = {"interactive": interactive}
        if plugin.get("provideClusterInfo"):
            spec["cluster"] = cluster_info(self._cluster)
        asked = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
        given = {str(one["name"]): str(one["value"]) for one in plugin.get("env") or ()}
        environment = {**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
        try:
            done = subprocess.run(
                [command, *(str(word) for word in plugin.get("args") or ())],
                env=environment,
                stdin=None if interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                check=False,
            )
        except OSError as error:
            hint = str(plugin.get("installHint") or "").strip()
            raise Unauthenticated(
                f"the login program {command!r} cannot be run: {error.strerror}", hint
            ) from error
        return _status(done.returncode, done.stdout, command, version)


def _interactive(plugin: Mapping[str, Any], command: str) -> bool:
    mode = str(plugin.get("interactiveMode") or "IfAvailable")
    terminal = os.isatty(0)
    if mode == "Always" and not terminal:
        raise Unauthenticated(
            f"the login program {command!r} has to ask something, and there is no terminal",
            "log in from a terminal, or use a token",
        )
    return terminal and mode != "Never"


def _status(code: int, said: bytes, command: str, version: str) -> dict[str, Any]:
    import json

    if code != 0:
        raise Unauthenticated(f"the login program {command!r} ended with code {code}")
    try:
        body = json.loads(said)
        status = body["status"]
    except (ValueError, KeyError, TypeError):
        raise Unauthenticated(f"the login program {command!r} did not answer as one") from None
    if body.get("apiVersion") != version or not isinstance(status, dict):
        raise Unauthenticated(f"the login program {command!r} speaks another version")
    return status


def cluster_info(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """For a login program that wants to know where it is for."""
    from base64 import b64encode

    authority = pem(cluster, "certificate-authority")
    extensions = {
        one.get("name"): one.get("extension")
        for one in cluster.get("extensions") or ()
        if isinstance(one, dict)
    }
    info = {
        "server": cluster.get("server"),
        "tls-server-name": cluster.get("tls-server-name"),
        "insecure-skip-tls-verify": cluster.get("insecure-skip-tls-verify"),
        "certificate-authority-data": b64encode(authority).decode() if authority else None,
        "proxy-url": cluster.get("proxy-url"),
        "config": extensions.get("client.authentication.k8s.io/exec"),
    }
    return {key: value for key, value in info.items() if value}


def _moment(text: object) -> float:
    from holdfast.facts import moment

    found = moment(text)
    return float("inf") if found is None else found
