"""Keys, certificates and the real OpenSSH client, for tests of the gateway's SSH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import asyncssh

from client_kit import Screen
from gateway_kit import Place, until

HOST: Final = "127.0.0.1"
_PROGRAM: Final = shutil.which("ssh") or "ssh"
# Nothing of who runs the tests: no configuration, no agent, no keys of his.
_OPTIONS: Final = (
    "-F", "none",
    "-o", "BatchMode=yes",
    "-o", "IdentitiesOnly=yes",
    "-o", "IdentityAgent=none",
    "-o", "StrictHostKeyChecking=yes",
    "-o", "LogLevel=ERROR",
)  # fmt: skip


def new_key(path: Path) -> asyncssh.SSHKey:
    """With its two files, as ssh-keygen leaves them."""
    key = asyncssh.generate_private_key("ssh-ed25519", comment=path.name)
    path.touch(mode=0o600)
    key.write_private_key(path)
    key.write_public_key(path.with_suffix(".pub"))
    return key


def public(key: asyncssh.SSHKey) -> str:
    return key.export_public_key().decode().strip()


def sign(
    authority: asyncssh.SSHKey, path: Path, principals: list[str], valid_before: str | int = "+1h"
) -> None:
    """A certificate of the key at `path`, where ssh looks for it."""
    certificate = authority.generate_user_certificate(
        asyncssh.read_public_key(path.with_suffix(".pub")),
        "test",
        principals=principals,
        valid_after=0,
        valid_before=valid_before,
    )
    certificate.write_certificate(path.with_name(path.name + "-cert.pub"))


class Ssh:
    """The way in to a gateway that serves SSH, for whoever has a key."""

    def __init__(self, folder: Path, port: int, host_key: str, host: str = HOST) -> None:
        self.folder, self.port, self.host, self.host_key = folder, port, host, host_key
        self.known = folder / f"known_hosts-{host}-{port}"
        self.known.write_text(f"[{host}]:{port} {host_key}\n")

    def at(self, session: str) -> str:
        return f"{session}@{self.host}"

    def command(self, who: str, *arguments: str) -> list[str]:
        return [
            _PROGRAM,
            *_OPTIONS,
            "-o",
            f"UserKnownHostsFile={self.known}",
            "-i",
            str(self.folder / who),
            "-p",
            str(self.port),
            *arguments,
        ]

    def run(
        self, who: str, *arguments: str, stdin: bytes = b"", **environment: str
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self.command(who, *arguments),
            input=stdin,
            capture_output=True,
            timeout=60,
            check=False,
            env={**os.environ, **environment},
        )

    def terminal(
        self, who: str, session: str, size: tuple[int, int] = (90, 25), term: str = "xterm"
    ) -> Screen:
        return Screen(
            self.command(who, "-tt", self.at(session)), {**os.environ, "TERM": term}, size
        )


def served(place: Place, folder: Path, *arguments: str) -> Ssh:
    """Starts the place's gateway with SSH, for the keys of the file `keys` in `folder`."""
    said = re.compile(r'listening_ssh host="127.0.0.1" port=(\d+)')
    again = (place.state / "gateway.log").exists()
    before = len(said.findall(place.log())) if again else 0
    place.start("--ssh-port", "0", "--ssh-keys", str(folder / "keys"), *arguments)
    found = until(lambda: said.findall(place.log())[before:], "the gateway to serve SSH")
    host_key = asyncssh.read_private_key(place.state / "ssh_host_key")
    return Ssh(folder, int(found[-1]), public(host_key))


def rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
