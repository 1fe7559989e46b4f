"""A run exported as lm-eval's files, and read back."""

import json
import shutil
from datetime import UTC, datetime

import pytest

from evaluator.deciding.comparison import compare, side_of_logged, side_of_run
from evaluator.report import read_inputs
from evaluator.store.lm_eval import export, read_logged
from tests.support.sweeps import refused
from tests.support.synthetic import write_run

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(
        tmp_path_factory.mktemp("export") / "run",
        8,
        ("dense", "wanda-0.6"),
        languages=("english",),
    )


def test_run_equals_its_export(run, tmp_path):
    files = export(run, tmp_path, now=NOW)
    assert [file.relative_to(tmp_path).as_posix() for file in files[:3]] == [
        "dense/samples_gazetteer_open_2026-01-02T03-04-05.jsonl",
        "dense/samples_gazetteer_choice_2026-01-02T03-04-05.jsonl",
        "dense/results_2026-01-02T03-04-05.json",
    ]
    opened = [json.loads(line) for line in files[0].read_text().splitlines()]
    assert set(opened[0]) == {
        *(
            "doc_id",
            "doc",
            "target",
            "arguments",
            "resps",
            "filtered_resps",
            "filter",
            "metrics",
        ),
        *("doc_hash", "prompt_hash", "target_hash", "contains", "exact_match", "f1"),
    }
    choice = json.loads(files[1].read_text().splitlines()[0])
    assert list(choice["arguments"]) == [f"gen_args_{number}" for number in range(4)]
    logprob, _ = choice["filtered_resps"][int(choice["target"])]
    assert float(logprob) < 0
    assert choice["acc"] in (0.0, 1.0)
    results = json.loads(files[2].read_text())
    # of 8 items the first is excluded, and the engine failed on the second's greedy
    # answer
    assert results["n-samples"]["gazetteer_open"] == {"original": 8, "effective": 6}
    assert results["n-samples"]["gazetteer_choice"] == {"original": 8, "effective": 7}
    share = sum(row["contains"] for row in opened) / 6
    assert results["results"]["gazetteer_open"]["contains,none"] == pytest.approx(share)
    assert results["config"]["model_args"]["dtype"] == "float32"
    export(run, tmp_path, now=NOW)
    found = compare(
        side_of_run(read_inputs(run), "run"),
        side_of_logged(read_logged(tmp_path), "export"),
    )
    assert set(found.frame["verdict"]) == {"same"}
    assert set(found.frame["measure"]) == {"open", "exact_match", "choice"}
    assert set(found.frame["checkpoint"]) == {"dense", "wanda-0.6"}
    assert found.frame[["alone_a", "alone_b"]].to_numpy().sum() == 0


def test_normalised_choice_is_by_characters(tmp_path):
    """By bytes, which are three a character here and one in English, another option
    may win."""
    run = write_run(tmp_path / "run", 8, ("wanda-0.6",), languages=("bengali",))
    _, choice, _ = export(run, tmp_path / "out", now=NOW)
    for line in choice.read_text().splitlines():
        sample = json.loads(line)
        texts = [
            each["arg_1"].removeprefix(" ") for each in sample["arguments"].values()
        ]
        normed = [
            float(value) / len(text)
            for (value, _), text in zip(sample["filtered_resps"], texts, strict=True)
        ]
        assert sample["acc_norm"] == (
            normed.index(max(normed)) == int(sample["target"])
        )
    shutil.rmtree(run / "items")
    assert "run: has no items/" in refused(export, run, tmp_path / "again")
