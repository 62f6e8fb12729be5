"""`holdfast-operator`."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any, cast

import kopf

from holdfast_kube import credentials
from holdfast_operator import log
from holdfast_operator.app import App
from holdfast_operator.handlers import register
from holdfast_operator.settings import Settings
from holdfast_wire.errors import HoldfastError


async def operate(settings: Settings) -> bool:
    """Until a signal, or until something of ours fails; then false."""
    app = App(settings, credentials.find())
    await kopf.operator(
        registry=register(app),
        standalone=True,  # our own leader Lease; kopf's peering is not a lock
        identity=cast(
            Any, settings.pod_name
        ),  # kopf would ask for a user name, and an image has none
        clusterwide=not settings.watch_namespaces,
        namespaces=settings.watch_namespaces,
        stop_flag=app.stopped,
    )
    return not app.failed


def main() -> int:
    try:
        settings = Settings.from_env(os.environ)
        log.configure(settings.log_level)
        return 0 if asyncio.run(operate(settings)) else 1
    except HoldfastError as error:
        print(f"holdfast-operator: {error}", file=sys.stderr)
        return error.exit_code
    except asyncio.CancelledError:
        return 0
    except Exception as error:  # the process's edge: kopf ends with whatever its watches met
        log.fault("the operator ends", error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
