"""Breaking the cluster and mending it: every fault is a context, and ends with all whole again.

What they act through is the cluster that runs: namespaces of this machine, or kind's containers.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from e2e.cluster import processes
from e2e.cluster.running import running
from e2e.cluster.say import ClusterError

KUBELET_PORT = 10250
UPLINK_PORT = 7070  # of the gateway, where sidecars dial in


@contextmanager
def _undone(do: Callable[[], object], undo: Callable[[], object]) -> Iterator[None]:
    """Undone also if it was only half done, and then the first complaint is the one heard."""
    try:
        do()
    except BaseException:
        with suppress(ClusterError):
            undo()
        raise
    try:
        yield
    finally:
        undo()


@contextmanager
def api_down() -> Iterator[None]:
    cluster = running()
    with _undone(cluster.kill_api, cluster.start_api):
        yield


@contextmanager
def cut_from_api(node: str) -> Iterator[None]:
    """The node and its pods have no connection to the API, not even one that they had: kubelet
    would still hear of a deletion. The API reaches the node's kubelet by connections of its own."""
    host, port = running().api
    reach = f"ip daddr {host} tcp dport {port} drop"
    answer = f"ip saddr {host} tcp sport {port} drop"
    with _filter(node, output=reach, input=answer, forward=f"{reach}; {answer}"):
        yield


@contextmanager
def no_answers_from_api(node: str) -> Iterator[None]:
    """What the node's pods ask arrives and is done; no answer comes back."""
    host, port = running().api
    answer = f"ip saddr {host} tcp sport {port} drop"
    with _filter(node, input=answer, forward=answer):
        yield


@contextmanager
def cut_from_clients(node: str) -> Iterator[None]:
    """Nobody reaches the node's sessions; the node reaches the API."""
    reach = f"tcp dport {KUBELET_PORT} drop"
    with _filter(node, input=reach):
        yield


@contextmanager
def cut_from_gateways(node: str) -> Iterator[None]:
    """The node's sessions reach no gateway, and no gateway there is reached; nothing else is
    missing."""
    rules = "; ".join(f"tcp {side} {UPLINK_PORT} drop" for side in ("dport", "sport"))
    with _filter(node, forward=rules):
        yield


@contextmanager
def _filter(node: str, **chains: str) -> Iterator[None]:
    cluster = running()
    rules = ["table inet holdfast_cut {"]
    for hook, rule in chains.items():
        rules.append(f"chain {hook} {{ type filter hook {hook} priority -300; {rule}; }}")
    rules.append("}")
    # Named first, so that it can be deleted also where it is not.
    gone = "table inet holdfast_cut\ndelete table inet holdfast_cut"
    with _undone(
        lambda: cluster.nft(node, "\n".join(rules)),
        lambda: cluster.nft(node, gone),
    ):
        yield


@contextmanager
def slow(node: str, megabits: int) -> Iterator[None]:
    """What the node sends, pods and all, goes no faster than that."""
    shaped = f"dev eth0 root tbf rate {megabits}mbit burst 256kb latency 50ms"
    with _undone(
        lambda: in_node(node, "tc", "qdisc", "add", *shaped.split()),
        lambda: in_node(node, "tc", "qdisc", "del", "dev", "eth0", "root"),
    ):
        yield


@contextmanager
def paused(node: str) -> Iterator[None]:
    cluster = running()
    with _undone(lambda: cluster.pause(node), lambda: cluster.unpause(node)):
        yield


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    with _undone(lambda: os.kill(pid, signal.SIGSTOP), lambda: processes.send(pid, signal.SIGCONT)):
        yield


@contextmanager
def node_down(node: str) -> Iterator[None]:
    """Its power is cut; afterwards it starts again with the disk it had."""
    cluster = running()
    with _undone(lambda: cluster.cut_power(node), lambda: cluster.power_on(node)):
        yield


def reboot(node: str) -> None:
    with node_down(node):
        pass


def restart_kubelet(node: str) -> None:
    """Its pods run on."""
    ours = "kill $(cat /run/kubelet.pid)"
    in_node(node, "sh", "-c", f"[ -e /run/kubelet.pid ] && {ours} || systemctl restart kubelet")


def in_node(node: str, *command: str | Path) -> str:
    """A program in the node's own namespaces."""
    return running().run_in(node, *command)


def save_storage(name: str) -> None:
    """A copy of the API's storage as it is now. The API is away for a moment."""
    running().save_storage(name)


def restore_storage(name: str) -> None:
    """Everything written since `save_storage` is forgotten."""
    running().restore_storage(name)
