"""What is made once: programs, root file systems, images. Each lies in the cache under a name that
carries the hash of what it is made from, and appears there whole or not at all.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from e2e.cluster import archive
from e2e.cluster.archive import Image
from e2e.cluster.places import CACHE, HERE, REPOSITORY
from e2e.cluster.say import ClusterError, run, run_counting

KUBERNETES: Final = "v1.34.4"  # the newest whose kubelet still starts on cgroup v1 unasked
_KUBERNETES_PROGRAMS: Final = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
)
# Debian's testing suite is the first with a CRIU that restores on current kernels.
_NODE_SUITE: Final = "forky"
_NODE_PACKAGES: Final = (
    "containerd,runc,criu,python3,python3-pycriu,containernetworking-plugins,iptables,nftables,"
    "iproute2,conntrack,procps,kmod,util-linux,ca-certificates"
)
_BASE_SUITE: Final = "trixie"
# libfaketime for the test that sets a wall clock wrong.
_BASE_PACKAGES: Final = "python3,procps,iproute2,libfaketime"
_TOOLS_PACKAGES: Final = "python3,python3-venv,gcc,libc6-dev,make,ca-certificates"
_CRIU_PACKAGES: Final = "criu,python3-pycriu"
# What people have open when their node is drained.
_WORKBENCH_PACKAGES: Final = (
    "python3,procps,iproute2,vim-tiny,tmux,redis-server,nodejs,make,gcc,libc6-dev,strace"
)

_VENDOR: Final = "gateway/holdfast_gateway/web/vendor"
_KEPT: Final = 3  # checkouts that differ do not take each other's away

PAUSE: Final = "holdfast.test/pause:1"
COREDNS: Final = "holdfast.test/coredns:1"
DEBIAN: Final = "holdfast.test/debian:1"
BUSYBOX: Final = "holdfast.test/busybox:1"
MUSL: Final = "holdfast.test/musl:1"
STATIC: Final = "holdfast.test/static:1"
ENTRYPOINT: Final = "holdfast.test/entrypoint:1"
WORKBENCH: Final = "holdfast.test/workbench:1"
HOLDFAST: Final = "holdfast.test/holdfast:e2e"


def cached(name: str, inputs: Iterable[bytes | str | Path], make: Callable[[Path], None]) -> Path:
    """CACHE/name-HASH, made if it is not there, by one at a time; the newest of a name are kept."""
    digest = hashlib.sha256()
    for part in inputs:
        content = part.read_bytes() if isinstance(part, Path) else part
        digest.update(content if isinstance(content, bytes) else content.encode())
        digest.update(b"\0")
    path = CACHE / f"{name}-{digest.hexdigest()[:16]}"
    if path.exists():
        return path
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():  # made by another meanwhile
            return path
        new = path.with_name(f"{path.name}.new")
        _remove(new)
        make(new)
        made = CACHE.glob(f"{name}-" + "[0-9a-f]" * 16)
        for old in sorted(made, key=lambda old: old.stat().st_mtime)[: -_KEPT + 1]:
            _remove(old)
        new.rename(path)
    return path


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# -- programs -------------------------------------------------------------------------------------


def programs() -> Path:
    """A folder with every program of a Kubernetes node and its control plane."""
    source = HERE / "src"
    locked = [source / part / file for part in _GO for file in ("go.mod", "go.sum")]
    return cached("bin", [KUBERNETES, *locked], _build_programs)


_GO: Final = ("kubernetes", "etcd", "coredns")


def etcdutl() -> Path:
    """Only a test that restores a backup needs it."""
    source = HERE / "src" / "etcdutl"

    def make(target: Path) -> None:
        arguments = ["-ldflags", "-s -w", "-o", str(target), "go.etcd.io/etcd/etcdutl/v3"]
        _go("etcdutl", "building etcdutl", arguments)

    return cached("etcdutl", [source / "go.mod", source / "go.sum"], make)


def s3_server() -> Path:
    """The gateway of S3 to a folder; only the tests of a bucket need it."""
    source = HERE / "src" / "s3"

    def make(target: Path) -> None:
        program = "github.com/versity/versitygw/cmd/versitygw"
        _go("s3", "building an S3 server", ["-ldflags", "-s -w", "-o", str(target), program])

    return cached("s3", [source / name for name in ("go.mod", "go.sum")], make)


def _build_programs(target: Path) -> None:
    target.mkdir()
    number = KUBERNETES.removeprefix("v").split(".")
    component = "k8s.io/component-base/version"
    stamp = (
        f"-s -w -X {component}.gitVersion={KUBERNETES} -X {component}.gitMajor={number[0]}"
        f" -X {component}.gitMinor={number[1]}"
        f" -X k8s.io/client-go/pkg/version.gitVersion={KUBERNETES}"
    )
    commands = [f"k8s.io/kubernetes/cmd/{name}" for name in _KUBERNETES_PROGRAMS]
    _go("kubernetes", f"building Kubernetes {KUBERNETES} (once; 10 minutes on two cores)",
        ["-ldflags", stamp, "-o", f"{target}/", *commands])  # fmt: skip
    _go("etcd", "building etcd",
        ["-ldflags", "-s -w", "-o", f"{target}/etcd", "go.etcd.io/etcd/server/v3"])  # fmt: skip
    _go("coredns", "building CoreDNS",
        ["-ldflags", "-s -w", "-o", f"{target}/coredns", "github.com/coredns/coredns"])  # fmt: skip


def _go(module: str, what: str, arguments: list[str]) -> None:
    # -v prints a line for each package: that is the progress shown.
    command = ["go", "build", "-v", "-trimpath", "-mod=readonly", *arguments]
    env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": ""}
    run_counting(what, command, CACHE / "log" / f"{module}.log", HERE / "src" / module, env)


# -- root file systems ----------------------------------------------------------------------------


def node_root() -> Path:
    return cached("node-root", [_NODE_SUITE, _NODE_PACKAGES],
                  lambda new: _debian(_NODE_SUITE, _NODE_PACKAGES, new))  # fmt: skip


def _debian(suite: str, packages: str, target: Path) -> None:
    command: list[str | Path] = [
        "mmdebstrap",
        "--variant=minbase",
        # A testing suite's mirror may be some days behind.
        "--aptopt=Acquire::Check-Valid-Until false",
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        f"--include={packages}",
        suite,
        target,
        *_mirror(),
    ]
    log = CACHE / "log" / f"{target.name}.log"
    run_counting(f"making a Debian {suite} root", command, log, CACHE, os.environ)


def _mirror() -> list[str]:
    """The one that apt uses on this machine; none: mmdebstrap's own choice."""
    sites = run("apt-get", "indextargets", "--format", "$(SITE)").split()
    return next(([site] for site in sites if site.endswith("/debian")), [])


