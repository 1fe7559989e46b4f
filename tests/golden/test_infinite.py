"""Infinite numbers are written and shown: a probability of 0 is a result, as a crash
is not."""

import json
import math

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from evaluator.core.errors import json_text
from evaluator.metrics import TABLES, Inputs, columns, reduce_records
from evaluator.metrics.tables.fidelity import percentiles
from evaluator.report import write_report
from evaluator.report.figures import draw
from tests.support.records import Seen, records
from tests.support.runs import resurface
from tests.support.synthetic import write_run
from tests.support.tables import has

ENDLESS = pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan])


def test_json_has_words_for_infinity():
    told = {"a": [math.inf, -math.inf, {"b": math.nan}], "c": "Infinity", "d": 1.5}
    text = json_text(told, indent=1)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": ["Infinity", "-Infinity", {"b": None}], "c": "Infinity", "d": 1.5
    }  # fmt: skip
    assert float(json.loads(text)["a"][1]) == -math.inf


@pytest.mark.parametrize(
    "kind",
    [columns.RATIO, columns.FACTOR, columns.NATS, columns.RANK, columns.PERCENTAGE],
)
def test_a_kind_shows_infinity(kind):
    assert kind.shown(-math.inf, unit=False) == f"{columns.MINUS}inf"
    assert kind.shown(math.inf, unit=False).removeprefix("+") == "inf"


@ENDLESS
def test_a_run_with_impossible_answers(tmp_path, value):
    """Log-probabilities and margins of half of the records: tables, page, gate.json
    and `--json` have a value."""
    run = write_run(
        tmp_path / "run", 30, ("dense", "wanda-0.6"), languages=("english",)
    )
    for part in run.glob("records/*/*/*.parquet"):
        rows, schema = pq.read_table(part).to_pandas(), pq.read_schema(part)
        for name in ("logprob", "margin"):
            measured = rows.index[rows[name].notna()]
            rows.loc[measured[::2], name] = value
        pq.write_table(
            schema.empty_table().from_pandas(rows, schema=schema, preserve_index=False),
            part,
        )
    page = write_report(run).page.read_text(encoding="utf-8")
    assert "chunk-0" in page
    rank = pd.read_csv(run / "tables" / "rank.csv")
    assert (np.isinf(rank["margin_median"]).any()) == math.isinf(value)
    assert resurface("gate", run).returncode in (0, 4)
    strict = {"parse_constant": pytest.fail}
    json.loads((run / "gate.json").read_text(), **strict)
    compared = resurface("compare", run, run, "--json")
    assert json.loads(compared.stdout, **strict)["rows"], compared.stderr


@pytest.mark.parametrize("impossible", ["small", "dense", "both"])
def test_perplexity_of_an_impossible_text(impossible):
    """A window of probability 0 makes the perplexity infinite. A ratio of two
    infinite ones is null, with a reason."""
    possible = {f"text/{n}": Seen(window=(-9.0 - n, 2)) for n in range(6)}
    never = possible | {"text/0": Seen(window=(-math.inf, 2))}
    parts = [
        records("dense", possible if impossible == "small" else never, task="book"),
        records(
            "small",
            possible if impossible == "dense" else never,
            base="dense",
            task="book",
        ),
    ]
    frame = TABLES["perplexity"].fill(Inputs(reduce_records(pd.concat(parts)))).frame
    row = frame[frame["checkpoint"] == "small"].iloc[0]
    expected = {"small": math.inf, "dense": 0.0, "both": math.nan}[impossible]
    has(row, perplexity_ratio=pytest.approx(expected, nan_ok=True))
    assert row["perplexity"] == math.inf or impossible == "dense"
    assert pd.isna(row["perplexity_ratio_low"])
    assert "without an interval" in row["reason"]
    assert "\u221e" in draw(TABLES["perplexity"], frame)


def test_percentiles_beside_an_infinite_divergence():
    found = percentiles(np.array([0.0, 1.0, 2.0, math.inf, math.inf]))
    has(found, kld_p50=2.0, kld_p90=math.inf, kld_max=math.inf)
