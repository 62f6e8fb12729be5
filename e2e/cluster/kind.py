"""The same cluster with kind, where a Docker or Podman engine runs.

The nodes are kind's own; the image is built by that engine and loaded into them. What breaks a
cluster of namespaces (`faults.py`) works here through the engine: a node is a container.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Final

from e2e.cluster import build
from e2e.cluster.places import KUBECONFIG, REPOSITORY, STATE
from e2e.cluster.say import ClusterError, run, say

NAME: Final = "holdfast"
_CONFIG: Final = """\
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes:
- role: control-plane
- role: worker
- role: worker
"""


def engine() -> str | None:
    """Which container engine answers, if any. HOLDFAST_CLUSTER=namespaces ignores it."""
    if os.environ.get("HOLDFAST_CLUSTER") == "namespaces":
        return None
    for name in ("docker", "podman"):
        if shutil.which(name) is None:
            continue
        asked = subprocess.run([name, "info"], check=False, capture_output=True, timeout=20)
        if asked.returncode == 0:
            return name
    return None


def up() -> None:
    chosen = engine()
    if chosen is None:
        raise ClusterError("no container engine answers")
    if shutil.which("kind") is None:
        raise ClusterError("kind is missing; install it: go install sigs.k8s.io/kind@v0.30.0")
    env = {**os.environ, "KIND_EXPERIMENTAL_PROVIDER": chosen}
    STATE.mkdir(parents=True, exist_ok=True)
    say(f"making a kind cluster with {chosen}")
    run("kind", "create", "cluster", "--name", NAME, "--kubeconfig", KUBECONFIG,
        "--config", "-", "--wait", "120s", env=env, give=_CONFIG)  # fmt: skip
    run(chosen, "build", "-f", REPOSITORY / "images" / "Containerfile", "-t", build.HOLDFAST,
        REPOSITORY)  # fmt: skip
    run("kind", "load", "docker-image", build.HOLDFAST, "--name", NAME, env=env)
    say(f"ready; export KUBECONFIG={KUBECONFIG}")


def down() -> None:
    chosen = engine() or "docker"
    env = {**os.environ, "KIND_EXPERIMENTAL_PROVIDER": chosen}
    run("kind", "delete", "cluster", "--name", NAME, env=env)
    shutil.rmtree(STATE, ignore_errors=True)
