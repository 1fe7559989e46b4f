"""The made-up run of the benchmark has what a report counts."""

import pandas as pd

from benchmarks.report import LANGUAGES, make_run, measure
from evaluator.report import write_report


def test_made_up_run_loses_answers(tmp_path):
    make_run(tmp_path, checkpoints=3, items=120)
    report = write_report(tmp_path)
    headline = report.results.headline.set_index("checkpoint")
    assert headline["n"].tolist() == [120] * 3
    assert headline["sample_recoverability"].notna().all()
    assert headline["mc_only_median_rank"].tolist()[1:] == [9.0, 9.0]
    open_, picked = headline["open_accuracy"], headline["choice_accuracy"]
    assert open_.is_monotonic_decreasing
    assert (picked >= open_).all()
    numbers = pd.read_parquet(tmp_path / "tables" / "numbers.parquet")
    assert {*LANGUAGES, "all"} <= {*numbers["language"]}


def test_processor_time_and_memory():
    row = measure(checkpoints=2, items=12)
    assert (row["checkpoints"], row["items"]) == (2, 12)
    assert row["cpu_s"] > 0.1
    assert row["gib"] > 0.05
