"""A cluster as the client sees it: the sidecars are real, only the API is files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from client_kit import Home, eventually

FAKE = Path(__file__).parent / "fake_kubectl.py"


class FakeCluster:
    """The files of `fake_kubectl.py`, and the command line that is told to use it."""

    def __init__(self, folder: Path, home: Home) -> None:
        self.folder = folder
        self._home = home
        self.kubectl = folder / "kubectl"
        self.kubectl.write_text(f"#!{sys.executable} -S\n{FAKE.read_text()}")
        self.plugin = folder / "kubectl-holdfast"
        self.plugin.write_text(
            f"#!{sys.executable} -P\nimport sys\nfrom holdfast.cli import main\nsys.exit(main())\n"
        )
        for program in (self.kubectl, self.plugin):
            program.chmod(0o755)
        self.env = {"HOLDFAST_KUBECTL": str(self.kubectl), "FAKE_CLUSTER": str(folder)}
        self._save({
            "sessions": [], "events": [], "pods": {}, "fails": {}, "ends": True, "user": "ana@x",
        })  # fmt: skip

    @property
    def body(self) -> dict[str, Any]:
        read: dict[str, Any] = json.loads((self.folder / "cluster.json").read_text())
        return read

    def _save(self, body: dict[str, Any]) -> None:
        draft = self.folder / "mine"
        draft.write_text(json.dumps(body))
        draft.rename(self.folder / "cluster.json")

    def set(self, **parts: Any) -> None:
        self._save(self.body | parts)

    def session(self, name: str, namespace: str = "default", **status: Any) -> None:
        others = [one for one in self.body["sessions"] if one["metadata"]["name"] != name]
        made = {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"command": ["bash"]},
            "status": status,
        }
        self.set(sessions=[*others, made])

    def pod(self, name: str, session: str) -> None:
        path = str(self._home.folder(session).sidecar_socket)
        self.set(pods=self.body["pods"] | {name: path})

    def calls(self, verb: str) -> list[dict[str, Any]]:
        log = self.folder / "calls.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        return [call for call in map(json.loads, lines) if call["words"][0] == verb]

    def kill_relay(self, pod: str) -> None:
        file = self.folder / f"{pod}.pid"
        pid = int(eventually(lambda: file.exists() and file.read_text(), "the relay"))
        os.kill(pid, signal.SIGKILL)

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        first, *rest = arguments
        return self._home.run(first, "--cluster", *rest, stdin=b"", **(self.env | env))

    def as_typed(self, *arguments: str) -> str:
        """Without --cluster."""
        return self._home.ok(*arguments, stdin=b"", **self.env)

    def ok(self, *arguments: str, stdin: bytes = b"") -> str:
        first, *rest = arguments
        return self._home.ok(first, "--cluster", *rest, stdin=stdin, **self.env)
