"""Some people with their identities in every way in, and the gateway's address as they know it.

wanda and mira may write, otto may look, vera has Kubernetes' own `view`, sven may nothing. Each is
a service account, with a token for the gateway and a kubeconfig for the API server. By SSH each is
a user of that short name with the same rights, since no key is mapped to a service account.
"""

from __future__ import annotations

import base64
import shutil
import socket
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import asyncssh
import httpx2
import pytest
import yaml
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

import holdfast
from client_kit import Screen
from e2e.balancer import GATEWAYS, Balancer, balanced, replicas
from e2e.cluster.places import KUBECONFIG, REPOSITORY
from e2e.lab import OPERATOR_NAMESPACE, Lab, Session, command_line, container_pids, until
from ssh_kit import Ssh, new_key, public

NAMESPACE: Final = "default"
NAME: Final = f"holdfast-gateway.{OPERATOR_NAMESPACE}.svc"
ROLES: Final = {
    "wanda": "holdfast-user",
    "mira": "holdfast-user",
    "otto": "holdfast-observer",
    "vera": "view",
    "sven": "",
}
AUTHORITY: Final = "gateway-ca.crt"
HTTPS, SSH_PORT = 8443, 2222
PLUGIN: Final = str(REPOSITORY / ".venv" / "bin" / "kubectl-holdfast")
ENV: Final = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "TERM": "xterm-256color",
              "LANG": "C.UTF-8", "HOLDFAST_KUBECTL": "/nonexistent/kubectl"}  # fmt: skip


@dataclass(frozen=True)
class Guest:
    name: str
    actor: str
    token: str
    kubeconfig: Path


