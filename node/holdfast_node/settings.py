"""What the chart sets, from the environment. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast_wire.errors import BadRequest

from . import safe_open

PORT: Final = 7318
KEYS: Final = Path("/etc/holdfast-node")
_UNITS: Final = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_QUANTITY: Final = re.compile(r"([0-9]{1,15})(|Ki|Mi|Gi|Ti)")


@dataclass(frozen=True, slots=True)
class Bucket:
    """Where it is. Who we are, the store's client finds out from the environment, as all clients
    of S3 do: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a cloud's own way."""

    name: str
    prefix: str = ""
    endpoint: str = ""  # empty: Amazon's
    region: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    node: str
    address: str  # where other agents reach this one
    port: int = PORT
    keys: Path = KEYS  # ca-bundle.crt, by which agents know each other and the operator
    work: Path = Path("/run/holdfast-node")  # in memory: what a session had there passes through
    # On the node's disk: what is kept, and what is on its way there.
    store: Path = Path("/var/lib/holdfast-node")
    store_bytes: int = 20 << 30
    store_percent: int = 50  # of these, what one namespace may have
    store_reserve: int = 1 << 30  # of that disk, for the node itself
    bucket: Bucket | None = None
    bundle: Path = Path("/opt/criu")
    # The node's own view: a container's shows it nothing but itself.
    cgroups: Path = safe_open.NODE / "sys/fs/cgroup"
    log_level: str = "INFO"

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        for name in ("HOLDFAST_NODE", "HOLDFAST_POD_IP"):
            if not env.get(name):
                raise BadRequest(f"{name} is not set", "the chart's DaemonSet sets it")
        level = env.get("HOLDFAST_LOG_LEVEL", "").upper() or "INFO"
        if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise BadRequest(f"HOLDFAST_LOG_LEVEL is {level}", "use debug, info, warning or error")
        return cls(
            node=env["HOLDFAST_NODE"],
            address=env["HOLDFAST_POD_IP"],
            log_level=level,
            store_bytes=_bytes(env.get("HOLDFAST_STORE_BYTES", "") or "20Gi"),
            store_percent=_percent(env.get("HOLDFAST_STORE_NAMESPACE_PERCENT", "") or "50"),
            bucket=_bucket(env),
        )


def _bytes(text: str) -> int:
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise BadRequest(f"HOLDFAST_STORE_BYTES is {text}", "use bytes, or Ki, Mi, Gi or Ti")
    return int(found[1]) * _UNITS[found[2]]


def _percent(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 100:
        raise BadRequest(f"HOLDFAST_STORE_NAMESPACE_PERCENT is {text[:20]}", "use 1 to 100")
    return int(text)


def _bucket(env: Mapping[str, str]) -> Bucket | None:
    """None: no object store is set up."""
    name, prefix, endpoint, region = (
        env.get(f"HOLDFAST_S3_{key}", "") for key in ("BUCKET", "PREFIX", "ENDPOINT", "REGION")
    )
    if not name:
        return None
    if endpoint and not endpoint.startswith(("https://", "http://")):
        raise BadRequest(f"HOLDFAST_S3_ENDPOINT is {endpoint}", "it begins with https://")
    return Bucket(name, prefix.strip("/"), endpoint, region)
