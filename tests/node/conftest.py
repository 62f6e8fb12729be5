"""Certificates of agents, made here, and of who is none."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from node_keys import PEM, Authority, context, private_pem

Contexts = Callable[..., ssl.SSLContext]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def keys_folder(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For processes of their own: node a's pair, and the CA."""
    folder = tmp_path_factory.mktemp("certificates")
    certificate, key = authority.node("a")
    (folder / "ours.crt").write_bytes(authority.pem)
    (folder / "agent.pem").write_bytes(certificate.public_bytes(PEM) + private_pem(key))
    return folder


@pytest.fixture
def tls(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    """`name`: the node's, or stranger (another CA's node a), gateway, two; None: nobody's."""
    folder = tmp_path_factory.mktemp("pairs")
    key = ec.generate_private_key(ec.SECP256R1())
    others = {
        "stranger": (Authority().issue(["a.node.holdfast.dev"], key), key),
        "gateway": (authority.issue(["holdfast-gateway"], key), key),
        "two": (authority.issue(["a.node.holdfast.dev", "b.node.holdfast.dev"], key), key),
    }

    def made(purpose: ssl.Purpose, name: str | None = "a") -> ssl.SSLContext:
        shown = None if name is None else others.get(name) or authority.node(name)
        return context(authority, purpose, shown, folder)

    return made
