"""lm-eval's files, as versions 0.4.3 to 0.4.13 write them."""

import json

import pytest

from evaluator.logs import read_logged
from tests.support.sweeps import refused

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


def logged(folder, *rows, time="2026-01-02T03-04-05.6"):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"samples_gsm8k_cot_{time}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def samples_of(path):
    (log,) = read_logged(path)
    return list(log.samples)


def test_filters_and_results(tmp_path):
    """Of the newest file of a task; a metric that is no number is left out."""
    flexible = LINE | {"filter": "flexible-extract", "filtered_resps": ["18."]}
    flexible |= {"exact_match": 0.0, "perplexity": [1.0, 2]}
    flexible["metrics"] = ["exact_match", "perplexity"]
    folder = tmp_path / "org__model"
    first = logged(folder, LINE | {"exact_match": 0.5}, time="2026-01-01T00-00-00")
    logged(folder, LINE, flexible)
    for time, date in (("2026-01-01T00-00-00", 1), ("2026-01-02T03-04-05.6", 2)):
        told = {"config": {"model": "vllm"}, "date": date}
        (folder / f"results_{time}.json").write_text(json.dumps(told))
    (found,) = read_logged(tmp_path)
    assert found.notes == (f"{first}: not read: there is a newer log of its task",)
    assert (found.model, found.settings["model"]) == ("org__model", "vllm")
    strict, loose = found.samples
    assert (strict.filter, strict.scores) == ("strict-match", {"exact_match": 1.0})
    assert (loose.filter, loose.scores) == ("flexible-extract", {"exact_match": 0.0})
    assert strict.prompt == "b0"
    assert strict.answer != loose.answer


def test_sampling_is_a_part_of_the_prompt(tmp_path):
    """What a cached request was asked with is not what its task states."""

    def prompt_of(name, sampling):
        arguments = {"gen_args_0": {"arg_0": "Janet's ducks?", "arg_1": sampling}}
        (sample,) = samples_of(logged(tmp_path / name, LINE | {"arguments": arguments}))
        return sample.prompt

    cold = prompt_of("a", {"temperature": 0, "until": ["Q:"]})
    assert cold == prompt_of("b", {"until": ["Q:"], "temperature": 0.0})
    assert cold != prompt_of("c", {"until": ["Q:"], "temperature": 0.7})
    # of a log-likelihood: its option
    assert prompt_of("d", " 18") == LINE["prompt_hash"]


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
    assert message in refused(samples_of, logged(tmp_path, row))


def test_winning_option_is_the_answer(tmp_path):
    """As they are logged: every part of a response is a text."""
    chosen = [["-2.5", "False"], ["-1.25", "True"]]
    alike = [["-2.4", "False"], ["-1.26", "True"]]
    answers = chosen, alike, [["-3", "True"]]
    rows = [LINE | {"filtered_resps": answer} for answer in answers]
    samples = samples_of(logged(tmp_path / "m", *rows))
    assert [each.answer for each in samples] == ["option 1", "option 1", "True"]


@pytest.mark.parametrize(
    ("likelihoods", "is_judged"),
    [
        ([-2.5, -2.5], True),  # a tie
        ([0.0, "-inf"], True),
        ([0.0], True),
        ([0.0, 0.0], False),
        (["-inf", "-inf"], False),
        ([-1.0, "nan"], False),
        (["nan"], False),
    ],
)
def test_likelihoods_that_measure_nothing_judge_nothing(
    tmp_path, likelihoods, is_judged
):
    """Of a server that scores no prompts: every option has the same accuracy."""
    rows = [[value, "False"] for value in likelihoods]
    (sample,) = samples_of(logged(tmp_path / "m", LINE | {"filtered_resps": rows}))
    assert bool(sample.scores) == is_judged
    assert sample.others == (() if is_judged else ("exact_match of no likelihood",))
    assert sample.options == len(likelihoods)


