"""The same cluster with kind, where a Docker or Podman engine runs: a node is a container of it.

Node names, paths and options are those of kind v0.30 and of the node image below.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from e2e.cluster import build, control
from e2e.cluster.places import CACHE, KUBECONFIG, NTH, REPOSITORY, SHARED, STATE
from e2e.cluster.say import ClusterError, run, say

NAME: Final = f"holdfast{NTH}"
VERSION: Final = "v0.30.0"
# What that version of kind was released with; Kubernetes as near to `build.KUBERNETES` as it has.
NODE_IMAGE: Final = (
    "kindest/node:v1.34.0@sha256:7416a61b42b1662ca6ca89f02028ac133a309a2a30ba309614e8ec94d976dc5a"
)
CONTROL: Final = f"{NAME}-control-plane"
WORKERS: Final = (f"{NAME}-worker", f"{NAME}-worker2")
_MANIFESTS: Final = "/etc/kubernetes/manifests"
# A static pod whose manifest lies here does not run.
_PARKED: Final = "/etc/kubernetes/holdfast-parked"
_ETCD: Final = "/var/lib/etcd"
_SAVED: Final = "/var/lib/holdfast-saved"
_STATIC_POD_SECONDS: Final = 60.0
_API_SECONDS: Final = 120.0


def configuration() -> dict[str, Any]:
    """Workers with the shared folder at the same place as on this machine, and controllers that do
    not end themselves when the API is away: as in a cluster of namespaces."""
    shared = {"hostPath": str(SHARED), "containerPath": str(SHARED)}
    worker = {"role": "worker", "extraMounts": [shared]}
    patch = {
        "kind": "ClusterConfiguration",
        "controllerManager": {
            "extraArgs": {"leader-elect": "false", "node-monitor-grace-period": "20s"}
        },
        "scheduler": {"extraArgs": {"leader-elect": "false"}},
    }
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": "control-plane"}, *(worker for _ in WORKERS)],
        "kubeadmConfigPatches": [json.dumps(patch)],
    }


def engine() -> str | None:
    """Which container engine answers, if any. HOLDFAST_CLUSTER=namespaces ignores it."""
    if os.environ.get("HOLDFAST_CLUSTER") == "namespaces":
        return None
    # Only the real one has a field of that name: `docker` may be Podman in disguise.
    for name, field in (("docker", "{{.ServerVersion}}"), ("podman", "{{.Version.Version}}")):
        if shutil.which(name) is None:
            continue
        command = [name, "info", "--format", field]
        with suppress(subprocess.TimeoutExpired, OSError):
            asked = subprocess.run(command, check=False, capture_output=True, timeout=20)
            if asked.returncode == 0 and asked.stdout.strip():
                return name
    return None


def containers(engine: str) -> list[str]:
    """Of a kind cluster of our name, whoever made it."""
    label = f"label=io.x-k8s.kind.cluster={NAME}"
    return run(engine, "ps", "--all", "--filter", label, "--format", "{{.Names}}").split()


class Kind:
    nodes = WORKERS

    def __init__(self, engine: str) -> None:
        self.engine = engine

    @property
    def programs(self) -> Path:
        return STATE / "bin"

    @property
    def api(self) -> tuple[str, int]:
        """Asked each time: an address is a container's until its next start."""
        fields = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        return run(self.engine, "inspect", "--format", fields, CONTROL).strip(), 6443

    # -- its life ---------------------------------------------------------------------------------

    def tools(self) -> tuple[str, ...]:
        return ("mmdebstrap", "musl-gcc", "busybox")

    def check(self) -> None:
        if shutil.which("kind") is None:
            raise ClusterError(
                f"{self.engine} runs here but kind is missing; install it "
                f"(go install sigs.k8s.io/kind@{VERSION}), or set HOLDFAST_CLUSTER=namespaces to "
                "do without both"
            )
        if found := containers(self.engine):
            raise ClusterError(
                f"a kind cluster named {NAME} is there that is not recorded here "
                f"({', '.join(found)}); `kind delete cluster --name {NAME}` removes it"
            )

    def build(self) -> None:
        """Our image by the engine, which caches its steps; without attestations, which are no image
        and which kind cannot load."""
        build.session_images()
        say(f"building holdfast's image with {self.engine}")
        run(self.engine, "build", "-f", REPOSITORY / "images" / "Containerfile", "-t",
            build.HOLDFAST, REPOSITORY,
            env={**os.environ, "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"})  # fmt: skip
        self._image.unlink(missing_ok=True)  # Podman does not write over one
        run(self.engine, "save", "-o", self._image, build.HOLDFAST)

    @property
    def _image(self) -> Path:
        return CACHE / f"holdfast.{self.engine}.tar"

    def start(self) -> None:
        SHARED.mkdir(parents=True)
        SHARED.chmod(0o777)
        say(f"making a kind cluster with {self.engine}")
        self._kind("create", "cluster", "--name", NAME, "--image", NODE_IMAGE, "--config", "-",
                   "--kubeconfig", KUBECONFIG, "--wait", "120s",
                   give=json.dumps(configuration()))  # fmt: skip
        self.programs.mkdir()
        # The node's own: of the cluster's version, whatever this machine has.
        run(self.engine, "cp", f"{CONTROL}:/usr/bin/kubectl", self.programs / "kubectl")
        self._kind("load", "image-archive", "--name", NAME, "--nodes", ",".join(WORKERS),
                   *build.session_images(), self._image)  # fmt: skip
        patience = "--timeout=120s"
        control.kubectl(self.programs, "wait", "--for=condition=Ready", patience, "node", "--all")
        control.kubectl(
            self.programs, "rollout", "status", patience, "-n", "kube-system", "deployment/coredns"
        )

    def healthy(self) -> bool:
        return control.nodes_ready(self.programs, WORKERS)

    def stop(self) -> None:
        for node in WORKERS:
            self.unpause(node)
        # Told where the kubeconfig is: it would take its entry out of the user's own.
        self._kind("delete", "cluster", "--name", NAME, "--kubeconfig", KUBECONFIG)

    def load(self, archive: Path) -> None:
        """kind itself looks whether a node has it."""
        self._kind("load", "image-archive", "--name", NAME, "--nodes", ",".join(WORKERS), archive)

    # -- its faults -------------------------------------------------------------------------------

    def kill_api(self) -> None:
        self._park("kube-apiserver")

    def start_api(self) -> None:
        self._unpark("kube-apiserver")
        self._await_api()

    def nft(self, node: str, rules: str) -> None:
        run(self.engine, "exec", "--interactive", node, "nft", "-f", "-", give=rules)

    def pause(self, node: str) -> None:
        run(self.engine, "pause", node)

    def unpause(self, node: str) -> None:
        with suppress(ClusterError):  # it is not paused
            run(self.engine, "unpause", node)

    def cut_power(self, node: str) -> None:
        run(self.engine, "kill", "--signal", "KILL", node)

    def power_on(self, node: str) -> None:
        run(self.engine, "start", node)

    def run_in(self, node: str, *command: str | Path) -> str:
        return run(self.engine, "exec", node, *command)

    def save_storage(self, name: str) -> None:
        saved = f"{_SAVED}/{name}"
        self._control("mkdir", "-p", _SAVED)
        with self._storage_at_rest():
            self._control("rm", "-rf", saved)
            self._control("cp", "-a", _ETCD, saved)

    def restore_storage(self, name: str) -> None:
        """With revisions bumped: see `control.restore_storage`."""
        database = f"{_SAVED}/{name}/member/snap/db"
        self._control("test", "-e", database)
        etcdutl = f"{_SAVED}.etcdutl"
        run(self.engine, "cp", build.etcdutl(), f"{CONTROL}:{etcdutl}")
        peer = f"https://{self.api[0]}:2380"
        with self._storage_at_rest():
            self._control("rm", "-rf", _ETCD)
            self._control(
                etcdutl, "snapshot", "restore", database, *control.RESTORE,
                f"--data-dir={_ETCD}", f"--name={CONTROL}", f"--initial-cluster={CONTROL}={peer}",
                f"--initial-advertise-peer-urls={peer}",
            )  # fmt: skip

    # -- what they are made of --------------------------------------------------------------------

    @contextmanager
    def _storage_at_rest(self) -> Iterator[None]:
        try:
            self._park("kube-apiserver")
            self._park("etcd")
            yield
        finally:
            self._unpark("etcd")
            self._unpark("kube-apiserver")
            self._await_api()

    def _park(self, name: str) -> None:
        """A static pod ends with its manifest, and without a goodbye. The kubelet may start the
        container once more before it sees that the manifest is gone: only the end of the pod's
        sandbox says that it has."""
        self._control("mkdir", "-p", _PARKED)
        self._control("mv", f"{_MANIFESTS}/{name}.yaml", f"{_PARKED}/{name}.yaml")
        give_up = time.monotonic() + _STATIC_POD_SECONDS
        while True:
            for container in self._crictl("ps", "--quiet", "--name", f"^{name}$"):
                with suppress(ClusterError):  # gone meanwhile
                    self._crictl("stop", "--timeout", "0", container)
            if not self._crictl("pods", "--quiet", "--state", "ready", "--name", f"^{name}-"):
                return
            if time.monotonic() > give_up:
                raise ClusterError(f"{name} does not end; see `{self.engine} logs {CONTROL}`")
            time.sleep(0.2)

    def _unpark(self, name: str) -> None:
        parked = f"{_PARKED}/{name}.yaml"
        self._control("sh", "-c", f"test ! -e {parked} || mv {parked} {_MANIFESTS}/{name}.yaml")

    def _await_api(self) -> None:
        give_up = time.monotonic() + _API_SECONDS
        while True:
            try:
                control.kubectl(self.programs, "get", "--raw", "/readyz", "--request-timeout=5s")
            except ClusterError as error:
                if time.monotonic() > give_up:
                    raise ClusterError(f"the API does not come back: {error}") from error
                time.sleep(0.2)
            else:
                return

    def _control(self, *command: str) -> str:
        return self.run_in(CONTROL, *command)

    def _crictl(self, *command: str) -> list[str]:
        return self._control("crictl", *command).split()

    def _kind(self, *command: str | Path, give: str | None = None) -> str:
        env = {**os.environ, "KIND_EXPERIMENTAL_PROVIDER": self.engine}
        return run("kind", *command, env=env, give=give)
