"""A run exported as lm-eval's files, and read back."""

import json
import shutil
from datetime import UTC, datetime

import pytest

from evaluator.deciding.comparison import compare, side_of_run
from evaluator.deciding.logged import side_of_logged
from evaluator.logs import read_logged
from evaluator.report import read_inputs
from evaluator.store.lm_eval import export
from tests.support.sweeps import refused
from tests.support.synthetic import write_run

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_run_equals_its_export(tmp_path):
    names, out = ("dense", "wanda-0.6"), tmp_path / "out"
    run = write_run(tmp_path / "run", 8, names, languages=("english",))
    files = export(run, out, now=NOW)
    assert [file.relative_to(out).as_posix() for file in files[:3]] == [
        "dense/samples_gazetteer_open_2026-01-02T03-04-05.jsonl",
        "dense/samples_gazetteer_choice_2026-01-02T03-04-05.jsonl",
        "dense/results_2026-01-02T03-04-05.json",
    ]
    answers, choice = lines_of(files[0]), lines_of(files[1])[0]
    fields = "doc_id doc target arguments resps filtered_resps filter metrics doc_hash"
    fields += " prompt_hash target_hash contains exact_match f1"
    assert set(answers[0]) == set(fields.split())
    assert list(choice["arguments"]) == [f"gen_args_{number}" for number in range(4)]
    logprob, _ = choice["filtered_resps"][int(choice["target"])]
    assert float(logprob) < 0
    assert choice["acc"] in (0.0, 1.0)
    results = json.loads(files[2].read_text())
    # of 8 items the first is excluded, and the engine failed on the second's greedy
    # answer
    sizes = results["n-samples"]
    assert sizes["gazetteer_open"] == {"original": 8, "effective": 6}
    assert sizes["gazetteer_choice"] == {"original": 8, "effective": 7}
    share = sum(row["contains"] for row in answers) / 6
    assert results["results"]["gazetteer_open"]["contains,none"] == pytest.approx(share)
    assert results["config"]["model_args"]["dtype"] == "float32"
    export(run, out, now=NOW)
    exported = side_of_logged(read_logged(out), "export")
    found = compare(side_of_run(read_inputs(run), "run"), exported).frame
    assert set(found["verdict"]) == {"same"}
    assert set(found["measure"]) == {"open", "exact_match", "choice"}
    assert set(found["checkpoint"]) == set(names)
    assert found[["alone_a", "alone_b"]].to_numpy().sum() == 0
    shutil.rmtree(run / "items")
    assert "run: has no items/" in refused(export, run, tmp_path / "again")


def test_normalised_choice_is_by_characters(tmp_path):
    """By bytes, which are three a character here and one in English, another option
    may win."""
    run = write_run(tmp_path / "run", 8, ("wanda-0.6",), languages=("bengali",))
    _, choice, _ = export(run, tmp_path / "out", now=NOW)
    for sample in lines_of(choice):
        normed = []
        for (value, _), asked in zip(
            sample["filtered_resps"], sample["arguments"].values(), strict=True
        ):
            normed.append(float(value) / len(asked["arg_1"].removeprefix(" ")))
        wins = normed.index(max(normed)) == int(sample["target"])
        assert sample["acc_norm"] == wins