# -- images ---------------------------------------------------------------------------------------


def base_layer() -> Path:
    """Debian with Python: the image under most tests, and under holdfast's own."""
    return _debian_layer("base", _BASE_PACKAGES)


def _debian_layer(name: str, packages: str, suite: str = _BASE_SUITE) -> Path:
    return cached(f"{name}.tar", [suite, packages], lambda new: _debian_tar(suite, packages, new))


def _debian_tar(suite: str, packages: str, target: Path) -> None:
    made = target.with_suffix(".tar")  # mmdebstrap goes by the name
    _debian(suite, packages, made)
    made.rename(target)


def _layer_image(name: str, image: Image, files: dict[str, tuple[bytes, int]]) -> Path:
    def make(target: Path) -> None:
        layer = target.with_suffix(".layer")
        archive.layer_of(files, layer)
        archive.write(image, layer, target)
        layer.unlink()

    inputs = [repr(image), *(part for path, (content, mode) in files.items()
                             for part in (path, content, str(mode)))]  # fmt: skip
    return cached(f"{name}.image", inputs, make)


def _compiled(source: str, *compiler: str) -> bytes:
    target = CACHE / f"{source}.{os.getpid()}"
    CACHE.mkdir(parents=True, exist_ok=True)
    run(*compiler, "-O2", "-Wall", "-Werror", "-o", target, HERE / "src" / source)
    content = target.read_bytes()
    target.unlink()
    return content


