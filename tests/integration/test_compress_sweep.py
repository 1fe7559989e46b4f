"""One sweep over pruning and quantising: one table, resumed, and records that are
alike the second time."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml

from evaluator.checkpoints.quantisation import ONLINE_SCHEMES
from tests.support.engines import needs_vllm
from tests.support.runs import finish, records

pytestmark = needs_vllm
TASK = {
    "task": "gazetteer",
    "languages": ["english"],
    "items": 4,
    "probes": ["greedy", "choice"],
}
SWEEP = {
    "models": {"dense": "bundled"},
    "prune": [{"method": "wanda", "sparsity": 0.5}],
    "compress": [
        {"method": "rtn", "scheme": "FP8_DYNAMIC", "after": "wanda-0.5"},
        {"method": "online", "scheme": "fp8_per_channel"},
    ],
    "calibration": {"source": "gazetteer", "samples": 8, "sequence_length": 128},
    "tasks": [TASK],
    "engine": {"dtype": "bfloat16"},
}
NAMES = ["dense", "online-fp8_per_channel", "wanda-0.5", "wanda-0.5-rtn-fp8_dynamic"]


def sweep(folder: Path, **changes: object) -> Path:
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump(SWEEP | changes), encoding="utf-8")
    return file


@pytest.mark.more
def test_all_compressions_share_one_table(tmp_path: Path) -> None:
    """Dense, pruned, quantised and both."""
    run = tmp_path / "run"
    done = finish("sweep", sweep(tmp_path), "--out", run)
    assert (
        "wanda-0.5-rtn-fp8_dynamic: FP8 (rtn, per channel), computed in bfloat16 by "
        in done.stdout
    )
    first = records(run)
    columns = first.groupby("checkpoint")[
        ["base", "method", "pattern", "sparsity", "calibration"]
    ].first()
    assert list(columns.index) == NAMES
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
    table = pd.read_csv(run / "tables" / "accuracy.csv")
    assert set(table["checkpoint"]) == set(NAMES)
    assert set(
        table.loc[table["checkpoint"] == "wanda-0.5-rtn-fp8_dynamic", "pattern"]
    ) == {both[2]}


@pytest.mark.long
def test_half_done_job_is_repeated(tmp_path: Path) -> None:
    """A checkpoint that was not finished; and one by its path, in a run of its own."""
    rtn = {"method": "rtn", "scheme": "FP8_DYNAMIC", "after": ["dense", "wanda-0.5"]}
    file, run = sweep(tmp_path, compress=[rtn]), tmp_path / "run"
    finish("sweep", file, "--out", run)
    first = records(run)
    shutil.rmtree(run / "checkpoints" / "wanda-0.5-rtn-fp8_dynamic")
    shutil.rmtree(run / "records" / "wanda-0.5-rtn-fp8_dynamic")
    kept = (run / "checkpoints" / "rtn-fp8_dynamic" / "quantise_manifest.json").stat()
    finish("sweep", file, "--out", run)
    pd.testing.assert_frame_equal(records(run), first)
    assert (
        run / "checkpoints" / "rtn-fp8_dynamic" / "quantise_manifest.json"
    ).stat() == kept
    given = tmp_path / "given"
    asked = (
        "--task",
        "gazetteer",
        "--languages",
        "english",
        "--items",
        "4",
        "--probes",
        "greedy,choice",
    )
    finish(
        "eval",
        run / "checkpoints" / "rtn-fp8_dynamic",
        *asked,
        "--dtype",
        "bfloat16",
        "--out",
        given,
    )
    ours = (
        first[first["checkpoint"] == "rtn-fp8_dynamic"]
        .reset_index(drop=True)
        .drop(columns="base")
    )
    pd.testing.assert_frame_equal(records(given).drop(columns="base"), ours)


@pytest.mark.long
def test_unservable_dtype_is_refused_first(tmp_path: Path) -> None:
    """vLLM's online schemes want bfloat16."""
    online = {"method": "online", "scheme": "fp8_per_channel"}
    file = sweep(tmp_path, compress=[online], engine={"dtype": "float32"})
    done = finish("sweep", file, "--out", tmp_path / "run", code=2)
    assert done.stderr.startswith(
        "error: compress: online-fp8_per_channel: FP8 (online, per channel) in"
        " float32: "
    )
    assert done.stderr.count("\n") == 1
    assert "; set --dtype bfloat16 (engine.dtype in a sweep file)" in done.stderr
    assert not (tmp_path / "run").exists()


def test_vllm_knows_the_online_schemes() -> None:
    from vllm.config.quantization import ONLINE_QUANT_SHORTHAND_NAMES

    assert set(ONLINE_SCHEMES) <= set(ONLINE_QUANT_SHORTHAND_NAMES)
