"""Wrong manifests: each is refused with a message that says what to change, or ends in a condition
that does."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from e2e.lab import KubectlError, Lab, Session, until

WRONG = Path(__file__).parent / "wrong"
FILES = sorted(WRONG.glob("*.yaml"))
CHANGES = sorted((WRONG / "changes").glob("*.yaml"))


def expectation(path: Path) -> tuple[str, str]:
    """`expect` or `condition`, and what the message has in it."""
    first = path.read_text().splitlines()[0].removeprefix("# ")
    kind, _, text = first.partition(": ")
    return kind, text


@pytest.mark.attacks(27)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_wrong_manifest(lab: Lab, path: Path) -> None:
    kind, text = expectation(path)
    if kind == "expect":
        with pytest.raises(KubectlError) as refused:
            lab.kubectl("create", "--validate=strict", "-f", str(path))
        assert text in refused.value.complaint
        return
    assert kind == "condition"
    condition, _, part = text.partition(" ")
    lab.kubectl("apply", "-f", str(path))
    session = Session(lab, yaml.safe_load(path.read_text())["metadata"]["name"])

    def said() -> bool:
        found = session.condition(condition)
        return found.get("status") == "False" and part in found["message"]

    until(said, f"condition {condition} says {part!r}", 30)


@pytest.mark.parametrize("path", CHANGES, ids=lambda path: path.stem)
def test_a_change_that_cannot_be_made(lab: Lab, path: Path) -> None:
    _, text = expectation(path)
    if path.stem.startswith("checkpoint"):
        # Admission refuses it before the schema is asked, whose rule tests/crds holds to its word.
        text = "only holdfast's operator writes checkpoints"
    with pytest.raises(KubectlError) as refused:
        lab.kubectl("apply", "-f", str(path))
    assert text in refused.value.complaint


def test_there_are_at_least_twenty(lab: Lab) -> None:
    assert len(FILES) >= 20
    lab.report["wrong_manifests_refused_count"] = len(FILES) + len(CHANGES)
