"""What goes into the image, by any builder."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_docker_and_buildah_see_the_same_files() -> None:
    ours, dockers = (REPOSITORY / name for name in (".containerignore", ".dockerignore"))
    assert ours.read_text() == dockers.read_text()
