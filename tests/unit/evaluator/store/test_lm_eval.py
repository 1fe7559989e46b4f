"""lm-eval's files, as version 0.4.13 writes them; a run exported as such files, and
read back."""

import json
import shutil
from datetime import UTC, datetime

import pytest

from evaluator.deciding.comparison import compare, side_of_logged, side_of_run
from evaluator.report import read_inputs
from evaluator.store.lm_eval import export, is_logged, read_logged
from tests.support.sweeps import refused
from tests.support.synthetic import write_run

# What is read of a line that lm-eval 0.4.13 writes for gsm8k, once for each of its two
# filters; texts shortened.
LINE = {
    "doc_id": 0,
    "doc": {"question": "Janet's ducks?", "answer": "#### 18"},
    "filtered_resps": ["18"],
    "filter": "strict-match",
    "metrics": ["exact_match"],
    "doc_hash": "a0",
    "prompt_hash": "b0",
    "exact_match": 1.0,
}
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def logged(folder, *rows, time="2026-01-02T03-04-05.6"):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"samples_gsm8k_cot_{time}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def samples_of(path):
    return read_logged(path)[0].samples["gsm8k_cot"]


def test_filters_and_results(tmp_path):
    """Of the newest file of a task; a metric that is no number is left out."""
    flexible = LINE | {"filter": "flexible-extract", "filtered_resps": ["18."]}
    flexible |= {"exact_match": 0.0, "perplexity": [1.0, 2]}
    flexible["metrics"] = ["exact_match", "perplexity"]
    assert not is_logged(tmp_path)
    folder = tmp_path / "org__model"
    first = logged(folder, LINE | {"exact_match": 0.5}, time="2026-01-01T00-00-00")
    assert is_logged(first)
    logged(folder, LINE, flexible)
    results = folder / "results_2026-01-02T03-04-05.6.json"
    results.write_text('{"config": {"model": "vllm"}}')
    (found,) = read_logged(tmp_path)
    assert found.older == (first,)
    note = f"{first}: not read: there is a newer log of its task"
    assert side_of_logged([found], "a").notes == (note,)
    assert (found.model, found.results["config"]["model"]) == ("org__model", "vllm")
    strict, loose = found.samples["gsm8k_cot"]
    assert (strict.filter, strict.scores) == ("strict-match", {"exact_match": 1.0})
    assert (loose.filter, loose.scores) == ("flexible-extract", {"exact_match": 0.0})
    assert strict.prompt_hash == "b0"
    assert strict.answer != loose.answer


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([], "jsonl:1 must be an object"),
        (LINE | {"doc_id": "0"}, "jsonl:1: field 'doc_id' must be a whole number"),
        (LINE | {"doc_hash": ""}, "jsonl:1: field 'doc_hash' is empty"),
        (LINE | {"metrics": "acc"}, "jsonl:1: field 'metrics' must be a list"),
    ],
)
def test_bad_logs_are_one_line(tmp_path, row, message):
    assert message in refused(read_logged, logged(tmp_path, row))


def test_winning_option_is_the_answer(tmp_path):
    """As they are logged: every part of a response is a text."""
    chosen = [["-2.5", "False"], ["-1.25", "True"]]
    alike = [["-2.4", "False"], ["-1.26", "True"]]
    answers = chosen, alike, [["-3", "True"]]
    rows = [LINE | {"filtered_resps": answer} for answer in answers]
    samples = samples_of(logged(tmp_path / "m", *rows))
    assert [each.answer for each in samples] == ["option 1", "option 1", "True"]


def test_model_of_two_folders_is_refused(tmp_path):
    for folder in ("first", "second"):
        logged(tmp_path / folder / "org__model", LINE)
    told = refused(read_logged, tmp_path)
    folders = f"{tmp_path}/first/org__model and in {tmp_path}/second/org__model"
    assert f"model 'org__model' was logged in {folders}: name one" in told


def test_old_logs(tmp_path):
    """Those before 0.4.7 list no metrics and name no filter: one filter is read,
    several are refused."""
    old = LINE | {"acc": 0.5, "f1": [0, 1]}
    del old["filter"], old["metrics"]
    sample, _ = samples_of(logged(tmp_path / "m", old, old | {"doc_id": 1}))
    assert (sample.filter, sample.scores) == ("none", {"exact_match": 1.0, "acc": 0.5})
    told = refused(read_logged, logged(tmp_path / "n", old, old))
    assert (
        "jsonl:2: doc_id 0 again, and no field 'filter': lm-eval before 0.4.7" in told
    )


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