@pytest.mark.parametrize(
    ("stated", "found"),
    [
        ("pretrained=m,think_end_token=</think>", {"think_end_token": "</think>"}),
        ({"pretrained": "m", "add_bos_token": True}, {"add_bos_token": "True"}),
        (
            'pretrained=m,chat_template_args={"a": 1, "b": 2},dtype=auto',
            {"chat_template_args": '{"a": 1, "b": 2}'},
        ),
        ("pretrained=m,tensor_parallel_size=2", {}),
        (None, {}),
    ],
)
def test_arguments_that_shape_answers_are_settings(tmp_path, stated, found):
    """A thought that one side leaves out, or a BOS, is no loss of the weights."""
    logged(tmp_path, LINE, time="1")
    told = {"date": 1, "config": {"model_args": stated}}
    (tmp_path / "results_1.json").write_text(json.dumps(told))
    (log,) = read_logged(tmp_path)
    named = ("think_end_token", "add_bos_token", "chat_template_args")
    assert {n: log.decisive[n] for n in named if log.decisive[n] is not None} == found
    assert log.decisive["enable_thinking"] is None


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
    told = refused(samples_of, logged(tmp_path / "n", old, old))
    assert (
        "jsonl:2: doc_id 0 again, and no field 'filter': lm-eval before 0.4.7" in told
    )


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({"group_subtasks": {"a": ["b"], "b": ["a"]}}, "group 'a' holds itself"),
        ({"group_subtasks": {"a": 3}}, "'group_subtasks': 'a' must be a list, not 3"),
        ({"group_subtasks": {"a": None}}, "'a' must be a list, not null"),
        ({"group_subtasks": [1]}, "'group_subtasks' must be an object, not [1]"),
    ],
)
def test_hostile_groups_are_one_line(tmp_path, results, message):
    file = logged(tmp_path, LINE, time="1")
    (tmp_path / "results_1.json").write_text(json.dumps(results))
    assert message in refused(read_logged, tmp_path)
    assert refused(read_logged, tmp_path).startswith(str(file))


def test_hostile_names_and_numbers(tmp_path):
    """A pattern in a file's name is no pattern, and a number beyond a float's range
    is no likelihood."""
    for time in ("[1]", "1"):
        folder = tmp_path / f"m{time}"
        logged(folder, LINE | {"filtered_resps": [[10**400, "True"]]}, time=time)
        (folder / f"results_{time}.json").write_text('{"n-shot": {"gsm8k_cot": 5}}')
        (log,) = read_logged(folder)
        assert log.decisive["n-shot"] == 5
        assert [each.options for each in log.samples] == [0]


@pytest.mark.parametrize(
    ("told", "shots"),
    [
        ({}, 0),
        ({"n-shot": {"gsm8k_cot": 0}}, 0),
        ({"configs": {"gsm8k_cot": {"num_fewshot": None}}}, 0),
        ({"configs": {"gsm8k_cot": {"num_fewshot": 5}}}, 5),
        ({"n-shot": {"gsm8k_cot": 8}, "configs": {"gsm8k_cot": {}}}, 8),
    ],
)
def test_examples_are_none_where_none_is_stated(tmp_path, told, shots):
    """A default of the task and the option of a call are one setting."""
    logged(tmp_path, LINE, time="1")
    (tmp_path / "results_1.json").write_text(json.dumps({"date": 1} | told))
    (log,) = read_logged(tmp_path)
    assert log.decisive["n-shot"] == shots


@pytest.mark.parametrize("value", [0, 0.0, "", False, "x", None])
def test_only_none_is_absent(tmp_path, value):
    doc = {"cluster": value, "id": value, "language": value}
    (sample,) = samples_of(logged(tmp_path, LINE | {"doc": doc}))
    assert (sample.cluster is None) == (sample.own_id is None) == (value is None)
    if value == 0 and value is not False:
        assert (sample.cluster, sample.own_id, sample.language) == ("0", "0", "0")


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"date": 5}, {}, "does not say which is the newest"),
        ({"date": 5}, {"date": 5.0}, "does not say which is the newest"),
        ({"model_name": "a"}, {"model_name": "b"}, '"model_name": "b"'),
        ({"config": {"model_args": "revision=1"}}, {}, "revision=1"),
        ({"date": 5}, {"date": 4}, None),
    ],
)
def test_newest_log_and_its_model(tmp_path, first, second, message):
    """By what the log holds; its name says the opposite."""
    files = []
    for time, results in (("1", first), ("2", second)):
        files.append(logged(tmp_path, LINE, time=time))
        file = tmp_path / f"results_{time}.json"
        file.write_text(json.dumps({"model_name": "a", "git_hash": time} | results))
    if message:
        assert message in refused(read_logged, tmp_path)
    else:
        (log,) = read_logged(tmp_path)
        assert log.settings["git_hash"] == "1"


def test_results_of_own_name(tmp_path):
    """Of `--output_path out/base.json`: lm-eval puts the time after that name."""
    folder = tmp_path / "out"
    file = logged(folder, LINE)
    (bare,) = read_logged(folder)
    (note,) = bare.notes
    assert note.startswith(f"{file}: no results file of its time")
    assert bare.decisive == {}
    task, groups = "gsm8k_cot", {"maths": ["school"], "school": ["gsm8k_cot"]}
    results = {"n-shot": {task: 5}, "higher_is_better": {task: {"exact_match": True}}}
    results["group_subtasks"] = groups | {task: []}
    (folder / "base_2026-01-02T03-04-05.6.json").write_text(json.dumps(results))
    (found,) = read_logged(folder)
    assert (found.decisive["n-shot"], found.notes) == (5, ())
    assert found.more_is_better == {"exact_match": True}
    assert found.groups == {"maths": {"school"}, "school": {task}, task: set()}
