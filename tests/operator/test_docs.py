"""docs/operator.md knows every step, condition, reason, event, metric and setting; invents none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from holdfast_operator import metrics, steps
from holdfast_operator.conditions import Reason, Type
from holdfast_operator.events import Said
from holdfast_operator.model import Cause

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operator.md").read_text()


def section(title: str) -> str:
    return next(part for part in re.split(r"^## ", PAGE, flags=re.M) if part.startswith(title))


def named(title: str) -> set[str]:
    return set(re.findall(r"`([A-Z]\w+)`", section(title)))


def test_steps() -> None:
    assert named("Steps") == {step.__name__ for step in get_args(steps.Step)}


def test_conditions_and_reasons() -> None:
    assert named("Conditions") == {kind.value for kind in Type} | {
        reason.value for reason in Reason
    }
    assert {cause.value for cause in Cause} <= {reason.value for reason in Reason}


def test_events() -> None:
    assert named("Events") == {said.value for said in Said}


def test_metrics() -> None:
    exposed = set()
    for family in metrics.REGISTRY.collect():
        exposed.add(family.name + ("_total" if family.type == "counter" else ""))
    assert set(re.findall(r"`(holdfast_\w+)`", section("Metrics"))) == exposed


def test_settings() -> None:
    source = (ROOT / "operator/holdfast_operator/settings.py").read_text()
    assert named("Settings") - {"KUBECONFIG"} == set(re.findall(r'"(HOLDFAST_\w+)"', source))


@pytest.mark.parametrize("link", re.findall(r"\]\(\.\./([^)]+)\)", PAGE))
def test_links(link: str) -> None:
    assert (ROOT / link).exists()


def test_every_module_has_its_place() -> None:
    modules = {path.name for path in (ROOT / "operator/holdfast_operator").glob("*.py")}
    told = set(re.findall(r"holdfast_operator/(\w+\.py)", PAGE))
    plain = {"__init__.py", "__main__.py", "contact.py", "log.py", "metrics.py", "names.py"}
    assert modules - told == plain | {"serve.py", "settings.py"}
