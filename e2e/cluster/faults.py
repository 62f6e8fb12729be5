"""Breaking the cluster and mending it: every fault is a context, and ends with all whole again."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import build, control, nodes, processes
from e2e.cluster.places import API_HOST, API_PORT, STATE
from e2e.cluster.say import run

KUBELET_PORT = 10250


@contextmanager
def api_down() -> Iterator[None]:
    processes.stop("apiserver", signal.SIGKILL)
    try:
        yield
    finally:
        control.start_api(build.programs())
        control.await_api(build.programs())


@contextmanager
def cut_from_api(node: str) -> Iterator[None]:
    """The node and its pods cannot reach the API; the API can still reach the node."""
    reach = f"ip daddr {API_HOST} tcp dport {API_PORT} drop"
    with _filter(node, output=reach, forward=reach):
        yield


@contextmanager
def no_answers_from_api(node: str) -> Iterator[None]:
    """What the node's pods ask arrives and is done; no answer comes back."""
    answer = f"ip saddr {API_HOST} tcp sport {API_PORT} drop"
    with _filter(node, input=answer, forward=answer):
        yield


@contextmanager
def cut_from_clients(node: str) -> Iterator[None]:
    """Nobody reaches the node's sessions; the node reaches the API."""
    reach = f"tcp dport {KUBELET_PORT} drop"
    with _filter(node, input=reach):
        yield


@contextmanager
def _filter(node: str, **chains: str) -> Iterator[None]:
    rules = ["table inet holdfast_cut {"]
    for hook, rule in chains.items():
        rules.append(f"chain {hook} {{ type filter hook {hook} priority -300; {rule}; }}")
    rules.append("}")
    _nft(node, "\n".join(rules))
    try:
        yield
    finally:
        _nft(node, "delete table inet holdfast_cut")


def _nft(node: str, rules: str) -> None:
    command = ["nft", "-f", "-"]
    run("ip", "netns", "exec", nodes.link_name(node), *command, give=rules)


@contextmanager
def paused(node: str) -> Iterator[None]:
    nodes.freeze(node)
    try:
        yield
    finally:
        nodes.thaw(node)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        processes.send(pid, signal.SIGCONT)


@contextmanager
def node_down(node: str) -> Iterator[None]:
    """Its power is cut; afterwards it starts again with the disk it had."""
    nodes.stop(node)
    try:
        yield
    finally:
        nodes.start(node, build.programs(), build.node_root(), STATE / "images")


def reboot(node: str) -> None:
    with node_down(node):
        pass


def in_node(node: str, *command: str | Path) -> str:
    """A program in the node's own namespaces."""
    words = ["nsenter", f"--target={nodes.init_pid(node)}", "--mount", "--pid", "--net", "--uts",
             "--ipc", "--cgroup", *(str(word) for word in command)]  # fmt: skip
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout
