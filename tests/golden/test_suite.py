"""The suite zero-shot against lm-eval 0.4.13 on the bundled model: `suite/lm_eval.json` is
what `python -m tests.support.harness` measured on the rows beside it. They are our own, in
the hub's schema, with spaces at the ends of texts and options in which characters and
bytes differ."""

import json
import re
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import asdict

from evaluator.asking.questions import Question
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.engine.config import EngineConfig
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.tables import TABLES
from evaluator.metrics.tables.suite import _TASKS
from evaluator.probes import PROBES
from evaluator.probes.perplexity import windows_of
from evaluator.probes.planning import prompter_of, questions_of, tokenised
from evaluator.probes.stream import Evaluation
from evaluator.report.results import compute
from evaluator.store.outcomes import reduce_records
from evaluator.tasks import load_task
from launch.commands.report import _headline
from tests.support.engines import oracle_of
from tests.support.harness import MEASURED, ROWS, measure
from tests.support.served import BASE as MODEL
from tests.support.stamps import STAMP
from tests.support.sweeps import expanded, refused

THEIRS = json.loads(MEASURED.read_text())


def tasks(**settings):
    entry = {"suite": f"zero-shot:{ROWS}", "items": 0, **settings}
    return expanded({"models": {"m": "bundled"}, "tasks": [entry]})["m"].tasks


@pytest.fixture(scope="module")
def records():
    config = EngineConfig(kind="torch", dtype="float32", max_model_len=2048)
    engine, tokenizer, made = oracle_of(MODEL, config), load_tokenizer(MODEL), []
    stamp = STAMP | {"base": None, "method": None}
    for name, settings in tasks(max_new_tokens=2).items():
        data = load_task(settings.task, None, name, settings.data_settings)
        prompter = prompter_of(tokenizer, settings)
        if settings.is_text:
            plans = windows_of(name, data.text, tokenizer, 256, 2048)
        else:
            asked = questions_of(data, settings)
            plans = [tokenised(each, prompter, settings) for each in asked]
        stream = Evaluation.of(plans, config=settings, prompter=prompter, columns=stamp)
        made += [asdict(each) for _, found in stream.run(engine) for each in found]
    return pd.DataFrame(made)


@pytest.fixture(scope="module")
def outcomes(records):
    return reduce_records(records)


def order(task):
    """The ids of a task's rows, in their order."""
    name = tasks()[f"{task}+zero-shot"]
    pools = load_task(name.task, None, None, name.data_settings).pools
    return [item.item_id for item in pools["english"]]


@pytest.mark.parametrize("task", _TASKS)
def test_acc_and_acc_norm_are_lm_evals(task, records, outcomes):
    own = outcomes[outcomes["task"] == f"{task}+zero-shot"].set_index("item_id")
    for metric in ("acc", "acc_norm"):
        if metric in THEIRS[task]:
            assert [*own.loc[order(task), metric].astype(float)] == THEIRS[task][metric]
    scored = records[
        (records["task"] == f"{task}+zero-shot") & (records["probe"] == "choice")
    ]
    scored = scored.sort_values("index").groupby("item_id")["logprob"].apply(list)
    for item, theirs in zip(order(task), THEIRS[task]["logprobs"], strict=True):
        assert scored[item] == pytest.approx(theirs, abs=2e-4)


def test_rows_tell_characters_from_bytes_and_sums():
    """Else the test above would prove little."""
    for task in ("hellaswag", "arc_easy", "arc_challenge", "openbookqa"):
        assert THEIRS[task]["acc"] != THEIRS[task]["acc_norm"]
    file = (ROWS / "openbookqa" / "validation.jsonl").read_text("utf-8")
    assert "größer" in file
    assert ' ", "choices"' in file


@pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-eval is not installed")
def test_golden_file_is_what_lm_eval_measures(tmp_path):
    assert measure(tmp_path) == THEIRS


