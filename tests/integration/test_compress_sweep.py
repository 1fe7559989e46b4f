"""One sweep over pruning and quantising: one table."""

from pathlib import Path

import pandas as pd
import pytest

from tests.support.engines import needs_vllm
from tests.support.runs import finish, records

pytestmark = needs_vllm
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
CONTROLS = [f"{name}~order" for name in NAMES if "fp8" in name]  # by default


@pytest.mark.more
def test_all_compressions_share_one_table(tmp_path: Path) -> None:
    """Dense, pruned, quantised and both; the noise of quantised activations has its
    own."""
    file, run = tmp_path / "sweep.yaml", tmp_path / "run"
    file.write_text(SWEEP, encoding="utf-8")
    done = finish("sweep", file, "--out", run)
    assert (
        "wanda-0.5-rtn-fp8_dynamic: FP8 (rtn, per channel), computed in bfloat16 by "
        in done.stdout
    )
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
