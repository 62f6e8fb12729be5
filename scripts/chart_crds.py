"""Makes the chart's copy of the CRDs from crds/, or with --check says whether it is up to date.

Helm never upgrades what lies in a chart's own crds/ folder, so the copy is made of templates; and
since helm deletes templates on uninstall, and with a CRD every Session, each asks to be kept.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "crds"
TARGET = ROOT / "charts" / "holdfast" / "templates" / "crds"

HEAD = """\
{{- /* Made by scripts/chart_crds.py from crds/NAME. Change that file, not this one. */ -}}
{{- if .Values.crds.install }}
"""
METADATA = """\
metadata:
  annotations:
    helm.sh/resource-policy: keep
  labels:
    {{- include "holdfast.labels" . | nindent 4 }}
"""
TAIL = "{{- end }}\n"


def chart_copy(name: str, text: str) -> str:
    """The template for one CRD file."""
    body = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    if "{{" in body:
        raise ValueError(f"{name} contains {{{{, which helm would take for a template")
    if body.count("\nmetadata:\n") != 1:
        raise ValueError(f"{name} must have exactly one top-level metadata")
    body = body.replace("\nmetadata:\n", "\n" + METADATA, 1)
    return HEAD.replace("NAME", name) + body + TAIL


def wanted() -> dict[Path, str]:
    return {
        TARGET / path.name: chart_copy(path.name, path.read_text())
        for path in sorted(SOURCE.glob("*.yaml"))
    }


def differences(files: dict[Path, str]) -> str:
    """What would change, as a unified diff; a file that should not be there is all removed."""
    found = {path: path.read_text() for path in sorted(TARGET.glob("*.yaml"))}
    return "".join(
        line
        for path in sorted(found.keys() | files.keys())
        for line in difflib.unified_diff(
            found.get(path, "").splitlines(keepends=True),
            files.get(path, "").splitlines(keepends=True),
            f"{path.relative_to(ROOT)} as it is",
            f"{path.relative_to(ROOT)} as crds/ has it",
        )
    )


def write(files: dict[Path, str]) -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    for path in TARGET.glob("*.yaml"):
        if path not in files:
            path.unlink()
    for path, text in files.items():
        path.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if it differs")
    files = wanted()
    if not parser.parse_args().check:
        write(files)
        return 0
    diff = differences(files)
    if diff:
        print(diff + "The chart's CRDs are not those of crds/: run scripts/chart_crds.py")
    return 1 if diff else 0


if __name__ == "__main__":
    sys.exit(main())