def test_a_row_for_each_checkpoint(records, outcomes):
    table = next(each for each in TABLES if each.name == "suite").fill(Inputs(outcomes))
    (row,) = table.rows
    assert (row["checkpoint"], row["n"], row["reason"] is None) == ("pruned", 140, True)
    shares = {}
    for task, kinds in _TASKS.items():
        shares[task] = np.mean(THEIRS[task]["acc"])
        assert row[task] == pytest.approx(shares[task])
        if "_norm" in kinds:
            assert row[f"{task}_norm"] == pytest.approx(
                np.mean(THEIRS[task]["acc_norm"])
            )
        assert row[f"{task}_n"] == 20
    assert row["mean"] == pytest.approx(np.mean([*shares.values()]))
    norm = {task: row.get(f"{task}_norm", share) for task, share in shares.items()}
    assert row["mean_norm"] == pytest.approx(np.mean([*norm.values()]))
    said = [row[f"{task}_open"] for task in _TASKS if "_open" in _TASKS[task]]
    assert row["mean_open"] == pytest.approx(np.mean(said))
    windows = records[records["task"] == "wikitext2"]
    nats = -windows["logprob"].sum() / windows["prompt_tokens"].sum()
    assert row["wikitext2"] == pytest.approx(np.exp(nats))
    cells = {cell.measure: cell for cell in table.cells}
    assert cells["wikitext2"].n == len(windows)
    assert (cells["boolq"].n, cells["boolq"].task) == (20, "zero-shot")
    assert [cells[f"mean{kind}"].n for kind in ("", "_norm", "_open")] == [
        140,
        140,
        100,
    ]
    assert cells["boolq"].low < cells["boolq"].value < cells["boolq"].high


def test_the_terminal_shows_the_means(outcomes, capsys):
    _headline(compute(Inputs(outcomes)))
    said = " ".join(capsys.readouterr().out.split())
    means = r"mean [\d.]+ %, mean norm [\d.]+ %, mean said [\d.]+ %"
    assert re.search(f"pruned, suite zero-shot: {means} ", said)


def test_a_prompt_of_the_suites_name_is_none_of_its_rows(outcomes):
    """A run's settings say which tasks are the suite's."""
    table = next(each for each in TABLES if each.name == "suite")
    others = {f"{task}+zero-shot": {"suite": "zero-shot"} for task in _TASKS}
    others["boolq+zero-shot"] = {"task": "boolq"}
    run = {"identity": {"task_settings": {"pruned": others}}}
    (row,) = table.fill(Inputs(outcomes, run=run)).rows
    assert row["boolq"] is None
    assert (row["n"], row["reason"]) == (120, "mean of 6 of 7 tasks")


def test_text_joins_lines_as_papers_do():
    lines = (ROWS / "wikitext2" / "test.jsonl").read_text("utf-8").splitlines()
    joined = "\n\n".join(json.loads(line)["text"] for line in lines)
    assert load_task(f"wikitext2:{ROWS / 'wikitext2'}", None).text == joined


def test_a_tie_is_the_first_options_in_lm_eval_and_wrong_here():
    scored = {"is_gold": [True, False], "option_text": ["no", "ja"], "index": [0, 1]}
    rows = pd.DataFrame(scored).assign(logprob=-1.0, token_ids=[(1,), (2,)])
    rows = rows.assign(**STAMP, task="t", language="english", item_id="i")
    rows = rows.assign(format="open", probe="choice", seed=0, status="ok", text=None)
    (found,) = PROBES["choice"].reduce(rows).to_dict(orient="records")
    assert (found["acc"], found["acc_norm"], found["recognised"]) == (True, True, False)


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ({"suite": "zero"}, "suite 'zero'"),
        (
            {"suite": "zero-shot", "task": "squad"},
            "'zero-shot' has arc_challenge, arc_easy",
        ),
        (
            {"suite": "zero-shot", "task": "winogrande", "chat": True},
            "task winogrande: options in",
        ),
        ({"suite": "zero-shot:/nowhere"}, "/nowhere/arc_challenge"),
    ],
)
def test_what_is_refused(task, told):
    def prepared():
        document = {"models": {"m": "bundled"}, "tasks": [task]}
        for settings in expanded(document)["m"].tasks.values():
            load_task(settings.task, None)

    assert told in refused(prepared)


def test_a_question_without_the_blank_is_refused(tmp_path):
    row = {"sentence": "The lid is red.", "option1": "a", "option2": "b", "answer": "1"}
    (tmp_path / "validation.jsonl").write_text(json.dumps(row) + "\n")
    document = {"task": f"winogrande:{tmp_path}"}
    job = expanded({"models": {"m": "bundled"}, "tasks": [document]})["m"]
    settings = job.tasks["winogrande"]
    data = load_task(settings.task, None, None, settings.data_settings)
    message = refused(questions_of, data, settings)
    assert "item 'validation-000000': field 'question' has no blank '_'" in message


def test_options_stand_in_the_datas_order():
    settings = tasks()["arc_easy+zero-shot"]
    data = load_task(settings.task, None, None, settings.data_settings)
    for question in questions_of(data, settings):
        assert isinstance(question, Question)
        assert question.options.texts == question.item.options
