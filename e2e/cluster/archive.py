"""Image archives as `ctr images import` reads them, made without any container engine."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Image:
    name: str
    command: Sequence[str] = ()
    entrypoint: Sequence[str] = ()
    user: str = ""


def layer_of(files: Mapping[str, tuple[bytes, int]], target: Path) -> None:
    """A layer with these files (content and mode), by absolute path; `b"-> x"` is a link to x."""
    with tarfile.open(target, "w") as layer:
        folders: set[str] = set()
        for path, (content, mode) in files.items():
            name = path.lstrip("/")
            parts = name.split("/")[:-1]
            for depth in range(1, len(parts) + 1):
                folder = "/".join(parts[:depth])
                if folder not in folders:
                    folders.add(folder)
                    entry = tarfile.TarInfo(folder)
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                    layer.addfile(entry)
            entry = tarfile.TarInfo(name)
            entry.mode = mode
            if content.startswith(b"-> "):
                entry.type, entry.linkname = tarfile.SYMTYPE, content[3:].decode()
                layer.addfile(entry)
            else:
                entry.size = len(content)
                layer.addfile(entry, io.BytesIO(content))


def write(image: Image, layer: Path, target: Path) -> None:
    with layer.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Cmd": list(image.command),
                "Entrypoint": list(image.entrypoint),
                "User": image.user,
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created_by": "holdfast e2e"}],
        }
    ).encode()
    name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = [{"Config": name, "RepoTags": [image.name], "Layers": [f"{digest}/layer.tar"]}]
    with tarfile.open(target, "w") as archive:
        for path, text in ((name, config), ("manifest.json", json.dumps(manifest).encode())):
            entry = tarfile.TarInfo(path)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
        archive.add(layer, f"{digest}/layer.tar")
