"""Certificates and kubeconfigs, made anew for each cluster."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.cluster.places import API_HOST, API_PORT, API_SERVICE, KUBECONFIG, NODES, PKI, node_address
from e2e.cluster.say import run

# Valid since then: a test sets a wall clock back by an hour.
_YESTERDAY = ("faketime", "-f", "-1d")
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def make() -> None:
    PKI.mkdir(parents=True, exist_ok=True)
    PKI.chmod(0o700)
    _authority("ca")
    _authority("front-proxy-ca")
    names = "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost"
    addresses = f"IP:127.0.0.1,IP:{API_SERVICE},IP:{API_HOST}"
    _sign("apiserver", "/CN=kube-apiserver", alternative=f"{names},{addresses}")
    _sign("admin", "/O=system:masters/CN=admin")
    _sign("controller-manager", "/CN=system:kube-controller-manager")
    _sign("scheduler", "/CN=system:kube-scheduler")
    _sign("proxy", "/CN=system:kube-proxy")
    _sign("apiserver-kubelet", "/O=system:masters/CN=kube-apiserver-kubelet-client")
    _sign("front-proxy-client", "/CN=front-proxy-client", by="front-proxy-ca")
    for node in NODES:
        _sign(
            f"kubelet-{node}",
            f"/O=system:nodes/CN=system:node:{node}",
            alternative=f"DNS:{node},IP:{node_address(node)}",
        )
    run("openssl", "genrsa", "-out", PKI / "sa.key", "2048")
    run("openssl", "rsa", "-in", PKI / "sa.key", "-pubout", "-out", PKI / "sa.pub")
    users = ["controller-manager", "scheduler", "proxy", *(f"kubelet-{node}" for node in NODES)]
    for user in users:
        # Nodes see the folder at the same place: see node.sh.
        kubeconfig(PKI / f"{user}.conf", user)
    kubeconfig(KUBECONFIG, "admin")


def _authority(name: str) -> None:
    # With the extensions that RFC 5280 asks for: Python 3.13 refuses an authority without.
    run(*_YESTERDAY, "openssl", "req", "-x509", *_KEY, "-days", "30",
        "-subj", f"/CN=holdfast {name}",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
        "-keyout", PKI / f"{name}.key", "-out", PKI / f"{name}.crt")  # fmt: skip


def _sign(name: str, subject: str, alternative: str = "", by: str = "ca") -> None:
    extensions = (
        "basicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\n"
        "keyUsage=digitalSignature,keyEncipherment\n"
        "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
    )
    if alternative:
        extensions += f"subjectAltName={alternative}\n"
    (PKI / f"{name}.ext").write_text(extensions)
    run("openssl", "req", *_KEY, "-subj", subject,
        "-keyout", PKI / f"{name}.key", "-out", PKI / f"{name}.csr")  # fmt: skip
    run(*_YESTERDAY, "openssl", "x509", "-req", "-in", PKI / f"{name}.csr",
        "-CA", PKI / f"{by}.crt", "-CAkey", PKI / f"{by}.key", "-CAcreateserial", "-days", "30",
        "-extfile", PKI / f"{name}.ext", "-out", PKI / f"{name}.crt")  # fmt: skip


def kubeconfig(path: Path, user: str) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "holdfast",
                "cluster": {
                    "server": f"https://{API_HOST}:{API_PORT}",
                    "certificate-authority": str(PKI / "ca.crt"),
                },
            }
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate": str(PKI / f"{user}.crt"),
                    "client-key": str(PKI / f"{user}.key"),
                },
            }
        ],
        "contexts": [{"name": "holdfast", "context": {"cluster": "holdfast", "user": user}}],
        "current-context": "holdfast",
    }
    path.write_text(json.dumps(body, indent=2))
    path.chmod(0o600)
