"""The worker nodes: a network, namespaces, and in them containerd, kubelet and kube-proxy."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from e2e.cluster import build, processes
from e2e.cluster.places import (
    API_HOST,
    BRIDGE,
    CGROUP,
    DNS_SERVICE,
    HERE,
    NODES,
    SHARED,
    STATE,
    link_name,
    node_address,
    pod_range,
)
from e2e.cluster.say import ClusterError, run

CGROUPS: Final = Path("/sys/fs/cgroup")
BRIDGE_ADDRESS: Final = "02:68:66:00:00:01"  # locally administered


def network_up() -> None:
    # An address of its own: else it is that of one of its ports, and another when that node goes,
    # and the others look for the API where it was until they ask again.
    run("ip", "link", "add", BRIDGE, "address", BRIDGE_ADDRESS, "type", "bridge")
    run("ip", "addr", "add", f"{API_HOST}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")


def network_down() -> None:
    if Path(f"/sys/class/net/{BRIDGE}").exists():
        run("ip", "link", "del", BRIDGE)


def start(node: str, programs: Path, root: Path, images: Path) -> None:
    """`images` is a folder of archives. What the node's disk held before is still there."""
    _wire(node)
    SHARED.mkdir(parents=True, exist_ok=True)
    SHARED.chmod(0o777)
    processes.start(
        f"node-{node}",
        [HERE / "node.sh", "outer"],
        {
            "NODE": node,
            "NETWORK": link_name(node),
            "ADDRESS": node_address(node),
            "POD_RANGE": pod_range(node),
            "ROOT": str(root),
            "DISK": str(disk(node)),
            "BIN": str(programs),
            "IMAGES": str(images),
            "STATE": str(STATE),
            "CGROUP": CGROUP,
            "DNS": DNS_SERVICE,
            "PAUSE": build.PAUSE,
        },
    )


def disk(node: str) -> Path:
    return STATE / "disks" / node


def _wire(node: str) -> None:
    name, address = link_name(node), node_address(node)
    run("ip", "netns", "add", name)
    run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
    run("ip", "link", "set", name, "master", BRIDGE, "up")
    inside: Sequence[Sequence[str]] = (
        ("addr", "add", f"{address}/24", "dev", "eth0"),
        ("link", "set", "eth0", "up"),
        ("link", "set", "lo", "up"),
        ("route", "add", "default", "via", API_HOST),
        *(("route", "add", pod_range(other), "via", node_address(other))
          for other in NODES if other != node),
    )  # fmt: skip
    for command in inside:
        run("ip", "-n", name, *command)
    run("ip", "route", "replace", pod_range(node), "via", address)


def init_pid(node: str) -> int:
    """The node's PID 1, as this machine numbers it."""
    outer = processes.pid_of(f"node-{node}")
    inner = None if outer is None else processes.child_of(outer)
    if inner is None:
        raise ClusterError(f"node {node} does not run")
    return inner


def stop(node: str) -> None:
    """As if its power had been cut: nothing in it gets to say goodbye. What is frozen must be
    thawed to die, and dies before it runs: its SIGKILL is pending by then."""
    outer = processes.pid_of(f"node-{node}")
    inner = None if outer is None else processes.child_of(outer)
    if inner is not None:
        processes.send(inner, signal.SIGKILL)
    _kill_below(_freezer(node).parent)
    _thaw_below(_freezer(node).parent)
    if inner is not None and not processes.gone(inner, 20.0):
        raise ClusterError(f"node {node} cannot be ended")
    processes.stop(f"node-{node}", signal.SIGKILL)
    for hierarchy in _hierarchies():
        _end_cgroup(hierarchy / CGROUP / node)
    _unwire(node)


def _unwire(node: str) -> None:
    name = link_name(node)
    if Path(f"/run/netns/{name}").exists():
        run("ip", "netns", "del", name)
    # Goes with its other end in the namespace, a moment later; the next one has the same name.
    for _ in range(100):
        if not Path(f"/sys/class/net/{name}").exists():
            return
        with contextlib.suppress(ClusterError):
            run("ip", "link", "del", name)
        time.sleep(0.02)


def _hierarchies() -> Iterator[Path]:
    for hierarchy in CGROUPS.iterdir():
        if (hierarchy / "cgroup.procs").exists():
            yield hierarchy


def _end_cgroup(top: Path) -> None:
    """What still runs in it although the node's PID 1 is gone: a node that was just starting."""
    if not top.is_dir():
        return
    _kill_below(top)
    for folder, _, _ in os.walk(top, topdown=False):
        _remove_cgroup(Path(folder))


def _kill_below(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):
            for pid in members((Path(folder) / "cgroup.procs").read_text()):
                processes.send(pid, signal.SIGKILL)


def members(procs: str) -> list[int]:
    """Zero stands for one that cannot be seen from here, and to `kill` it means ourselves."""
    return [int(pid) for pid in procs.split() if int(pid) > 1]


def _remove_cgroup(folder: Path) -> None:
    for _ in range(250):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # its processes are dead and not yet gone
            time.sleep(0.02)
        else:
            return
    raise ClusterError(f"{folder} cannot be removed: something still runs in it")


def remove_all() -> None:
    """After every node has been stopped: what they had in common."""
    for hierarchy in _hierarchies():
        # Should somebody else use a group of that name, then it is not empty, and stays.
        with contextlib.suppress(OSError):
            (hierarchy / CGROUP).rmdir()
    network_down()
    shutil.rmtree(STATE / "disks", ignore_errors=True)


# -- pausing -------------------------------------------------------------------------------------


def _freezer(node: str) -> Path:
    return CGROUPS / "freezer" / CGROUP / node / "freezer.state"


def freeze(node: str) -> None:
    """As a hypervisor pauses a machine: nothing in it runs, its clocks go on."""
    _freezer(node).write_text("FROZEN")
    for _ in range(500):
        if _freezer(node).read_text().strip() == "FROZEN":
            return
        time.sleep(0.01)
    raise ClusterError(f"node {node} does not freeze")


def thaw(node: str) -> None:
    with contextlib.suppress(OSError):
        _freezer(node).write_text("THAWED")


def _thaw_below(top: Path) -> None:
    """Whoever froze it: what is frozen cannot even be killed."""
    for folder, _, _ in os.walk(top):
        with contextlib.suppress(OSError):
            (Path(folder) / "freezer.state").write_text("THAWED")
