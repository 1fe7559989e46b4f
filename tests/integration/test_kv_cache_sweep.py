"""One sweep over caches: variants of a pruned model whose weights are made once, and
their records."""

from pathlib import Path

import pandas as pd
import pytest

from evaluator.store.cells import Cells
from tests.support.runs import finish, records, resurface

pytestmark = [pytest.mark.slow, pytest.mark.more]
SWEEP = """
models: {dense: bundled}
prune: [{method: magnitude, sparsity: 0.5}]
kv_cache: [fp8]
tasks:
  - task: gazetteer
    languages: [english]
    items: 2
    probes: [greedy, fidelity]
engine: {kind: torch}
controls: none
resources: {engines: 1}
"""
VARIANTS = ["dense-kv-fp8", "magnitude-0.5-kv-fp8"]


def test_cache_variants_share_weights(tmp_path: Path) -> None:
    """Each has records, rows in tables and a verdict."""
    file, run = tmp_path / "sweep.yaml", tmp_path / "run"
    file.write_text(SWEEP, encoding="utf-8")
    finish("sweep", file, "--out", run)
    first = records(run)
    about = first.groupby("checkpoint")[
        ["base", "method", "pattern", "kv_cache"]
    ].first()
    assert list(about.index) == ["dense", *VARIANTS]
    assert about.loc["dense", "kv_cache"] == "auto"
    assert about.loc["dense"].drop("kv_cache").isna().all()
    assert list(about.loc["dense-kv-fp8"]) == ["dense", "kv_cache", "kv fp8", "fp8"]
    assert list(about.loc["magnitude-0.5-kv-fp8"])[1:3] == [
        "magnitude + kv_cache",
        "unstructured + kv fp8",
    ]
    assert first.groupby("checkpoint")["weights_digest"].first().nunique() == 2
    assert [each.name for each in (run / "checkpoints").iterdir()] == ["magnitude-0.5"]
    divergences = (
        first[first["probe"] == "fidelity"]
        .explode("kld")
        .groupby("checkpoint")["kld"]
        .max()
    )
    assert divergences["dense"] < 1e-6 < 1e-5 < divergences["dense-kv-fp8"]
    fates = pd.read_csv(run / "tables" / "fates.csv")
    assert set(fates["checkpoint"]) == set(VARIANTS)
    assert not fates["re_run"].any()  # the weights are the base's, the cache is not
    caches = {cell.checkpoint: cell.origin["kv_cache"] for cell in Cells(run)}
    assert {name: caches[name] for name in VARIANTS} == dict.fromkeys(VARIANTS, "fp8")
    gate = resurface("gate", run)
    assert all(name in gate.stdout for name in VARIANTS)
    file.write_text(f"{SWEEP}\nseed: 7\n", encoding="utf-8")
    other = resurface("sweep", file, "--out", run)
    # what is pruned was made under the other seed; the base is evaluated beside it
    assert other.returncode == 3
    told = " ".join(other.stdout.split())
    assert "dense, task gazetteer: task.settings.seed is 0 there, 7 here" in told
