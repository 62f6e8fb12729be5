"""Where the cluster keeps things, and how it is laid out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
REPOSITORY: Final = HERE.parent.parent

_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
# What is built once and kept between checkouts.
CACHE: Final = Path(os.environ.get("HOLDFAST_CACHE") or Path(_home) / "holdfast") / "cluster"
# Several clusters can be up on one machine, each with a number of its own, from 0 to 9.
NUMBER: Final = int(os.environ.get("HOLDFAST_CLUSTER_NUMBER") or 0)
NTH: Final = str(NUMBER or "")
# What one cluster writes while it lives; also the record that there is one. Without root (kind
# alone) it lies with the user's own things.
_state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
_usual = (Path("/var/lib") if os.geteuid() == 0 else _state) / f"holdfast-cluster{NTH}"
STATE: Final = Path(os.environ.get("HOLDFAST_STATE") or _usual)
PKI: Final = STATE / "pki"
LOGS: Final = STATE / "log"
KUBECONFIG: Final = STATE / "kubeconfig"
# Storage outside every pod and every node: where the oracle of a fault test writes.
SHARED: Final = STATE / "shared"

BRIDGE: Final = f"hfbr{NUMBER}"
API_HOST: Final = f"10.250.{NUMBER}.1"
API_PORT: Final = 6443
ETCD_PORT: Final = 12379 + 2 * NUMBER  # and the next
SERVICE_RANGE: Final = "10.96.0.0/16"
API_SERVICE: Final = "10.96.0.1"
DNS_SERVICE: Final = "10.96.0.10"
CGROUP: Final = f"holdfast{NTH}"
# The workers of a cluster of namespaces; those of the one that runs: `running().nodes`.
NODES: Final = ("n1", "n2")


def link_name(node: str) -> str:
    """Of the node's end on the bridge, and of its network namespace."""
    return f"hf{NTH}-{node}"


def node_address(node: str) -> str:
    return f"10.250.{NUMBER}.1{_index(node)}"


def pod_range(node: str) -> str:
    return f"10.244.{10 * NUMBER + _index(node)}.0/24"


def _index(node: str) -> int:
    return NODES.index(node) + 1
