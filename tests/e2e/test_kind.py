"""The kind path, against an engine that only writes down what it is asked."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from e2e.cluster import __main__ as cluster
from e2e.cluster import build, faults, kind, processes
from e2e.cluster.places import CACHE
from e2e.cluster.running import record, running
from e2e.cluster.say import ClusterError

NODE = "holdfast-worker"
CONTROL = "docker exec holdfast-control-plane"
READYZ = "get --raw /readyz"


class Engine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def answers(self, name: str, *lines: str) -> None:
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines))

    def calls(self) -> list[str]:
        """Since the last time."""
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("docker", "podman", "kind", "kubectl"):
        shutil.copy(Path(__file__).with_name("engine.sh"), programs / name)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(tmp_path))
    monkeypatch.delenv("HOLDFAST_CLUSTER", raising=False)
    archives = [tmp_path / "debian.image", tmp_path / "busybox.image"]
    monkeypatch.setattr(build, "session_images", lambda: archives)
    monkeypatch.setattr(build, "etcdutl", lambda: tmp_path / "etcdutl")
    CACHE.mkdir(parents=True, exist_ok=True)
    return Engine(tmp_path)


@pytest.fixture
def up(engine: Engine, state: Path) -> Engine:
    """A cluster that is up, nothing asked of it yet."""
    record(kind.Kind("docker"))
    (state / "bin").mkdir()
    shutil.copy(engine.folder / "bin" / "kubectl", state / "bin" / "kubectl")
    return engine


def index(calls: list[str], *words: str) -> int:
    """Where the one call with all these words is."""
    found = [n for n, call in enumerate(calls) if all(word in call for word in words)]
    assert len(found) == 1, (words, calls)
    return found[0]


# -- up and down ----------------------------------------------------------------------------------


def test_up_makes_loads_and_waits_in_that_order(engine: Engine, state: Path) -> None:
    cluster.up()
    calls = engine.calls()
    order = [
        index(calls, "docker build", str(build.HOLDFAST)),
        index(calls, "docker save -o"),
        index(calls, "kind create cluster --name holdfast --image kindest/node:v1.34.0@sha256:"),
        index(calls, "docker cp holdfast-control-plane:/usr/bin/kubectl"),
        index(calls, "kind load image-archive --name holdfast", "debian.image", "busybox.image"),
        index(calls, "kubectl", "wait --for=condition=Ready"),
        index(calls, "kubectl", "rollout status", "coredns"),
    ]
    assert order == sorted(order)
    assert f"--kubeconfig {state}/kubeconfig" in calls[order[2]]
    assert "--nodes holdfast-worker,holdfast-worker2" in calls[order[4]]
    assert calls[order[4]].endswith("holdfast.docker.tar")
    assert running().nodes == ("holdfast-worker", "holdfast-worker2")
    assert float((state / "up_seconds").read_text()) >= 0


def test_workers_see_the_shared_folder_where_this_machine_has_it(
    engine: Engine, state: Path
) -> None:
    cluster.up()
    config = json.loads((engine.folder / "config").read_text())
    shared = {"hostPath": f"{state}/shared", "containerPath": f"{state}/shared"}
    assert [node["role"] for node in config["nodes"]] == ["control-plane", "worker", "worker"]
    assert [node.get("extraMounts") for node in config["nodes"]] == [None, [shared], [shared]]
    assert stat.S_IMODE((state / "shared").stat().st_mode) == 0o777
    patch = json.loads(config["kubeadmConfigPatches"][0])
    assert patch["controllerManager"]["extraArgs"]["leader-elect"] == "false"
    assert patch["scheduler"]["extraArgs"]["leader-elect"] == "false"


def test_up_again_leaves_a_healthy_one_alone(up: Engine) -> None:
    cluster.up()
    calls = up.calls()
    assert not [call for call in calls if call.startswith("kind ")]


def test_a_test_run_takes_a_new_one(up: Engine, state: Path) -> None:
    (state / "old").touch()
    cluster.up(os.getpid())
    calls = up.calls()
    assert index(calls, "kind delete cluster") < index(calls, "kind create cluster")
    assert not (state / "old").exists()
    cluster.down()


def test_a_run_killed_with_its_group_takes_its_cluster_along(engine: Engine, state: Path) -> None:
    """The real guard and a real kill -9."""
    run = subprocess.Popen(["sleep", "60"], start_new_session=True)
    cluster.up(run.pid)
    guard = processes.pid_of("guard")
    assert guard is not None
    assert running().nodes == kind.WORKERS, "or the guard would end something real"
    engine.calls()
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    assert processes.gone(guard, 30.0)
    assert engine.calls()[-1].startswith("kind delete cluster --name holdfast")
    assert not state.exists()


def test_down_removes_it_and_leaves_the_user_s_kubeconfig(up: Engine, state: Path) -> None:
    cluster.down()
    assert up.calls() == [
        "docker unpause holdfast-worker",
        "docker unpause holdfast-worker2",
        f"kind delete cluster --name holdfast --kubeconfig {state}/kubeconfig",
    ]
    assert not state.exists()
    cluster.down()
    assert up.calls() == []


def test_a_down_that_fails_keeps_the_record(up: Engine, state: Path) -> None:
    up.answers("fail", "kind delete*")
    with pytest.raises(ClusterError, match="told to fail"):
        cluster.down()
    assert state.exists()
    (up.folder / "fail").unlink()
    cluster.down()
    assert not state.exists()


def test_somebody_else_s_cluster_of_that_name_is_not_touched(
    engine: Engine, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "containers", lambda _engine: ["holdfast-worker"])
    with pytest.raises(ClusterError, match="not recorded here"):
        cluster.up()
    cluster.down()
    assert not [call for call in engine.calls() if call.startswith("kind ")]


def test_without_kind_it_says_how_to_get_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (engine.folder / "bin" / "kind").unlink()
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "kind" else found(name))
    with pytest.raises(ClusterError, match=r"go install sigs\.k8s\.io/kind@v0"):
        cluster.up()


def test_which_engine(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kind.engine() == "docker"
    engine.answers("fail", "docker info*")
    assert kind.engine() == "podman"
    monkeypatch.setenv("HOLDFAST_CLUSTER", "namespaces")
    assert kind.engine() is None


def test_asked_for_kind_and_no_engine(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.answers("fail", "* info *")
    monkeypatch.setenv("HOLDFAST_CLUSTER", "kind")
    with pytest.raises(ClusterError, match="neither Docker nor Podman"):
        cluster.up()


# -- faults ---------------------------------------------------------------------------------------

MANIFESTS = "/etc/kubernetes/manifests"
PARKED = "/etc/kubernetes/holdfast-parked"
PARK_API = [
    f"{CONTROL} mkdir -p {PARKED}",
    f"{CONTROL} mv {MANIFESTS}/kube-apiserver.yaml {PARKED}/kube-apiserver.yaml",
]


def unpark(name: str) -> str:
    parked = f"/etc/kubernetes/holdfast-parked/{name}.yaml"
    return (
        f"{CONTROL} sh -c test ! -e {parked} || mv {parked} /etc/kubernetes/manifests/{name}.yaml"
    )


def test_the_api_is_killed_until_its_sandbox_is_gone(up: Engine) -> None:
    # The kubelet starts it once more before it notices that the manifest is gone.
    up.answers("containers", "first", "second", "")
    up.answers("sandboxes", "sandbox", "sandbox", "")
    with faults.api_down():
        calls = up.calls()
        assert calls[:2] == PARK_API
        stops = [call for call in calls if " crictl stop " in call]
        assert stops == [
            f"{CONTROL} crictl stop --timeout 0 {name}" for name in ("first", "second")
        ]
        assert " crictl pods " in calls[-1]
    calls = up.calls()
    assert calls[0] == unpark("kube-apiserver")
    assert READYZ in calls[1]


def test_a_container_that_is_gone_when_it_is_stopped_is_no_failure(up: Engine) -> None:
    up.answers("containers", "gone")
    up.answers("fail", "*crictl stop*")
    with faults.api_down():
        pass
    assert unpark("kube-apiserver") in up.calls()


def test_an_api_half_killed_is_started_again(up: Engine) -> None:
    up.answers("fail", "*crictl pods*")
    with pytest.raises(ClusterError, match="told to fail"), faults.api_down():
        pytest.fail("it is not down")
    calls = up.calls()
    assert calls[-2] == unpark("kube-apiserver")
    assert READYZ in calls[-1]


REACH = "ip daddr 172.18.0.4 tcp dport 6443 drop"
ANSWER = "ip saddr 172.18.0.4 tcp sport 6443 drop"


@pytest.mark.parametrize(
    ("fault", "chains"),
    [
        (
            faults.cut_from_api,
            {"output": REACH, "input": ANSWER, "forward": f"{REACH}; {ANSWER}"},
        ),
        (faults.no_answers_from_api, {"input": ANSWER, "forward": ANSWER}),
        (faults.cut_from_clients, {"input": "tcp dport 10250 drop"}),
    ],
)
def test_a_cut_is_a_table_in_the_node_s_network(
    up: Engine, fault: Callable[[str], AbstractContextManager[None]], chains: dict[str, str]
) -> None:
    rules = up.folder / "rules"
    nft = f"docker exec --interactive {NODE} nft -f -"
    expected = "".join(
        f"chain {hook} {{ type filter hook {hook} priority -300; {rule}; }}\n"
        for hook, rule in chains.items()
    )
    with fault(NODE):
        assert up.calls()[-1] == nft
        assert rules.read_text() == f"table inet holdfast_cut {{\n{expected}}}"
        rules.unlink()
    assert up.calls() == [nft]
    assert rules.read_text() == "table inet holdfast_cut\ndelete table inet holdfast_cut"


@pytest.mark.parametrize(
    ("fault", "done", "undone"),
    [
        (faults.paused, [f"docker pause {NODE}"], [f"docker unpause {NODE}"]),
        (faults.node_down, [f"docker kill --signal KILL {NODE}"], [f"docker start {NODE}"]),
    ],
)
def test_a_node_fault_and_its_end(
    up: Engine,
    fault: Callable[[str], AbstractContextManager[None]],
    done: list[str],
    undone: list[str],
) -> None:
    with fault(NODE):
        assert up.calls() == done
    assert up.calls() == undone


FAULTS: dict[str, tuple[Callable[[], AbstractContextManager[None]], str]] = {
    "api_down": (faults.api_down, READYZ),
    "cut_from_api": (lambda: faults.cut_from_api(NODE), "nft -f -"),
    "no_answers_from_api": (lambda: faults.no_answers_from_api(NODE), "nft -f -"),
    "cut_from_clients": (lambda: faults.cut_from_clients(NODE), "nft -f -"),
    "paused": (lambda: faults.paused(NODE), "docker unpause"),
    "node_down": (lambda: faults.node_down(NODE), "docker start"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_everything_is_undone_when_the_body_raises(up: Engine, name: str) -> None:
    fault, last = FAULTS[name]

    def body() -> None:
        with fault():
            up.calls()
            raise RuntimeError("the test failed")

    with pytest.raises(RuntimeError, match="the test failed"):
        body()
    calls = up.calls()
    assert last in calls[-1], calls


def test_a_reboot_keeps_the_disk(up: Engine) -> None:
    faults.reboot(NODE)
    assert up.calls() == [f"docker kill --signal KILL {NODE}", f"docker start {NODE}"]


def test_storage_is_saved_and_put_back_at_rest(up: Engine) -> None:
    faults.save_storage("before")
    calls = up.calls()
    copy = index(calls, "cp -a /var/lib/etcd /var/lib/holdfast-saved/before")
    assert index(calls, "mv", "manifests/kube-apiserver.yaml /etc") < index(
        calls, "mv", "manifests/etcd.yaml /etc"
    )
    assert index(calls, "crictl pods", "^etcd-") < copy
    assert calls.index(unpark("etcd")) > copy
    assert calls.index(unpark("kube-apiserver")) == calls.index(unpark("etcd")) + 1
    assert READYZ in calls[-1]

    faults.restore_storage("before")
    calls = up.calls()
    gone = index(calls, "rm -rf /var/lib/etcd")
    database = "/var/lib/holdfast-saved/before/member/snap/db"
    assert calls[0] == f"{CONTROL} test -e {database}"
    copied = f"/etcdutl {kind.CONTROL}:/var/lib/holdfast-saved.etcdutl"
    assert index(calls, "docker cp", copied) < gone
    assert index(calls, "crictl pods", "^etcd-") < gone
    restore = calls[gone + 1]
    assert f" /var/lib/holdfast-saved.etcdutl snapshot restore {database} " in restore
    assert "--name=holdfast-control-plane" in restore
    assert "--initial-cluster=holdfast-control-plane=https://172.18.0.4:2380" in restore
    assert calls.index(unpark("etcd")) == gone + 2
    assert READYZ in calls[-1]


def test_what_was_never_saved_does_not_cost_what_is_there(up: Engine) -> None:
    up.answers("fail", "* test -e /var/lib/holdfast-saved*")
    with pytest.raises(ClusterError, match="told to fail"):
        faults.restore_storage("never")
    assert len(up.calls()) == 1


def test_a_restore_that_fails_brings_the_api_back(up: Engine) -> None:
    up.answers("fail", "*snapshot restore*")
    with pytest.raises(ClusterError, match="told to fail"):
        faults.restore_storage("before")
    assert READYZ in up.calls()[-1]


def test_a_program_in_a_node(up: Engine) -> None:
    faults.in_node(NODE, "cat", Path("/etc/hostname"))
    assert up.calls() == [f"docker exec {NODE} cat /etc/hostname"]
