"""What the chart sets, from the environment. Pure."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast_gateway.login import Login, Oidc, Token, TrustedProxy, networks
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
    service: str = ""
    """namespace/name of the Service that people come to"""
    oidc: Oidc | None = None
    proxy: TrustedProxy | None = None
    proxy_authority: str | None = None
    """PEM: signs the certificate of the proxy"""
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

    @property
    def login(self) -> Login:
        ways = (self.oidc, Token(), self.proxy)
        return Login(tuple(way for way in ways if way is not None))

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
            service=env.get("HOLDFAST_SERVICE", ""),
            oidc=_oidc(env),
            proxy=_proxy(env),
            proxy_authority=env.get("HOLDFAST_PROXY_CA") or None,
            aggregated=_flag(env, "HOLDFAST_AGGREGATED", True),
            ssh=_flag(env, "HOLDFAST_SSH", False),
            ssh_folder=Path(env.get("HOLDFAST_SSH_FOLDER", "/etc/holdfast-ssh")),
            log_level=int(getattr(logging, level)),
        )


def _oidc(env: Mapping[str, str]) -> Oidc | None:
    issuer = env.get("HOLDFAST_OIDC_ISSUER", "")
    if not issuer:
        return None
    scopes = env.get("HOLDFAST_OIDC_SCOPES") or "openid"
    return Oidc(issuer, env.get("HOLDFAST_OIDC_CLIENT_ID", ""), scopes)


def _proxy(env: Mapping[str, str]) -> TrustedProxy | None:
    near = networks(env.get("HOLDFAST_PROXY_NETWORKS", ""))
    names = frozenset(_words(env, "HOLDFAST_PROXY_NAMES"))
    if not near and not names:
        return None
    if names and not env.get("HOLDFAST_PROXY_CA"):
        raise BadRequest(
            "a proxy's names are worth nothing without the CA that signs them",
            "set gateway.proxy.caBundle",
        )
    return TrustedProxy(
        near,
        names,
        env.get("HOLDFAST_PROXY_USER_HEADER") or "X-Forwarded-User",
        env.get("HOLDFAST_PROXY_GROUPS_HEADER") or "X-Forwarded-Groups",
        env.get("HOLDFAST_PROXY_PREFIX", ""),
    )


def _flag(env: Mapping[str, str], name: str, default: bool) -> bool:
    said = env.get(name) or str(default).lower()
    if said not in ("true", "false"):
        raise BadRequest(f"{name} is {said}", "use true or false")
    return said == "true"


def _words(env: Mapping[str, str], name: str) -> list[str]:
    return env.get(name, "").replace(",", " ").split()
