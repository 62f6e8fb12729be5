"""Where the API server is and how to prove who we are to it: in a cluster from the pod's service
account, outside from a kubeconfig with a client certificate or a token."""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from holdfast_wire.errors import BadRequest, Unsupported

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Credentials:
    server: str
    ca: str | None = None  # PEM
    certificate: str | None = None  # PEM
    key: str | None = None  # PEM
    token: str | None = None
    token_file: Path | None = None
    insecure: bool = False

    def tls(self) -> ssl.SSLContext:
        # No CA of its own: the system's. An empty string is not "no CA".
        context = lenient(ssl.create_default_context(cadata=self.ca))
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate and self.key:
            _load_pair(context, self.certificate, self.key)
        return context


def lenient(context: ssl.SSLContext) -> ssl.SSLContext:
    """From Python 3.13 on a default context insists on extensions (authority key identifier, key
    usage) that the CAs of many clusters lack. The chain and the name are checked all the same."""
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _load_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    # The ssl module loads a pair from files only.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # made with mode 0600
        file.write(f"{certificate}\n{key}\n")
        file.flush()
        context.load_cert_chain(file.name)


def find(env: Mapping[str, str] = os.environ) -> Credentials:
    host = env.get("KUBERNETES_SERVICE_HOST")
    if host and (ACCOUNT / "token").exists():
        port = env.get("KUBERNETES_SERVICE_PORT", "443")
        shown = f"[{host}]" if ":" in host else host
        return Credentials(
            server=f"https://{shown}:{port}",
            ca=(ACCOUNT / "ca.crt").read_text(),
            token_file=ACCOUNT / "token",
        )
    first = env.get("KUBECONFIG", "").split(os.pathsep)[0] or str(Path.home() / ".kube/config")
    path = Path(first).expanduser()
    if not path.exists():
        raise BadRequest(
            "no cluster to talk to", "run in a pod with a service account, or set KUBECONFIG"
        )
    return from_kubeconfig(yaml.safe_load(path.read_text()), path.parent)


def from_kubeconfig(config: Any, folder: Path) -> Credentials:
    try:
        contexts = {one["name"]: one["context"] for one in config["contexts"]}
        context = contexts[config["current-context"]]
        cluster = {one["name"]: one["cluster"] for one in config["clusters"]}[context["cluster"]]
        user = {one["name"]: one.get("user") or {} for one in config["users"]}[context["user"]]
        server = str(cluster["server"]).rstrip("/")
    except (KeyError, TypeError) as error:
        raise BadRequest(
            f"the kubeconfig is incomplete: {error}", "check current-context"
        ) from None
    if "exec" in user or "auth-provider" in user:
        raise Unsupported(
            "the kubeconfig's user needs an exec plugin or auth-provider, which the operator does"
            " not run",
            "use a client certificate or a token; in a cluster nothing is needed",
        )
    token_file = user.get("tokenFile")
    return Credentials(
        server=server,
        ca=_pem(cluster, "certificate-authority", folder),
        certificate=_pem(user, "client-certificate", folder),
        key=_pem(user, "client-key", folder),
        token=user.get("token"),
        token_file=folder / token_file if token_file else None,
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
    )


def _pem(table: Mapping[str, Any], name: str, folder: Path) -> str | None:
    if table.get(f"{name}-data"):
        return base64.b64decode(table[f"{name}-data"]).decode()
    if table.get(name):
        return (folder / str(table[name])).read_text()
    return None


class Token:
    """The bearer token: kubelet rewrites its file well before the old one ends."""

    CHECK_SECONDS: Final = 60.0

    def __init__(self, credentials: Credentials) -> None:
        self._file = credentials.token_file
        self._value = credentials.token
        self._read_at: float | None = None
        self._stamp: tuple[int, int] | None = None

    def get(self, now: float) -> str | None:
        if self._file is None:
            return self._value
        fresh = self._read_at is not None and now - self._read_at < self.CHECK_SECONDS
        info = self._file.stat()
        stamp = (info.st_mtime_ns, info.st_ino)
        if not fresh or stamp != self._stamp:
            self._value, self._read_at = self._file.read_text().strip(), now
            self._stamp = stamp
        return self._value
