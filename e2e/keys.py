"""Keys of a test's own in the place of those that the chart's Job made."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from node_keys import Authority, keys_folder

if TYPE_CHECKING:
    from e2e.lab import Lab

NAMESPACE: Final = "holdfast-system"
SECRET: Final = "holdfast-keys"  # noqa: S105 - a name
BUNDLE: Final = "holdfast-node-ca"


def put_keys(
    lab: Lab, authorities: Iterable[Authority], wrapping: Mapping[str, bytes], current: str
) -> None:
    found = list(authorities)
    with tempfile.TemporaryDirectory() as folder:
        made = keys_folder(Path(folder), found, wrapping, current)
        data = {path.name: base64.b64encode(path.read_bytes()).decode() for path in made.iterdir()}
    whole: dict[str, Any] = {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": NAMESPACE},
        "data": data,
    }  # fmt: skip
    lab.apply(whole)
    bundle = "".join(one.pem.decode() for one in found)
    lab.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "data": {"ca-bundle.crt": bundle},
         "metadata": {"name": BUNDLE, "namespace": NAMESPACE}}
    )  # fmt: skip
