"""What tests may start, which devices they see, and that the table of
tests/gpu/README.md names tests that exist."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest
import torch

from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from tests.gpu.visit import steps
from tests.support.devices import FOLDER, hides_gpus
from tests.support.guard import StartedError
from tests.support.models import save_tiny_model

ON_V2 = ("both_runners", "only_v2", r"pytest\.mark\.runners")


def test_fast_tests_build_no_engine(tmp_path: Path) -> None:
    with pytest.raises(
        StartedError,
        match="a vLLM engine was started by a test that is not marked slow",
    ):
        VLLMEngine(EngineConfig()).load(save_tiny_model(tmp_path / "tiny"))


def test_only_gpu_runs_see_gpus() -> None:
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert torch.cuda.device_count() == 0
    all_tests, gpu_tests = (
        [FOLDER.parent],
        [FOLDER / "test_engine_gpu.py", FOLDER / "test_prune_cuda.py"],
    )
    assert all(
        hides_gpus(each, all_tests)
        for each in ("", "not slow", "not gpu", "gpu or slow")
    )
    assert hides_gpus("", [FOLDER, FOLDER.parent / "unit"])
    assert hides_gpus("", [])
    assert not any(
        (
            hides_gpus("gpu", all_tests),
            hides_gpus("", [FOLDER]),
            hides_gpus("", gpu_tests),
        )
    )


def test_proofs_name_tests_that_run() -> None:
    homes: dict[str, str] = {}
    for text in (
        path.read_text(encoding="utf-8") for path in FOLDER.parent.rglob("test_*.py")
    ):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                homes[node.name] = homes.get(node.name, "") + text
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    on_a_gpu = {name for name, text in homes.items() if "pytest.mark.gpu," in text}
    on_a_gpu |= {step.name for step in steps(FOLDER, FOLDER, gpu=True)}
    lines = page[page.index("| ability |") :].partition("\n\n")[0].splitlines()[2:]
    assert len(lines) > 20
    for line in lines:
        ability, v1, v2, cuda = [
            cell.strip(" `") for cell in line.strip("|").split("|")
        ]
        assert {v1, v2} - {"not run"} <= homes.keys(), ability
        named = set(re.findall("`(.*?)`", f"`{cuda}`"))
        assert (cuda == "not run") == (named & on_a_gpu == set()), ability
        assert named - on_a_gpu <= {"not run"}, ability
        # a file of both runners, of V2, or one that starts V2 by itself
        if v2 != "not run":
            assert re.search("|".join((*ON_V2, r"v2\.environment")), homes[v2]), (
                ability,
                v2,
            )
        if v1 != "not run":
            assert "pytestmark = only_v2" not in homes[v1], (ability, v1)
