"""The cluster that runs, whichever it is: what brings it up and down, and what breaks it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Protocol

from e2e.cluster.kind import Kind
from e2e.cluster.namespaces import Namespaces
from e2e.cluster.places import STATE
from e2e.cluster.say import ClusterError


class Cluster(Protocol):
    """Whatever undoes something may be called although nothing was done."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The workers' names."""

    @property
    def programs(self) -> Path:
        """A folder with kubectl."""

    @property
    def api(self) -> tuple[str, int]:
        """Address and port at which nodes and pods reach the API."""

    # -- its life

    def tools(self) -> tuple[str, ...]:
        """Programs of this machine that it needs."""

    def check(self) -> None:
        """Refuses, with a reason, where it cannot run. `STATE` is not there."""

    def build(self) -> None:
        """Everything that can be made before anything runs."""

    def start(self) -> None:
        """Ready when this returns."""

    def healthy(self) -> bool:
        """Up and of use; changes nothing."""

    def stop(self) -> None:
        """Also if it never was wholly up."""

    def load(self, archive: Path) -> None:
        """One more image into every worker; nothing is done if it is there already."""

    # -- its faults

    def kill_api(self) -> None:
        """Without a goodbye; it stays away."""

    def start_api(self) -> None:
        """Ready when this returns."""

    def nft(self, node: str, rules: str) -> None:
        """In the node's own network."""

    def pause(self, node: str) -> None:
        """Nothing in it runs; its clocks go on."""

    def unpause(self, node: str) -> None: ...

    def cut_power(self, node: str) -> None:
        """Nothing in it gets to say goodbye."""

    def power_on(self, node: str) -> None:
        """With the disk it had."""

    def run_in(self, node: str, *command: str | Path) -> str:
        """A program in the node's own namespaces; what it prints."""

    def save_storage(self, name: str) -> None:
        """A copy of the API's storage as it is now, under that name."""

    def restore_storage(self, name: str) -> None:
        """Everything written since is forgotten."""


_RECORD = "engine"
_NAMESPACES = "namespaces"


def record(cluster: Cluster) -> None:
    """From here on there is a cluster. The folder never is there without saying of what kind."""
    new = STATE.with_name(f"{STATE.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    (new / _RECORD).write_text(cluster.engine if isinstance(cluster, Kind) else _NAMESPACES)
    new.rename(STATE)


def running() -> Cluster:
    """The one that is recorded, also if only half of it is up."""
    if not STATE.exists():
        raise ClusterError("no cluster is up; `make cluster` brings one up")
    try:
        engine = (STATE / _RECORD).read_text().strip()
    except FileNotFoundError:
        if not (STATE / "pki").is_dir():  # which one of namespaces always had
            raise ClusterError(f"{STATE} is no cluster's; it is left alone") from None
        engine = _NAMESPACES
    return Namespaces() if engine == _NAMESPACES else Kind(engine)
