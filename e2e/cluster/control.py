"""The control plane: etcd, API server, controller manager, scheduler, and the cluster's DNS."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from e2e.cluster import build, processes
from e2e.cluster.places import (
    API_HOST,
    API_PORT,
    ETCD_PORT,
    HERE,
    KUBECONFIG,
    LOGS,
    PKI,
    SERVICE_RANGE,
    STATE,
)
from e2e.cluster.say import ClusterError, run

_READY_SECONDS: Final = 60.0
_ETCD_DATA: Final = STATE / "etcd"
# A copied database has no hash; and revisions go far above all that anybody has seen.
RESTORE: Final = ("--skip-hash-check", "--bump-revision=1000000", "--mark-compacted")


def start(programs: Path) -> None:
    start_etcd(programs)
    start_api(programs)
    await_api(programs)
    start_controllers(programs)


def start_controllers(programs: Path) -> None:
    """Anew, if they run: after a long outage they would wait up to a minute before they look."""
    for name in ("controller-manager", "scheduler"):
        processes.stop(name, signal.SIGKILL)
        start_controller(programs, name)


def start_etcd(programs: Path) -> None:
    if processes.pid_of("etcd") is not None:
        return
    client, peer = f"http://127.0.0.1:{ETCD_PORT}", f"http://127.0.0.1:{ETCD_PORT + 1}"
    processes.start("etcd", [
        programs / "etcd", f"--data-dir={_ETCD_DATA}", "--name=holdfast",
        f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=holdfast={peer}",
        "--unsafe-no-fsync",  # it does not outlive the machine, and this is a test
        "--log-level=warn",
    ])  # fmt: skip


def start_api(programs: Path) -> None:
    if processes.pid_of("apiserver") is not None:
        return
    processes.start("apiserver", [
        programs / "kube-apiserver",
        f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
        f"--bind-address={API_HOST}", f"--advertise-address={API_HOST}",
        f"--secure-port={API_PORT}",
        f"--tls-cert-file={PKI}/apiserver.crt", f"--tls-private-key-file={PKI}/apiserver.key",
        f"--client-ca-file={PKI}/ca.crt",
        f"--kubelet-client-certificate={PKI}/apiserver-kubelet.crt",
        f"--kubelet-client-key={PKI}/apiserver-kubelet.key",
        f"--kubelet-certificate-authority={PKI}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={PKI}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={PKI}/front-proxy-client.crt",
        f"--proxy-client-key-file={PKI}/front-proxy-client.key",
        "--enable-aggregator-routing=true",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={PKI}/sa.pub",
        f"--service-account-signing-key-file={PKI}/sa.key",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--shutdown-delay-duration=0s",
    ])  # fmt: skip


def start_controller(programs: Path, name: str) -> None:
    common = [f"--kubeconfig={PKI}/{name}.conf", "--leader-elect=false", "--secure-port=0"]
    special = {
        "scheduler": [],
        "controller-manager": [
            f"--service-account-private-key-file={PKI}/sa.key", f"--root-ca-file={PKI}/ca.crt",
            "--use-service-account-credentials",
            f"--cluster-signing-cert-file={PKI}/ca.crt",
            f"--cluster-signing-key-file={PKI}/ca.key",
            "--node-monitor-grace-period=20s",  # a dead node is NotReady in half the usual time
        ],
    }  # fmt: skip
    processes.start(name, [programs / f"kube-{name}", *common, *special[name]])


def await_api(programs: Path) -> None:
    give_up = time.monotonic() + _READY_SECONDS
    command = [str(programs / "kubectl"), f"--kubeconfig={KUBECONFIG}", "get", "--raw", "/readyz"]
    while subprocess.run(command, check=False, capture_output=True).returncode != 0:
        if processes.pid_of("apiserver") is None:
            raise ClusterError(f"the API server ended; its log is {LOGS}/apiserver.log")
        if time.monotonic() > give_up:
            raise ClusterError(f"the API server is not ready; its log is {LOGS}/apiserver.log")
        time.sleep(0.2)


def install_dns(programs: Path) -> None:
    kubectl(programs, "apply", "--server-side", "-f", str(HERE / "src" / "coredns.yaml"))


def kubectl(programs: Path, *arguments: str) -> str:
    return run(programs / "kubectl", f"--kubeconfig={KUBECONFIG}", *arguments)


def nodes_ready(programs: Path, names: tuple[str, ...]) -> bool:
    look = (
        'jsonpath={range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status}'
        " {end}"
    )
    command = [str(programs / "kubectl"), f"--kubeconfig={KUBECONFIG}", "--request-timeout=5s",
               "get", "nodes", "-o", look]  # fmt: skip
    asked = subprocess.run(command, check=False, capture_output=True, text=True)
    return asked.returncode == 0 and {f"{name}=True" for name in names} <= set(asked.stdout.split())


def stop() -> None:
    for name in ("scheduler", "controller-manager", "apiserver", "etcd"):
        processes.stop(name, signal.SIGKILL)  # nothing of it is wanted any more


# -- the past ------------------------------------------------------------------------------------


def save_storage(programs: Path, target: Path) -> None:
    """A copy of etcd as it is now. The API is away for a moment."""
    with _storage_at_rest(programs):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(_ETCD_DATA, target)


def restore_storage(programs: Path, source: Path) -> None:
    """Everything written since `save_storage` is forgotten. As etcd's guide has it, revisions are
    bumped, or else whoever watches would wait for ever for those it has already seen."""
    etcdutl, database = build.etcdutl(), source / "member" / "snap" / "db"
    if not database.exists():
        raise ClusterError(f"nothing was saved in {source}")
    peer = f"http://127.0.0.1:{ETCD_PORT + 1}"
    with _storage_at_rest(programs):
        shutil.rmtree(_ETCD_DATA)
        run(etcdutl, "snapshot", "restore", database, *RESTORE, f"--data-dir={_ETCD_DATA}",
            "--name=holdfast", f"--initial-cluster=holdfast={peer}",
            f"--initial-advertise-peer-urls={peer}")  # fmt: skip


@contextmanager
def _storage_at_rest(programs: Path) -> Iterator[None]:
    try:
        processes.stop("apiserver", signal.SIGKILL)
        processes.stop("etcd")
        yield
    finally:
        start_etcd(programs)
        start_api(programs)
        await_api(programs)
