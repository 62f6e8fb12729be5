"""What the chart sets, from the environment. Pure."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast_wire.errors import BadRequest
from holdfast_wire.uplink import PORT as UPLINK_PORT


@dataclass(frozen=True, slots=True)
class Settings:
    keys: Path
    """tls.crt, tls.key"""
    namespace: str = "default"
    """of a session's name without one"""
    watch_namespaces: tuple[str, ...] = ()
    hosts: frozenset[str] = frozenset()
    """by which browsers may know this gateway; empty: any"""
    aggregated: bool = True
    port: int = 8443
    front_port: int = 8444
    uplink_port: int = UPLINK_PORT
    health_port: int = 8080
    log_level: int = logging.INFO

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        level = (env.get("HOLDFAST_LOG_LEVEL") or "info").upper()
        if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise BadRequest(f"HOLDFAST_LOG_LEVEL is {level}", "use debug, info, warning or error")
        aggregated = env.get("HOLDFAST_AGGREGATED", "true")
        if aggregated not in ("true", "false"):
            raise BadRequest(f"HOLDFAST_AGGREGATED is {aggregated}", "use true or false")
        return cls(
            keys=Path(env.get("HOLDFAST_KEYS", "/etc/holdfast-gateway")),
            namespace=env.get("HOLDFAST_DEFAULT_NAMESPACE") or "default",
            watch_namespaces=tuple(dict.fromkeys(_words(env, "HOLDFAST_WATCH_NAMESPACES"))),
            hosts=frozenset(one.lower() for one in _words(env, "HOLDFAST_HOSTS")),
            aggregated=aggregated == "true",
            log_level=int(getattr(logging, level)),
        )


def _words(env: Mapping[str, str], name: str) -> list[str]:
    return env.get(name, "").replace(",", " ").split()
