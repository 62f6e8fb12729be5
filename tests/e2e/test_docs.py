"""docs/faults.md says which test provokes what: it must be true."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from e2e.cluster.build import KUBERNETES
from e2e.cluster.kind import NODE_IMAGE, VERSION, Kind
from e2e.cluster.namespaces import Namespaces

REPOSITORY = Path(__file__).resolve().parents[2]
CLUSTER = REPOSITORY / "docs" / "cluster.md"
FAULTS = REPOSITORY / "docs" / "faults.md"
GATEWAY = REPOSITORY / "docs" / "gateway.md"
SECURITY = REPOSITORY / "docs" / "security.md"
TESTS = REPOSITORY / "e2e" / "test_faults.py"
DONE = {*range(1, 38), 40}  # provoked in full


def rows(page: Path = FAULTS) -> dict[int, str]:
    """What provokes it, by number."""
    found: dict[int, str] = {}
    for line in page.read_text().splitlines():
        if match := re.match(r"\| (\d{1,2}) \|", line):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == 4, line
            assert int(match[1]) not in found, f"{match[1]} is there twice"
            found[int(match[1])] = cells[3]
    return found


def all_tests(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            yield node


def marks(test: ast.FunctionDef | ast.AsyncFunctionDef, kind: str) -> Iterator[int]:
    """The numbers that it is marked with."""
    for mark in test.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == f"pytest.mark.{kind}":
            yield from (int(ast.literal_eval(number)) for number in mark.args)


def marked() -> Iterator[tuple[int, str]]:
    for test in all_tests(TESTS):
        yield from ((number, test.name) for number in marks(test, "faults"))


def attacks() -> dict[int, str]:
    """What tries it, by number."""
    return rows(GATEWAY) | rows(SECURITY)


def test_every_fault_has_a_row() -> None:
    assert list(rows()) == list(range(1, 41))


def test_every_test_on_the_cluster_is_in_the_row_of_its_fault() -> None:
    found = list(marked())
    assert len(found) >= 15, "is this still how they are marked?"
    for number, name in found:
        assert f"`{name}`" in rows()[number], f"{name} provokes {number}"


def test_every_test_in_a_row_is_there() -> None:
    on_cluster = set(marked())
    for number, text in rows().items():
        path = TESTS
        for word in re.findall(r"`([^`]+)`", text):
            if word.startswith(("tests/", "e2e/")):
                path = REPOSITORY / word
                continue
            assert word in {test.name for test in all_tests(path)}, f"{number}: {word} in {path}"
            if path == TESTS:
                assert (number, word) in on_cluster, f"{word} is not marked with {number}"


def test_what_is_not_there_yet_says_so() -> None:
    for number, text in rows().items():
        assert "`test_" in text or text.startswith("not yet: "), number
        assert (number not in DONE) == ("ot yet" in text), number


def named_in(text: str) -> Iterator[tuple[str, str]]:
    """File and name of each test that a row names."""
    path = ""
    for word in re.findall(r"`([^`]+)`", text):
        if word.startswith(("tests/", "e2e/")):
            path = word
        else:
            assert path, f"{word} has no file before it"
            yield path, word


def test_every_attack_has_a_row_and_its_tests_are_there() -> None:
    assert list(rows(GATEWAY)) == list(range(1, 17))
    for number, text in attacks().items():
        named = list(named_in(text))
        assert named, f"{number} names no test"
        for path, name in named:
            assert name in {test.name for test in all_tests(REPOSITORY / path)}, (number, name)


def test_every_attack_on_a_cluster_is_in_its_row() -> None:
    named = {number: set(named_in(text)) for number, text in attacks().items()}
    found = 0
    for path in sorted((REPOSITORY / "e2e").glob("test_*.py")):
        for test in all_tests(path):
            for number in marks(test, "attacks"):
                found += 1
                place = path.relative_to(REPOSITORY).as_posix()
                assert (place, test.name) in named.get(number, ()), f"{test.name} makes {number}"
    assert found >= 20, "is this still how they are marked?"


def test_every_way_to_break_it_is_told() -> None:
    text = CLUSTER.read_text()
    contexts = [
        node.name
        for node in ast.parse((REPOSITORY / "e2e" / "cluster" / "faults.py").read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]
    assert len(contexts) > 5
    for name in contexts:
        assert f"`{name}(" in text, name


def test_the_ways_to_make_it_are_told_as_they_are() -> None:
    text = CLUSTER.read_text()
    for cluster in (Namespaces(), Kind("docker")):
        for tool in cluster.tools():
            assert re.search(rf"\b{tool}\b", text, re.IGNORECASE), tool
        for node in cluster.nodes:
            assert f"`{node}`" in text
    minor = KUBERNETES.rpartition(".")[0]
    assert KUBERNETES.removeprefix("v") in text
    assert NODE_IMAGE.startswith(f"kindest/node:{minor}."), "both of one minor version"
    assert f"kind.sigs.k8s.io) {VERSION.rpartition('.')[0]}" in text
