"""Each fault that was thought of has a test with its name: what must happen then is shown, not hoped for."""

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ROWS = (
    "kill -9 at any write",
    "two invocations on one batch",
    "disk full",
    "engine gone mid-run",
    "Ctrl-C",
    "orphans",
    "network pool",
    "gigabytes of output",
    "huge or binary diff",
    "hostile archive",
    "names",
    "secrets",
    "terminal",
    "report",
    "TOML bomb",
    "429 storm",
)


def start_of(row: str) -> str:
    """How the names of a row's tests begin."""
    words = row.lower().replace("-", " ").split()
    return "test_" + "_".join(words)


@cache
def names() -> frozenset[str]:
    """Every test function there is."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in TESTS.rglob("test_*.py")]
    return frozenset(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("row", ROWS)
def test_a_fault_has_tests_of_its_name(row: str) -> None:
    found = [name for name in names() if f"{name}_".startswith(f"{start_of(row)}_")]
    assert found