class Guests:
    def __init__(self, lab: Lab, folder: Path, balancer: Balancer) -> None:
        self.lab, self.folder, self.balancer = lab, folder, balancer
        look = ("secret", "holdfast-gateway", "-n", OPERATOR_NAMESPACE)
        secret = lab.get(*look)["data"]
        authority = base64.b64decode(secret["ca.crt"])
        (folder / AUTHORITY).write_bytes(authority)
        self.tls = ssl.create_default_context(cadata=authority.decode())
        self.url = f"https://{NAME}:{balancer.port[HTTPS]}"
        self._known = {name: self._invite(name) for name in ROLES}
        self.ssh = self._keys()

    def __getitem__(self, name: str) -> Guest:
        return self._known[name]

    def _invite(self, name: str) -> Guest:
        self.lab.kubectl("create", "serviceaccount", name)
        self.grant(name)
        config = yaml.safe_load(KUBECONFIG.read_text())
        token = self.lab.kubectl("create", "token", name, "--duration=2h").strip()
        config["users"] = [{"name": name, "user": {"token": token}}]
        for one in config["contexts"]:
            one["context"]["user"] = name
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        ours = self.lab.kubectl("create", "token", name, "--audience=holdfast", "--duration=2h")
        return Guest(name, f"system:serviceaccount:{NAMESPACE}:{name}", ours.strip(), path)

    def grant(self, name: str, role: str = "") -> None:
        role = role or ROLES[name]
        if role:
            both = (f"--serviceaccount={NAMESPACE}:{name}", f"--user={name}")
            self.lab.kubectl("create", "rolebinding", name, f"--clusterrole={role}", *both)

    def revoke(self, name: str) -> None:
        self.lab.kubectl("delete", "rolebinding", name)

    def _keys(self) -> Ssh:
        lines = [
            f'user="{guest.name}" {public(new_key(self.folder / guest.name))}'
            for guest in self._known.values()
        ]
        self.lab.apply({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "holdfast-gateway-ssh-keys", "namespace": OPERATOR_NAMESPACE},
            "stringData": {"guests": "\n".join(lines) + "\n"},
        })  # fmt: skip
        # A pod that changes is looked after at once; else the kubelet takes up to a minute.
        self.lab.kubectl("annotate", "pods", "-n", OPERATOR_NAMESPACE, *GATEWAYS,
                         f"guests={time.time()}", "--overwrite")  # fmt: skip
        for pod in replicas(self.lab):
            self._await_key(self.ssh_at(pod["status"]["podIP"], SSH_PORT))
        return self.ssh_at("127.0.0.1", self.balancer.port[SSH_PORT])

    def _await_key(self, door: Ssh) -> None:
        def known() -> bool:
            return door.run("sven", door.at("none"), "true").returncode != 255

        until(known, "the keys are there", 150, 0.5)

    def ssh_at(self, host: str, port: int) -> Ssh:
        look = ("secret", "holdfast-gateway-ssh-host", "-n", OPERATOR_NAMESPACE)
        own = base64.b64decode(self.lab.get(*look)["data"]["ssh_host_key"])
        return Ssh(self.folder, port, public(asyncssh.import_private_key(own)), host)

    def close(self) -> None:
        for name in ROLES:
            self.lab.kubectl("delete", "serviceaccount,rolebinding", name, "--ignore-not-found")
        self.lab.kubectl("delete", "secret", "holdfast-gateway-ssh-keys", "-n",
                         OPERATOR_NAMESPACE, "--ignore-not-found")  # fmt: skip

    @property
    def resolver(self) -> str:
        """The flag by which Chromium finds the gateway's name."""
        return f"--host-resolver-rules=MAP {NAME} 127.0.0.1"

    # -- ways in ----------------------------------------------------------------------------------

    def base(self, session: str, url: str = "") -> str:
        return f"{url or self.url}/api/v1/namespaces/{NAMESPACE}/sessions/{session}"

    def plugin(self, who: str, *arguments: str) -> list[str]:
        """`kubectl holdfast`, which goes through the API server."""
        return [PLUGIN, f"--kubeconfig={self[who].kubeconfig}", *arguments]

    def attach(self, who: str, session: str, *more: str) -> Screen:
        return Screen(self.plugin(who, "attach", session, *more), dict(ENV))

    def sdk(self, who: str, session: str, url: str = "") -> holdfast.Session:
        """At the gateway itself."""
        token = self[who].token
        return holdfast.connect(session, gateway=url or self.url, token=token, namespace=NAMESPACE)

    @asynccontextmanager
    async def agent(self, who: str, url: str = "") -> AsyncIterator[Client]:
        """The official SDK's client of MCP."""
        async with httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {self[who].token}"}, verify=self.tls,
            trust_env=False, timeout=90,
        ) as http:  # fmt: skip
            transport = streamable_http_client(f"{url or self.url}/mcp", http_client=http)
            async with Client(transport) as client:
                yield client

    def reached(self, session: Session) -> Session:
        """Once its sidecar has dialled in at every replica."""

        def there() -> bool:
            doors = [self.ssh_at(pod["status"]["podIP"], SSH_PORT) for pod in replicas(self.lab)]
            who = f"{session.name}.{NAMESPACE}"
            return bool(doors) and all(
                door.run("wanda", "-s", door.at(who), "state").returncode == 0 for door in doors
            )

        until(there, f"{session.name} is served by every replica")
        return session


def gateway_pid(pod: dict[str, Any]) -> int:
    for pid in container_pids(str(pod["metadata"]["uid"])):
        if any(word.endswith("holdfast-gateway") for word in command_line(pid)):
            return pid
    raise AssertionError(f"no gateway runs in pod {pod['metadata']['name']}")


@pytest.fixture(scope="session")
def guests(lab: Lab) -> Iterator[Guests]:
    folder = Path(tempfile.mkdtemp(prefix="hf-guests-"))
    asked = socket.getaddrinfo

    def answer(host: Any, *more: Any, **named: Any) -> Any:
        """To programs of this process the gateway's name is this machine, as by its hosts file."""
        known = host in (NAME, NAME.encode())
        return asked("127.0.0.1" if known else host, *more, **named)

    with balanced(lab, HTTPS, SSH_PORT) as balancer, pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", answer)
        patch.setenv("HOLDFAST_GATEWAY_CA", str(folder / AUTHORITY))
        made = Guests(lab, folder, balancer)
        try:
            yield made
        finally:
            made.close()
            shutil.rmtree(folder, ignore_errors=True)
