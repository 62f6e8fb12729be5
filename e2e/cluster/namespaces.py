"""The cluster without a container engine: the control plane runs on this machine itself, and each
worker is a set of namespaces.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from e2e.cluster import build, control, leftovers, nodes, pki, processes
from e2e.cluster.places import API_HOST, API_PORT, NODES, STATE, link_name
from e2e.cluster.say import ClusterError, run, say

_JOIN_SECONDS: Final = 90.0
_IMAGES: Final = STATE / "images"
# Which build this cluster was started from: a fault ends with the same programs running again.
_PROGRAMS: Final = STATE / "programs"
_CONTROLLERS: Final = (
    "blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "pids",
)  # fmt: skip
_RUNNING: Final = (
    "etcd", "apiserver", "controller-manager", "scheduler", *(f"node-{node}" for node in NODES),
)  # fmt: skip


def missing_controllers(root: Path) -> list[str]:
    """Of cgroup v1, which the nodes' kubelet and runtime are set up for."""
    return [name for name in _CONTROLLERS if not (root / name / "cgroup.procs").exists()]


class Namespaces:
    nodes = NODES
    api = (API_HOST, API_PORT)

    @property
    def programs(self) -> Path:
        try:
            recorded = Path(_PROGRAMS.read_text())
        except FileNotFoundError:
            return build.programs()
        return recorded if recorded.is_dir() else build.programs()

    # -- its life ---------------------------------------------------------------------------------

    def tools(self) -> tuple[str, ...]:
        return ("go", "mmdebstrap", "buildah", "musl-gcc", "busybox", "nft", "ip", "nsenter",
                "openssl", "faketime")  # fmt: skip

    def check(self) -> None:
        if os.geteuid() != 0:
            raise ClusterError("a cluster of namespaces needs root; run it with sudo")
        if missing := missing_controllers(nodes.CGROUPS):
            raise ClusterError(
                f"a cluster of namespaces needs cgroup v1, and this machine has no {missing[0]} "
                "hierarchy (it has cgroup v2 alone, as most now have). Start Docker or Podman and "
                "install kind: `make cluster` then uses it"
            )
        if in_the_way := leftovers.of_namespaces():
            raise ClusterError(
                "in the way, and of no cluster that is recorded here:\n  " + "\n  ".join(in_the_way)
            )

    def build(self) -> None:
        build.everything()

    def start(self) -> None:
        programs, root, images = build.everything()  # made before: this only says where
        _PROGRAMS.write_text(str(programs))
        pki.make()
        _IMAGES.mkdir()
        for archive in images:
            _link(archive, _IMAGES / archive.name)
        nodes.network_up()
        # The nodes start while the control plane does: both take seconds, and neither needs the
        # other to begin.
        for node in NODES:
            nodes.start(node, programs, root, _IMAGES)
        control.start(programs)
        control.install_dns(programs)
        _await_nodes(programs)

    def healthy(self) -> bool:
        if any(processes.pid_of(name) is None for name in _RUNNING):
            return False
        return control.nodes_ready(self.programs, NODES)

    def stop(self) -> None:
        """Goes on past what fails, and says all of it at the end: the record then stays."""
        steps: list[tuple[str, Callable[[], None]]] = [
            *((node, lambda node=node: nodes.stop(node)) for node in NODES),
            ("control plane", control.stop),
            ("strays", _end_strays),
            ("network and cgroups", nodes.remove_all),
        ]
        complaints = []
        for what, step in steps:
            try:
                step()
            except (ClusterError, OSError) as error:
                complaints.append(f"{what}: {error}")
        if complaints:
            raise ClusterError("not everything could be removed\n  " + "\n  ".join(complaints))

    def load(self, archive: Path) -> None:
        """A link in the folder of images says that all nodes have it."""
        link = _IMAGES / archive.name
        if link.exists():
            return
        _link(archive, link)
        try:
            for node in NODES:
                self.run_in(node, "ctr", "-n", "k8s.io", "images", "import", "--snapshotter",
                            "overlayfs", Path("/opt/images") / archive.name)  # fmt: skip
        except BaseException:
            link.unlink()
            raise

    # -- its faults -------------------------------------------------------------------------------

    def kill_api(self) -> None:
        processes.stop("apiserver", signal.SIGKILL)

    def start_api(self) -> None:
        control.start_api(self.programs)
        control.await_api(self.programs)
        control.start_controllers(self.programs)

    def nft(self, node: str, rules: str) -> None:
        run("ip", "netns", "exec", link_name(node), "nft", "-f", "-", give=rules)

    def pause(self, node: str) -> None:
        nodes.freeze(node)

    def unpause(self, node: str) -> None:
        nodes.thaw(node)

    def cut_power(self, node: str) -> None:
        nodes.stop(node)

    def power_on(self, node: str) -> None:
        if processes.pid_of(f"node-{node}") is None:
            nodes.start(node, self.programs, build.node_root(), _IMAGES)

    def run_in(self, node: str, *command: str | Path) -> str:
        return run("nsenter", f"--target={nodes.init_pid(node)}", "--mount", "--pid", "--net",
                   "--uts", "--ipc", "--cgroup", *command)  # fmt: skip

    def save_storage(self, name: str) -> None:
        control.save_storage(self.programs, STATE / "saved" / name)

    def restore_storage(self, name: str) -> None:
        control.restore_storage(self.programs, STATE / "saved" / name)


def _link(archive: Path, target: Path) -> None:
    try:
        target.hardlink_to(archive)
    except OSError:  # the cache is on another disk
        shutil.copyfile(archive, target)


def _await_nodes(programs: Path) -> None:
    patience = f"--timeout={_JOIN_SECONDS:.0f}s"
    give_up = time.monotonic() + _JOIN_SECONDS
    while set(control.kubectl(programs, "get", "nodes", "-o", "name").split()) != {
        f"node/{node}" for node in NODES
    }:
        if time.monotonic() > give_up:
            raise ClusterError(f"the nodes do not join; their logs are in {STATE}/log")
        time.sleep(0.2)
    control.kubectl(programs, "wait", "--for=condition=Ready", patience, "node", "--all")
    control.kubectl(
        programs, "rollout", "status", patience, "-n", "kube-system", "daemonset/coredns"
    )


def _end_strays() -> None:
    """Daemons of this cluster that no record names: whoever started them died before it could."""
    for pid, name in leftovers.daemons():
        say(f"ending {name} (pid {pid}), which nobody remembers")
        processes.send(pid, signal.SIGKILL)
        if not processes.gone(pid, 10.0):
            raise ClusterError(f"{name} (pid {pid}) cannot be ended")
