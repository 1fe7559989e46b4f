"""Whole runs with a quantised checkpoint beside its base, by the command line."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.support.engines import needs_vllm
from tests.support.models import save_tiny_model
from tests.support.quantised import quantise
from tests.support.runs import records, resurface

pytestmark = [*needs_vllm, pytest.mark.long]
ASKED = ("--task", "gazetteer", "--languages", "english", "--items", "2", "--probes", "greedy,choice")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "base", "qwen3_untied", dtype="bfloat16")


def test_base_and_quantised_checkpoint_run_in_one_dtype_and_say_how_it_was_made(base: Path, tmp_path: Path) -> None:
    small = quantise(base, tmp_path / "small", "fp8")
    (small / "recipe.yaml").write_text("quant_stage:\n  quant_modifiers:\n    QuantizationModifier: {}\n")
    run = tmp_path / "run"
    done = resurface("eval", base, small, "--base", base, "--dtype", "bfloat16", *ASKED, "--out", run)
    assert done.returncode == 0, done.stderr
    assert "small: FP8 (rtn, per channel), computed in bfloat16 by " in done.stdout
    kept = records(run)
    assert set(kept["status"]) <= {"ok", "truncated"}
    assert set(kept["dtype"]) == {"bfloat16"}
    columns = kept.groupby("checkpoint")[["base", "method", "pattern"]].first()
    assert list(columns.loc["small"]) == ["base", "rtn", "FP8 (rtn, per channel)"]
    assert columns.loc["base"].isna().all()
    accuracy = pd.read_csv(run / "tables" / "accuracy.csv")
    assert set(accuracy.loc[accuracy["checkpoint"] == "small", "pattern"]) == {"FP8 (rtn, per channel)"}


def test_what_no_engine_here_can_serve_leaves_nothing_behind(base: Path, tmp_path: Path) -> None:
    """Blocks of 64 columns are served by no processor."""
    small = quantise(base, tmp_path / "small", "fp8-block", config={"weight_block_size": [64, 64]})
    done = resurface("eval", base, small, "--base", base, "--dtype", "bfloat16", *ASKED, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: checkpoint {small}: ")
    assert done.stderr.count("\n") == 1
    assert " in bfloat16: " in done.stderr
    assert "; it needs " in done.stderr
    assert not (tmp_path / "run").exists()
