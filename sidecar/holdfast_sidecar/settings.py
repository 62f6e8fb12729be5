"""What a pod's sidecar is told: its environment, as the operator's `pods.py` sets it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast_sidecar import spec, survey
from holdfast_sidecar.journal import DEFAULT, Policy
from holdfast_sidecar.uplink import Gateways
from holdfast_wire import uplink
from holdfast_wire.errors import BadRequest
from holdfast_wire.ids import session_name, terminal_size
from holdfast_wire.lease import Epoch, Timing

_STORED: Final = "stored"  # in HOLDFAST_RESTORE; for a move it is the epoch before


@dataclass(frozen=True, slots=True)
class Settings:
    session: spec.Spec
    session_uid: str
    namespace: str
    epoch: Epoch
    timing: Timing
    pod_uid: str
    notice: str
    state: Path
    hold_socket: Path
    run: Path
    credentials: Path
    gateways: Gateways | None
    survey_every: float
    restore: bool
    """A session comes here from elsewhere,"""
    stored: bool
    """and that is: from where it was stored."""

    @classmethod
    def read(cls, env: dict[str, str]) -> Settings:
        try:
            return cls._read(env)
        except KeyError as missing:
            raise BadRequest(
                f"{missing.args[0]} is not set: not a pod of the operator's?"
            ) from None
        except (ValueError, TypeError) as error:
            raise BadRequest(f"the environment cannot be understood: {error}") from error

    @classmethod
    def _read(cls, env: dict[str, str]) -> Settings:
        state = Path(env.get("HOLDFAST_STATE", "/var/lib/holdfast"))
        name = session_name(env["HOLDFAST_SESSION"])
        columns, rows = terminal_size(int(env["HOLDFAST_COLUMNS"]), int(env["HOLDFAST_ROWS"]))
        epoch = Epoch(int(env["HOLDFAST_EPOCH"]))
        restore = bool(env.get("HOLDFAST_RESTORE"))
        credentials = Path(env.get("HOLDFAST_CREDENTIALS", "/var/run/secrets/holdfast"))
        return cls(
            session=spec.Spec(
                name=name,
                # A fresh incarnation is another stream of bytes: no client resumes into it.
                id=f"{env['HOLDFAST_SESSION_UID']}.{epoch}",
                command=tuple(json.loads(env["HOLDFAST_COMMAND"])),
                columns=columns,
                rows=rows,
                scrollback=int(env["HOLDFAST_SCROLLBACK"]),
                created=0.0 if restore else created(state),
                epoch=epoch,
                journal=Policy(
                    int(env.get("HOLDFAST_JOURNAL_FILE_BYTES", DEFAULT.file_bytes)),
                    int(env.get("HOLDFAST_JOURNAL_FILES", DEFAULT.files)),
                ),
            ),
            session_uid=env["HOLDFAST_SESSION_UID"],
            namespace=env["HOLDFAST_NAMESPACE"],
            epoch=epoch,
            timing=Timing.of(float(env["HOLDFAST_LEASE_SECONDS"])),
            pod_uid=env["HOLDFAST_POD_UID"],
            notice=env.get("HOLDFAST_NOTICE", ""),
            state=state,
            hold_socket=Path(env.get("HOLDFAST_HOLD", "/.holdfast/hold.sock")),
            run=Path(env.get("HOLDFAST_RUN", "/run/holdfast")),
            credentials=credentials,
            gateways=_gateways(env, credentials),
            survey_every=float(env.get("HOLDFAST_SURVEY_SECONDS", survey.EVERY_SECONDS)),
            restore=restore,
            stored=env.get("HOLDFAST_RESTORE") == _STORED,
        )

    def about(self) -> dict[str, Any]:
        """Who dials a gateway."""
        return {
            "version": uplink.VERSION,
            "namespace": self.namespace,
            "session": self.session.name,
            "epoch": self.epoch,
        }

    @property
    def lease_path(self) -> str:
        return (
            f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/{self.session.name}"
        )

    @property
    def session_path(self) -> str:
        return (
            f"/apis/holdfast.dev/v1alpha1/namespaces/{self.namespace}/sessions/{self.session.name}"
        )


def _gateways(env: dict[str, str], credentials: Path) -> Gateways | None:
    """None: this cluster has no gateway."""
    host, _, port = env.get("HOLDFAST_GATEWAY", "").rpartition(":")
    if not host:
        return None
    return Gateways(host, int(port), env["HOLDFAST_GATEWAY_CA"], credentials / "gateway-token")


def created(folder: Path) -> float:
    """When this incarnation's first sidecar started: the time of a file of its own."""
    path = folder / "created"
    with contextlib.suppress(FileExistsError):
        path.touch(exist_ok=False)  # of one that exists it would change the time
    return path.stat().st_mtime
