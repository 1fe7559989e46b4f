"""Infinite numbers are written and shown: a probability of 0 is a result, as a crash
is not."""

import json
import math

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from evaluator.metrics import TABLES
from evaluator.report import write_report
from evaluator.report.figures import draw_each
from tests.support.records import Seen, numbered, records
from tests.support.runs import resurface
from tests.support.synthetic import write_run
from tests.support.tables import assert_has, only, tables


@pytest.mark.more
def test_a_run_with_impossible_answers(tmp_path):
    """Log-probabilities and margins of half of the records, by language: tables, page,
    gate.json and `--json` have a value."""
    run = tmp_path / "run"
    values = {"english": math.nan, "korean": math.inf, "russian": -math.inf}
    write_run(run, 8, ("dense", "wanda-0.6"), languages=tuple(values))
    for part in run.glob("records/*/*.parquet"):
        rows, schema = pq.read_table(part).to_pandas(), pq.read_schema(part)
        for name in ("logprob", "margin"):
            measured = rows.index[rows[name].notna()]
            rows.loc[measured[::2], name] = values[rows["language"].iloc[0]]
        table = schema.empty_table().from_pandas(rows, schema, preserve_index=False)
        pq.write_table(table, part)
    assert resurface("gate", run).returncode in (0, 4)
    json.loads((run / "gate.json").read_text(), parse_constant=pytest.fail)
    compared = resurface("compare", run, run, "--json")
    assert json.loads(compared.stdout, parse_constant=pytest.fail)["rows"]
    assert "chunk-0" in write_report(run).page.read_text(encoding="utf-8")
    rank = pd.read_csv(run / "tables" / "rank.csv").set_index("language")
    infinite = np.isinf(rank["margin_median"]).groupby("language").any()
    assert infinite[[*values]].tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("own", "dense", "ratio"),
    [(True, False, math.inf), (False, True, 0.0), (True, True, None)],
)
def test_perplexity_of_an_impossible_text(own, dense, ratio):
    """A window of probability 0 makes the perplexity infinite. A ratio of two
    infinite ones is null, with a reason."""
    parts = []
    for name, base, impossible in (("dense", None, dense), ("p", "dense", own)):
        windows = [Seen(window=(-9.0 - n, 2)) for n in range(6)]
        if impossible:
            windows[0] = Seen(window=(-math.inf, 2))
        parts.append(records(name, numbered(text=windows), base=base, task="book"))
    frame = tables(*parts)["perplexity"]
    row = only(frame, checkpoint="p")
    assert_has(row, perplexity_ratio=ratio, perplexity_ratio_low=None)
    assert math.isinf(row["perplexity"]) == own
    assert "without an interval" in row["reason"]
    assert "\u221e" in draw_each(TABLES["perplexity"], frame)[0]
