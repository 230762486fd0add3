"""Goal: the table of docs/reliability.md can be believed: each test that it names is there, and `make test` runs it.

Method: the tests' sources, as text; nothing of them is run or imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ONLY_ELSEWHERE = "all_of_them"  # marks what `make netns-test` alone runs


def table() -> list[tuple[str, list[str]]]:
    """Each promise, and the tests that hold it."""
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    part = text[text.index("## Promised, and tested") : text.index("## How")]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return [(promise, re.findall(r"`(test_\w+)`", tests)) for promise, tests in rows[1:]]


@cache
def marks() -> dict[str, list[set[str]]]:
    """By a test's name, for each test of that name: what it, its class and its module are marked with as a whole."""
    found: dict[str, list[set[str]]] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        of_module = {mark for node in tree.body if isinstance(node, ast.Assign)
                     and ast.unparse(node.targets[0]) == "pytestmark" for mark in names_in(node.value)}
        for name, own in functions(tree.body):
            found.setdefault(name, []).append(own | of_module)
    return found


def functions(body: list[ast.stmt]) -> Iterator[tuple[str, set[str]]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            of_class = {mark for one in node.decorator_list for mark in names_in(one)}
            yield from ((name, own | of_class) for name, own in functions(node.body))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, {mark for one in node.decorator_list for mark in names_in(one)}


def names_in(decorator: ast.expr) -> set[str]:
    """`pytest.mark.slow` and `all_of_them` as such; what stands within a parametrize() is of one parameter only."""
    parts = decorator.elts if isinstance(decorator, ast.List) else [decorator]
    return {ast.unparse(one).removeprefix("pytest.mark.") for one in parts if not isinstance(one, ast.Call)}


def test_every_promise_names_tests_that_exist() -> None:
    assert len(table()) > 40
    for promise, tests in table():
        assert tests and not set(tests) - set(marks()), promise


def test_every_test_of_a_promise_is_in_the_quick_selection() -> None:
    slow = [name for _, tests in table() for name in tests if any("slow" in one for one in marks()[name])]
    assert not slow, f"`make test` would leave out what holds a promise: {slow}"


def test_every_promise_is_tested_by_make_test() -> None:
    """What needs hosts of its own is long, and left to `make netns-test`, but not the whole of a promise."""
    for promise, tests in table():
        assert any(ONLY_ELSEWHERE not in one for name in tests for one in marks()[name]), f"only elsewhere: {promise}"
