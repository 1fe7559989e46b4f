"""Samples of several seeds: a finished run draws a new seed alone."""

from pathlib import Path

import pandas as pd
import pytest

from tests.support.runs import finish, records
from tests.support.tables import assert_has, only

pytestmark = [pytest.mark.slow, pytest.mark.more]
SWEEP = """
models: {dense: bundled}
tasks:
  - {task: gazetteer, languages: [english], items: 2, probes: [greedy, sample],
     temperature: 2, top_p: 1, seeds: [SEEDS]}
engine: {kind: torch}
"""


def test_run_draws_another_seed(tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "sweep.yaml"
    file.write_text(SWEEP.replace("SEEDS", "0"), encoding="utf-8")
    finish("sweep", file, "--out", run)
    before = records(run)
    file.write_text(SWEEP.replace("SEEDS", "0, 1"), encoding="utf-8")
    finish("sweep", file, "--out", run)
    after = records(run)
    of_first = after[after["seed"] == 0].reset_index(drop=True)
    pd.testing.assert_frame_equal(of_first, before)
    drawn = after[after["probe"] == "sample"]
    texts = [list(rows["text"]) for _, rows in drawn.groupby("seed")]
    assert [len(each) for each in texts] == [20, 20]
    assert texts[0] != texts[1]
    rates = drawn.groupby("seed")["contains"].mean()
    row = only(pd.read_csv(run / "tables" / "seeds.csv"), probe="pass@1")
    assert_has(row, seeds=2, n=2, rate=float(rates.mean()))
    assert_has(row, lowest=float(rates.min()), highest=float(rates.max()))