_PASSWD: Final = b"root:x:0:0:root:/root:/bin/sh\nvisitor:x:1234:1234::/home/visitor:/bin/sh\n"


def cluster_images(bin_folder: Path) -> list[Path]:
    """What a cluster itself needs and kind brings along."""
    pause = {"/pause": (_compiled("pause.c", "gcc", "-static"), 0o755)}
    coredns = {"/coredns": ((bin_folder / "coredns").read_bytes(), 0o755)}
    return [
        _layer_image("pause", Image(PAUSE, entrypoint=["/pause"]), pause),
        _layer_image("coredns", Image(COREDNS, entrypoint=["/coredns"]), coredns),
    ]


def session_images() -> list[Path]:
    """What the tests' sessions run in."""
    busybox = Path("/bin/busybox").read_bytes()  # busybox-static
    sh = {"/bin/busybox": (busybox, 0o755)} | {
        f"/bin/{name}": (b"-> busybox", 0o777)
        for name in ("sh", "ls", "cat", "echo", "sleep", "id", "date", "hostname", "ps", "stty")
    }
    static = {"/program": (_compiled("echo.c", "gcc", "-static"), 0o755)}
    # A program linked to musl alone, with its loader: what an Alpine image is, without its shell.
    loader = "/lib/ld-musl-x86_64.so.1"
    musl = {
        "/program": (_compiled("echo.c", "musl-gcc"), 0o755),
        loader: (Path(loader).resolve().read_bytes(), 0o755),
    }
    own = {**sh, "/etc/passwd": (_PASSWD, 0o644), "/start": (b"#!/bin/sh\nexec sleep 1d\n", 0o755)}
    return [
        _layer_image("busybox", Image(BUSYBOX, ["sh"]), sh),
        _layer_image("static", Image(STATIC, ["/program"]), static),
        _layer_image("musl", Image(MUSL, ["/program"]), musl),
        _layer_image("entrypoint", Image(ENTRYPOINT, ["ignored"], ["/start"], user="visitor"), own),
        debian_image(),
    ]


def debian_image() -> Path:
    layer = base_layer()
    image = Image(DEBIAN, ["bash"])
    return cached("debian.image", [layer.name, repr(image)],
                  lambda new: archive.write(image, layer, new))  # fmt: skip


def workbench_image() -> Path:
    """Large, and for few tests: loaded into the nodes by these alone (`Cluster.load`)."""
    layer = _debian_layer("workbench", _WORKBENCH_PACKAGES)
    source = HERE / "src" / "server"
    image = Image(WORKBENCH, ["bash"])

    def make(target: Path) -> None:
        server, whole = target.with_suffix(".server"), target.with_suffix(".layer")
        _go("server", "building a Go server", ["-ldflags", "-s -w", "-o", str(server), "."])
        shutil.copyfile(layer, whole)
        with tarfile.open(whole, "a") as opened:
            opened.add(server, "usr/local/bin/goserver")
        archive.write(image, whole, target)
        server.unlink()
        whole.unlink()

    inputs: list[str | Path] = [layer.name, repr(image), source / "go.mod", source / "main.go"]
    return cached("workbench.image", inputs, make)


