"""One sweep over pruning and quantising: one table."""

from pathlib import Path

import pandas as pd
import pytest
import yaml

from tests.support.engines import needs_vllm
from tests.support.models import save_tiny_model
from tests.support.quantised import compressed_tensors, integers, quantise
from tests.support.runs import finish, records

pytestmark = [*needs_vllm, pytest.mark.more]
SWEEP = """
models: {dense: bundled}
prune: [{method: wanda, sparsity: 0.5}]
compress:
  - {method: rtn, scheme: FP8_DYNAMIC, after: wanda-0.5}
  - {method: online, scheme: fp8_per_channel}
calibration: {source: gazetteer, samples: 8, sequence_length: 128}
tasks:
  - {task: gazetteer, languages: [english], items: 4, probes: [greedy, choice]}
engine: {dtype: bfloat16}
"""
NAMES = ["dense", "online-fp8_per_channel", "wanda-0.5", "wanda-0.5-rtn-fp8_dynamic"]
CONTROLS = [f"{name}~order" for name in NAMES]  # by default, in bfloat16


@pytest.mark.long  # FP8 on a CPU takes a quarter of an hour
def test_all_compressions_share_one_table(tmp_path: Path) -> None:
    """Dense, pruned, quantised and both; the noise of quantised activations has its
    own."""
    file, run = tmp_path / "sweep.yaml", tmp_path / "run"
    file.write_text(SWEEP, encoding="utf-8")
    finish("sweep", file, "--out", run)
    first = records(run)
    columns = first.groupby("checkpoint")[
        ["base", "method", "pattern", "sparsity", "calibration"]
    ].first()
    assert list(columns.index) == sorted([*NAMES, *CONTROLS])
    assert columns.loc["dense"].isna().all()
    fp8 = "FP8 (rtn, per channel)"
    both = ["dense", "wanda + rtn", f"unstructured + {fp8}", 0.5, "gazetteer"]
    assert list(columns.loc["wanda-0.5-rtn-fp8_dynamic"]) == both
    assert list(columns.loc["online-fp8_per_channel"])[:3] == [
        "dense",
        "online",
        "FP8 (online, per channel)",
    ]
    assert first.groupby("checkpoint")["weights_digest"].first().nunique() == len(NAMES)
    noise = pd.read_csv(run / "tables" / "noise.csv")
    assert set(noise["checkpoint"]) == set(CONTROLS)
    assert set(noise["n"]) == {4}
    table = pd.read_csv(run / "tables" / "accuracy.csv")
    assert set(table["checkpoint"]) == set(NAMES)
    assert set(
        table.loc[table["checkpoint"] == "wanda-0.5-rtn-fp8_dynamic", "pattern"]
    ) == {both[2]}


def test_refused_checkpoint_fails_alone(tmp_path: Path) -> None:
    """vLLM refuses it at its load: one line, and the rest of the run goes on."""
    dense = save_tiny_model(tmp_path / "dense", "qwen3_untied", dtype="bfloat16")
    three_bits = compressed_tensors("pack-quantized", integers(3, "group", group=32))
    quantise(dense, tmp_path / "odd", "w4a16", config=three_bits)
    document = {
        "models": {"dense": str(dense)},
        "compress": [{"checkpoint": str(tmp_path / "odd"), "label": "odd"}],
        "tasks": yaml.safe_load(SWEEP)["tasks"],
        "controls": "none",
        "engine": {"dtype": "bfloat16"},
        "resources": {"attempts": 1},
    }
    file, run = tmp_path / "sweep.yaml", tmp_path / "run"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    done = finish("sweep", file, "--out", run, code=3)
    assert done.stderr.count("\n") == 1
    failures = pd.read_csv(run / "tables" / "failures.csv").set_index("checkpoint")
    assert failures["stage"].to_dict() == {"odd": "load"}
    reason = failures["reason"]["odd"]
    assert "odd: W3A16 (group 32): vLLM could not start an engine" in reason
    assert "\n" not in reason
    found = records(run)
    assert set(found["checkpoint"]) == {"dense"}
    assert set(found["status"]) == {"ok"}
