"""The reference page knows every command and every option, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.arguments import CLUSTER_OPTIONS, parser_for
from holdfast.completion import flags
from holdfast.specs import COMMANDS, DETACH_KEYS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text()


def section(command: str) -> str:
    parts = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    return next(p for p in parts if command in p.split("\n", 1)[0].split(", "))


@pytest.mark.parametrize("command", COMMANDS)
def test_documented(command: str) -> None:
    text = section(command)
    for action in flags(command):
        for option in action.option_strings:
            if option in CLUSTER_OPTIONS and (option, command) != ("-n", "run"):
                assert f"`{option}" in section("In a cluster")
                continue
            assert option in ("-h", "--help") or f"`{option}" in text, f"{command} {option}"


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_invented(command: str) -> None:
    known = {option for action in flags(command) for option in action.option_strings}
    for row in re.findall(r"^\| (`-.*?) \|", section(command), flags=re.MULTILINE):
        for option in re.findall(r"(?<!\S)`(--?[a-z-]+)", row):
            assert option in known, f"{command} {option}"


def test_headings_are_commands() -> None:
    headings = re.findall(r"^## ([a-z, ]+)$", PAGE, flags=re.MULTILINE)
    assert {name for heading in headings for name in heading.split(", ")} == set(COMMANDS)


def test_the_detach_keys_are_the_documented_ones() -> None:
    decision = (ROOT / "docs" / "decisions" / "0003-detach-key.md").read_text()
    assert DETACH_KEYS == "ctrl-\\,d"
    assert "`ctrl-\\` then `d`" in decision
    assert f"`{DETACH_KEYS}`" in section("attach")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches(command: str) -> None:
    text = parser_for("kubectl holdfast", command).format_help()
    assert text.startswith(f"usage: kubectl holdfast {command}")
    if command != "version":
        assert f"  kubectl holdfast {command}" in text or "source <(kubectl holdfast" in text
    assert "{prog}" not in text
