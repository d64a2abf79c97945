"""docs/faults.md keeps its word: every fault is in its table, and every test that it names is there."""
import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROWS = re.findall(r"^\| (F\d\d) \|(.*)\|$", (TESTS.parent / "docs" / "faults.md").read_text(encoding="utf-8"), re.M)


@cache
def functions_in(name: str) -> set[str]:
    path = TESTS / name
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_every_fault_is_in_the_table_once():
    assert [fault for fault, _ in ROWS] == [f"F{number:02}" for number in range(1, 54)]


def test_every_fault_names_tests_and_all_of_them_exist():
    named = {fault: re.findall(r"`([\w/]+\.py)::(test_\w+)`", row.split("|")[-1]) for fault, row in ROWS}
    assert [fault for fault, tests in named.items() if not tests] == []
    assert [f"{fault}: {file}::{name}" for fault, tests in named.items() for file, name in tests if name not in functions_in(file)] == []
