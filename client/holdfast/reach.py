"""The cluster that is meant, as kubectl would find it: natively, through a `kubectl proxy` for what
only kubectl can do, and through nothing but the program where there is no kubeconfig at all."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.access import Access, of_cluster, of_socket
from holdfast.kubeconfig import Chosen, NotPlain, Unknown, choose
from holdfast_wire.errors import Unavailable

if TYPE_CHECKING:
    import subprocess

    from holdfast.arguments import Target
    from holdfast.kube import Kubectl

_PROXY_SECONDS: Final = 15.0


class Reached(NamedTuple):
    access: Access
    namespace: str


def reach(target: Target) -> Reached | None:
    """None: only the program kubectl knows what is meant, if it does."""
    try:
        chosen = _chosen(target)
        return Reached(of_cluster(chosen), chosen.namespace) if chosen is not None else None
    except Unknown:
        from holdfast.kube import Kubectl

        kubectl = Kubectl(target)
        return Reached(_proxy(kubectl), target.namespace or _namespace(kubectl))


def _chosen(target: Target) -> Chosen | None:
    try:
        return choose(target)
    except NotPlain:
        from holdfast.kube import Kubectl

        viewed = Kubectl(target).json("config", "view", "--raw", "--flatten")
        return choose(target, viewed)


def _namespace(kubectl: Kubectl) -> str:
    found = kubectl.text("config", "view", "--minify", "--output=jsonpath={..namespace}").split()
    return found[0] if found else "default"


def _proxy(kubectl: Kubectl) -> Access:
    """A kubectl that logs in for us, for as long as we live; its socket is in a folder that nobody
    else may enter."""
    import atexit
    import tempfile

    folder = tempfile.TemporaryDirectory(prefix="holdfast-")
    path = Path(folder.name) / "kubectl"
    process = kubectl.start("proxy", f"--unix-socket={path}")

    def stop() -> None:
        kubectl.stop()
        folder.cleanup()

    atexit.register(stop)
    deadline = time.monotonic() + _PROXY_SECONDS
    while not _listens(path):
        if process.poll() is not None:
            raise Unavailable(f"kubectl proxy: {_said(process)}")
        if time.monotonic() > deadline:
            raise Unavailable("kubectl proxy does not come up")
        time.sleep(0.01)
    return of_socket(path)


def _said(process: subprocess.Popen[bytes]) -> str:
    from holdfast.kube import complaint, drain

    return complaint(drain(process.stderr)) or f"ended with code {process.returncode}"


def _listens(path: Path) -> bool:
    if not os.path.exists(path):  # noqa: PTH110 - asked again and again
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
