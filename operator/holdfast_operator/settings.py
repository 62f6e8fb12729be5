"""What the chart sets, from the environment. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast_operator.usage import NO_LIMITS, Limits
from holdfast_wire.errors import BadRequest

DEFAULT_RESOURCES: Final[Mapping[str, Any]] = {
    "requests": {"cpu": "10m", "memory": "48Mi"},
    "limits": {"memory": "256Mi"},
}

RESERVED_ENV: Final = "HOLDFAST_"
_QUANTITY: Final = re.compile(r"([0-9]{1,15})(Ki|Mi|Gi|Ti)?")
_UNITS: Final = {None: 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


@dataclass(frozen=True, slots=True)
class Settings:
    image: str  # of the sidecar
    image_pull_policy: str = ""  # "": as Kubernetes chooses by the tag
    sidecar_resources: Mapping[str, Any] = field(default_factory=lambda: DEFAULT_RESOURCES)
    sidecar_env: tuple[tuple[str, str], ...] = ()  # beside what the operator sets
    token_audience: str = ""  # "": the API server's own
    namespace: str = "default"  # where the operator itself is: its leader Lease
    pod_name: str = "holdfast-operator"
    watch_namespaces: tuple[str, ...] = ()  # empty: all
    log_level: str = "INFO"
    port: int = 8080
    gateway: str = ""  # where sidecars dial it: host:port; "": there is none
    gateway_ca: str = ""  # PEM, by which they know it
    policies: bool = True  # the chart's ValidatingAdmissionPolicies are there
    webhook_keys: str = ""  # the folder with its certificate, key and path; "": no webhook
    limits: Limits = NO_LIMITS  # of the checkpoints of a namespace
    journal_file_bytes: str = ""  # of the sidecar's journal; "": as the sidecar has it
    journal_files: str = ""
    agent_account: str = ""  # NAMESPACE:NAME of the node agents'; "": there are none
    former_image: str = ""  # of an older release, for what that stored without its hold
    webhook_client_ca: str = ""  # PEM, of those who may ask it; "": whoever knows the path
    webhook_client_names: tuple[str, ...] = ()  # one of them must be in their certificate

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        if not env.get("HOLDFAST_IMAGE"):
            raise BadRequest("HOLDFAST_IMAGE is not set", "set it to the sidecar's image")
        level = env.get("HOLDFAST_LOG_LEVEL", "").upper() or "INFO"
        if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise BadRequest(f"HOLDFAST_LOG_LEVEL is {level}", "use debug, info, warning or error")
        namespaces = env.get("HOLDFAST_WATCH_NAMESPACES", "").replace(",", " ").split()
        return cls(
            image=env["HOLDFAST_IMAGE"],
            former_image=env.get("HOLDFAST_FORMER_IMAGE", ""),
            image_pull_policy=env.get("HOLDFAST_IMAGE_PULL_POLICY", ""),
            sidecar_resources=_resources(env.get("HOLDFAST_SIDECAR_RESOURCES", "")),
            sidecar_env=_env(env.get("HOLDFAST_SIDECAR_ENV", "")),
            limits=Limits(
                int(_number(env, "HOLDFAST_CHECKPOINTS_PER_NAMESPACE") or 0),
                _bytes(env, "HOLDFAST_CHECKPOINT_BYTES_PER_NAMESPACE"),
            ),
            journal_file_bytes=_number(env, "HOLDFAST_JOURNAL_FILE_BYTES"),
            journal_files=_number(env, "HOLDFAST_JOURNAL_FILES"),
            token_audience=env.get("HOLDFAST_TOKEN_AUDIENCE", ""),
            namespace=env.get("HOLDFAST_NAMESPACE") or "default",
            pod_name=env.get("HOLDFAST_POD_NAME") or env.get("HOSTNAME") or "holdfast-operator",
            watch_namespaces=tuple(dict.fromkeys(namespaces)),
            log_level=level,
            port=_port(env.get("HOLDFAST_PORT") or "8080"),
            gateway=env.get("HOLDFAST_GATEWAY", ""),
            gateway_ca=_authority(env),
            policies=env.get("HOLDFAST_ADMISSION_POLICIES", "true") != "false",
            agent_account=env.get("HOLDFAST_AGENT_ACCOUNT", ""),
            webhook_keys=env.get("HOLDFAST_WEBHOOK_KEYS", ""),
            webhook_client_ca=env.get("HOLDFAST_WEBHOOK_CLIENT_CA", ""),
            webhook_client_names=_client_names(env),
        )


def _authority(env: Mapping[str, str]) -> str:
    found = env.get("HOLDFAST_GATEWAY_CA", "")
    if env.get("HOLDFAST_GATEWAY") and "BEGIN CERTIFICATE" not in found:
        raise BadRequest(
            "HOLDFAST_GATEWAY is set and HOLDFAST_GATEWAY_CA is no certificate",
            "set it to the authority of the gateway's certificate, as PEM",
        )
    return found


def _client_names(env: Mapping[str, str]) -> tuple[str, ...]:
    found = tuple(env.get("HOLDFAST_WEBHOOK_CLIENT_NAMES", "").replace(",", " ").split())
    if found and not env.get("HOLDFAST_WEBHOOK_CLIENT_CA"):
        raise BadRequest(
            "HOLDFAST_WEBHOOK_CLIENT_NAMES is set and HOLDFAST_WEBHOOK_CLIENT_CA is not",
            "set it to the authority of the API server's client certificate",
        )
    return found


def _resources(text: str) -> Mapping[str, Any]:
    if not text:
        return DEFAULT_RESOURCES
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BadRequest(
            "HOLDFAST_SIDECAR_RESOURCES is not a JSON object",
            'write it like {"limits": {"memory": "256Mi"}}',
        )
    return found


def _env(text: str) -> tuple[tuple[str, str], ...]:
    if not text:
        return ()
    try:
        found = tuple((one["name"], one["value"]) for one in json.loads(text))
    except (ValueError, TypeError, KeyError):
        found = ((None, None),)
    if not all(isinstance(part, str) for one in found for part in one):
        raise BadRequest(
            "HOLDFAST_SIDECAR_ENV is not a JSON list of names and values",
            'write it like [{"name": "TZ", "value": "UTC"}]',
        )
    for name, _value in found:
        if not name or name.startswith(RESERVED_ENV):
            raise BadRequest(
                f'HOLDFAST_SIDECAR_ENV sets "{name}"',
                f"choose a name that does not begin with {RESERVED_ENV}: those are the operator's",
            )
    return found


def _number(env: Mapping[str, str], name: str) -> str:
    found = env.get(name, "")
    if found and not found.isdigit():
        raise BadRequest(f"{name} is {found[:40]}", "set it to a number")
    return found


def _bytes(env: Mapping[str, str], name: str) -> int:
    found = _QUANTITY.fullmatch(env.get(name, "") or "0")
    if found is None:
        raise BadRequest(f"{name} is {env[name][:40]}", "use bytes, or Ki, Mi, Gi or Ti")
    return int(found[1]) * _UNITS[found[2]]


def _port(text: str) -> int:
    # A Service named "holdfast" makes kubelet set HOLDFAST_PORT=tcp://… in every container.
    if text.startswith("tcp://"):
        return 8080
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise BadRequest(f"HOLDFAST_PORT is {text}", "use a port number")
    return int(text)