def holdfast_image() -> Path:
    """The Containerfile itself, built by buildah on bases made here."""
    tracked = run("git", "-C", REPOSITORY, "ls-files", "--cached", "--others", "--exclude-standard",
                  "images", "wire", "sidecar", "kube", "operator", "node", "init", "client",
                  "gateway", "scripts/criu_bundle.py",
                  "pyproject.toml").splitlines()  # fmt: skip
    sources = [name for name in sorted(tracked) if (REPOSITORY / name).is_file()]
    inputs = [part for name in sources for part in (name, REPOSITORY / name)]
    return _image("holdfast", REPOSITORY, HOLDFAST, inputs)


def former(commit: str) -> Path:
    """The sources of a commit, with the page's terminal of this checkout."""

    def make(target: Path) -> None:
        target.mkdir()
        tar = target / "sources.tar"
        run("git", "-C", REPOSITORY, "archive", "--format=tar", "-o", tar, commit)
        run("tar", "-x", "-f", tar, "-C", target)
        tar.unlink()
        shutil.copytree(REPOSITORY / _VENDOR, target / _VENDOR)

    try:
        run("git", "-C", REPOSITORY, "cat-file", "-e", f"{commit}^{{commit}}")
    except ClusterError as error:
        raise ClusterError(
            f"commit {commit} is not in this clone; fetch the whole history "
            "(git fetch --unshallow, or fetch-depth: 0)"
        ) from error
    return cached("former", [commit], make)


def former_image(commit: str, name: str) -> Path:
    """holdfast's image as it was at that commit."""
    return _image("former", former(commit), name, [commit, name])


def _image(kind: str, source: Path, name: str, inputs: list[str | Path]) -> Path:
    bases = {
        "BASE": base_layer(),
        "TOOLS": _debian_layer("tools", _TOOLS_PACKAGES),
        "CRIU": _debian_layer("criu", _CRIU_PACKAGES, _NODE_SUITE),
    }
    bases["PAGE"] = bases["TOOLS"]  # `make setup` has fetched it
    names = [path.name for path in bases.values()]
    return cached(f"{kind}.image", [*names, *inputs],
                  lambda new: _buildah(bases, source, name, new))  # fmt: skip


def _buildah(bases: dict[str, Path], source: Path, image: str, target: Path) -> None:
    store = ["--root", str(CACHE / "buildah"), "--runroot", str(CACHE / "buildah-run"),
             "--storage-driver", "overlay"]  # fmt: skip
    arguments: list[str] = []
    for argument, layer in bases.items():
        name = f"localhost/holdfast-{argument.lower()}:{layer.name[-16:]}"
        if not run("buildah", *store, "images", "--quiet", "--filter", f"reference={name}"):
            _import_base(store, layer, name)
        arguments += ["--build-arg", f"{argument}={name}"]
    command = ["buildah", *store, "build", "--isolation=chroot", "--network=host", "--pull=never",
               "--layers", *arguments, *_trust(),
               "-f", str(source / "images" / "Containerfile"), "-t", image,
               str(source)]  # fmt: skip
    log = CACHE / "log" / "image.log"
    run_counting(f"building {image}", command, log, CACHE, os.environ)
    run("buildah", *store, "push", image, f"docker-archive:{target}:{image}")


def _import_base(store: list[str], base: Path, name: str) -> None:
    container = run("buildah", *store, "from", "scratch").strip()
    try:
        run("buildah", *store, "add", container, str(base), "/")
        run("buildah", *store, "commit", container, name)
    finally:
        run("buildah", *store, "rm", container)


def _trust() -> list[str]:
    """This machine's certificate bundle, where it has one of its own, for pip in the build."""
    bundle = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    if not bundle:
        return []
    return ["--volume", f"{bundle}:/run/ca.crt:ro", "--build-arg", "PIP_CERT=/run/ca.crt"]


def everything() -> tuple[Path, Path, list[Path]]:
    """Programs, a node's root, image archives."""
    made = programs()
    return made, node_root(), [*cluster_images(made), *session_images(), holdfast_image()]
