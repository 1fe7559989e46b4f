"""The table of tests/gpu/README.md names tests that exist, and that run where it says."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
GPUS = TESTS / "gpu" / "README.md"
ON_V2 = ("both_runners", "only_v2", r"pytest\.mark\.runners")


def rows() -> list[list[str]]:
    text = GPUS.read_text(encoding="utf-8")
    table = text[text.index("| ability |") :].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table]


def test_every_cell_is_a_test_that_runs_there():
    homes: dict[str, str] = {}
    for text in (path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                homes[node.name] = homes.get(node.name, "") + text
    assert len(rows()) > 20
    for ability, v1, v2, cuda in rows():
        assert cuda == "not run", ability
        for cell in {v1, v2} - {"not run"}:
            assert cell in homes, (ability, cell)
        if v2 != "not run":  # a file of both runners, of V2, or one that starts V2 by itself
            assert re.search("|".join((*ON_V2, r"v2\.environment")), homes[v2]), (ability, v2)
        if v1 != "not run":
            assert "pytestmark = only_v2" not in homes[v1], (ability, v1)
