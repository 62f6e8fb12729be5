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
    ssh: bool = False
    ssh_port: int = 2222
    ssh_folder: Path = Path("/etc/holdfast-ssh")
    """host/ssh_host_key, and in secret/ and configmap/ the keys that are let in"""
    log_level: int = logging.INFO

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        level = (env.get("HOLDFAST_LOG_LEVEL") or "info").upper()
        if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise BadRequest(f"HOLDFAST_LOG_LEVEL is {level}", "use debug, info, warning or error")
        return cls(
            keys=Path(env.get("HOLDFAST_KEYS", "/etc/holdfast-gateway")),
            namespace=env.get("HOLDFAST_DEFAULT_NAMESPACE") or "default",
            watch_namespaces=tuple(dict.fromkeys(_words(env, "HOLDFAST_WATCH_NAMESPACES"))),
            hosts=frozenset(one.lower() for one in _words(env, "HOLDFAST_HOSTS")),
            aggregated=_flag(env, "HOLDFAST_AGGREGATED", True),
            ssh=_flag(env, "HOLDFAST_SSH", False),
            ssh_folder=Path(env.get("HOLDFAST_SSH_FOLDER", "/etc/holdfast-ssh")),
            log_level=int(getattr(logging, level)),
        )


def _flag(env: Mapping[str, str], name: str, default: bool) -> bool:
    said = env.get(name) or str(default).lower()
    if said not in ("true", "false"):
        raise BadRequest(f"{name} is {said}", "use true or false")
    return said == "true"


def _words(env: Mapping[str, str], name: str) -> list[str]:
    return env.get(name, "").replace(",", " ").split()
