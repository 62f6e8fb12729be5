"""A tenant: somebody with the role `admin` in one namespace, which admits restricted pods alone."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.cluster.places import KUBECONFIG
from e2e.lab import KubectlError, Lab, manifest, until

ENFORCE: Final = "pod-security.kubernetes.io/enforce=restricted"
NAME: Final = "mallory"
POD: Final = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


class Tenant:
    def __init__(self, lab: Lab, namespace: str, folder: Path) -> None:
        self.lab, self.namespace = lab, namespace
        self.user = f"system:serviceaccount:{namespace}:{NAME}"
        self._kubeconfig = folder / f"{namespace}.kubeconfig"

    def move_in(self) -> None:
        lab, where = self.lab, ("-n", self.namespace)
        lab.kubectl("create", "namespace", self.namespace)
        lab.kubectl("label", "namespace", self.namespace, ENFORCE)
        lab.kubectl("create", "serviceaccount", NAME, *where)
        account = f"--serviceaccount={self.namespace}:{NAME}"
        lab.kubectl("create", "rolebinding", NAME, "--clusterrole=admin", account, *where)
        config = yaml.safe_load(KUBECONFIG.read_text())
        token = lab.kubectl("create", "token", NAME, *where, "--duration=1h").strip()
        config["users"] = [{"name": NAME, "user": {"token": token}}]
        for one in config["contexts"]:
            one["context"] |= {"user": NAME, "namespace": self.namespace}
        self._kubeconfig.write_text(yaml.safe_dump(config))

    def move_out(self) -> None:
        self.lab.kubectl("delete", "sessions", "--all", "-n", self.namespace, "--timeout=60s")
        self.lab.kubectl("delete", "namespace", self.namespace, "--timeout=90s")

    def kubectl(self, *arguments: str, give: str | None = None) -> str:
        """As the tenant."""
        command = [str(self.lab.programs / "kubectl"), f"--kubeconfig={self._kubeconfig}"]
        done = subprocess.run(
            [*command, *arguments], input=give, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise KubectlError(arguments, (done.stderr or done.stdout).strip())
        return done.stdout

    def create(self, body: dict[str, Any]) -> None:
        self.kubectl("create", "-f", "-", give=json.dumps(body))

    def begin(self, name: str, command: list[str], **options: Any) -> None:
        """A session that the profile admits."""
        pod = {"securityContext": POD, **options.pop("pod", {})}
        container = {"securityContext": CONTAINER, **options.pop("container", {})}
        self.create(manifest(name, command, pod=pod, container=container, **options))

    def session(self, name: str) -> dict[str, Any]:
        return self.lab.get("session", "-n", self.namespace, name)

    def phase(self, name: str) -> str:
        return str((self.session(name).get("status") or {}).get("phase") or "")

    def await_running(self, name: str, patience: float = 60.0) -> dict[str, Any]:
        until(lambda: self.phase(name) == "Running", f"{self.namespace}/{name} runs", patience)
        return dict(self.session(name)["status"])

    def holdfast(self, *arguments: str) -> str:
        return self.lab.holdfast("-n", self.namespace, *arguments)

    def said(self, container: str) -> str:
        """By the containers of that name, of all pods that have come so far."""
        said = ""
        for pod in self.lab.get("pods", "-n", self.namespace)["items"]:
            with suppress(KubectlError):  # it has not begun
                said += self.kubectl("logs", pod["metadata"]["name"], "-c", container)
        return said

    def refusals(self, checkpoint: str) -> list[dict[str, Any]]:
        """Events by which an agent says that it did not follow that order."""
        events = self.lab.get("events", "-n", self.namespace)["items"]
        return [
            event for event in events
            if event["involvedObject"]["name"] == checkpoint and event.get("action") == "Refuse"
        ]  # fmt: skip


@contextmanager
def tenant(lab: Lab, namespace: str, folder: Path) -> Iterator[Tenant]:
    made = Tenant(lab, namespace, folder)
    made.move_in()
    try:
        yield made
    finally:
        made.move_out()
