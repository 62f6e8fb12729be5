"""Certificates of agents, made here, and of who is none."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Contexts = Callable[..., ssl.SSLContext]


def _authority(folder: Path, name: str) -> None:
    subject = f"/CN={name}"
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    out = ["-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.crt", "-subj", subject]
    subprocess.run(["openssl", *command.split(), *out], check=True, capture_output=True)


def _certificate(folder: Path, authority: str, name: str, dns: str) -> None:
    extension = ["-addext", f"subjectAltName=DNS:{dns}", "-subj", f"/CN={dns}"]
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    signer = ["-CA", f"{folder}/{authority}.crt", "-CAkey", f"{folder}/{authority}.key"]
    basic = ["-addext", "basicConstraints=critical,CA:FALSE"]
    out = ["-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.crt"]
    subprocess.run(
        ["openssl", *command.split(), *signer, *extension, *basic, *out],
        check=True,
        capture_output=True,
    )


@pytest.fixture(scope="module")
def keys_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for authority in ("ours", "theirs"):
        _authority(folder, authority)
    _certificate(folder, "ours", "agent", "holdfast-node")
    _certificate(folder, "ours", "gateway", "holdfast-gateway")
    _certificate(folder, "theirs", "stranger", "holdfast-node")
    return folder


@pytest.fixture
def tls(keys_folder: Path) -> Contexts:
    def context(purpose: ssl.Purpose, name: str | None = "agent") -> ssl.SSLContext:
        made = ssl.create_default_context(purpose, cafile=str(keys_folder / "ours.crt"))
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        made.verify_mode = ssl.CERT_REQUIRED
        if name is not None:
            made.load_cert_chain(keys_folder / f"{name}.crt", keys_folder / f"{name}.key")
        return made

    return context
