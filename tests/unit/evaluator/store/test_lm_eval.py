"""lm-eval's files, as version 0.4.13 writes them."""

import json

import pytest

from evaluator.core.errors import InputError
from evaluator.deciding.comparison import side_of_logged
from evaluator.store.lm_eval import is_logged, read_logged
from tests.support.sweeps import refused

# What is read of a line that lm-eval 0.4.13 writes for gsm8k, once for each of its two
# filters; texts shortened.
LINE = {
    "doc_id": 0,
    "doc": {"question": "Janet's ducks?", "answer": "#### 18"},
    "arguments": {
        "gen_args_0": {
            "arg_0": "Question: Janet's ducks?\nAnswer:",
            "arg_1": {"until": ["Question:"]},
        }
    },
    "filtered_resps": ["18"],
    "filter": "strict-match",
    "metrics": ["exact_match"],
    "doc_hash": "a0",
    "prompt_hash": "b0",
    "exact_match": 1.0,
}


def logged(folder, *rows, task="gsm8k_cot", time="2026-01-02T03-04-05.6"):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"samples_{task}_{time}.jsonl"
    file.write_text(
        "".join(
            (row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows
        )
    )
    return file


def test_filters_and_results(tmp_path):
    """Of the newest file of a task; a metric that is no number is left out."""
    flexible = LINE | {
        "filter": "flexible-extract",
        "filtered_resps": ["18."],
        "exact_match": 0.0,
    }
    flexible |= {"metrics": ["exact_match", "perplexity"], "perplexity": [1.0, 2]}
    assert not is_logged(tmp_path)
    first = logged(
        tmp_path / "org__model", LINE | {"exact_match": 0.5}, time="2026-01-01T00-00-00"
    )
    assert is_logged(first)
    logged(tmp_path / "org__model", LINE, flexible)
    (tmp_path / "org__model" / "results_2026-01-02T03-04-05.6.json").write_text(
        '{"config": {"model": "vllm"}}'
    )
    (found,) = read_logged(tmp_path)
    assert found.older == (first,)
    assert side_of_logged([found], "a").notes == (
        f"{first}: not read: there is a newer log of its task",
    )
    assert (found.model, found.results) == ("org__model", {"config": {"model": "vllm"}})
    strict, loose = found.samples["gsm8k_cot"]
    assert (strict.filter, strict.scores, strict.prompt_hash) == (
        "strict-match",
        {"exact_match": 1.0},
        "b0",
    )
    assert (loose.filter, loose.scores) == ("flexible-extract", {"exact_match": 0.0})
    assert strict.answer != loose.answer


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "jsonl:1: not JSON"),
        ([], "jsonl:1 must be an object"),
        (LINE | {"doc_id": "0"}, "jsonl:1: field 'doc_id' must be a whole number"),
        (
            {name: value for name, value in LINE.items() if name != "doc_hash"},
            "field 'doc_hash' is missing",
        ),
        (LINE | {"metrics": "acc"}, "field 'metrics' must be a list"),
    ],
)
def test_bad_logs_are_one_line(tmp_path, row, message):
    assert message in refused(read_logged, logged(tmp_path, row))


def test_winning_option_is_the_answer(tmp_path):
    """As they are logged: every part of a response is a text."""
    chosen = [["-2.5", "False"], ["-1.25", "True"]]
    alike = [["-2.4", "False"], ["-1.26", "True"]]
    rows = [
        LINE | {"filtered_resps": each} for each in (chosen, alike, [["-3", "True"]])
    ]
    samples = read_logged(logged(tmp_path / "m", *rows))[0].samples["gsm8k_cot"]
    assert [each.answer for each in samples] == ["option 1", "option 1", "True"]
    for folder in ("first", "second"):
        logged(tmp_path / folder / "org__model", LINE)
    with pytest.raises(
        InputError,
        match=r"model 'org__model' was logged in .*first.* and in .*second.*: name one",
    ):
        read_logged(tmp_path)


def test_old_logs(tmp_path):
    """They list no metrics and name no filter: one filter is read, several are
    refused."""
    old = LINE | {"acc": 0.5, "f1": [0, 1]}
    del old["filter"], old["metrics"]
    (sample, _) = read_logged(logged(tmp_path / "m", old, old | {"doc_id": 1}))[
        0
    ].samples["gsm8k_cot"]
    assert (sample.filter, sample.scores) == ("none", {"exact_match": 1.0, "acc": 0.5})
    message = refused(read_logged, logged(tmp_path / "n", old, old))
    assert (
        "jsonl:2: doc_id 0 again, and no field 'filter': lm-eval before 0.4.7"
        in message
    )
