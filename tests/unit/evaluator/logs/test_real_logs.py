"""Logs that the programs made themselves (tests/data/logs, `make_*.py` there): twelve
sums, of which the base has ten right; the candidate loses two of them and gains one."""

import json
import shutil
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evaluator.deciding.comparison import compare
from evaluator.deciding.logged import side_of_logged
from evaluator.logs import read_logged
from tests.support.sweeps import refused

LOGS = Path(__file__).parents[3] / "data" / "logs"
OLD, NEW = LOGS / "lm-eval-0.4.3" / "one-rank", LOGS / "lm-eval-0.4.13" / "one-rank"
STRICT, LOOSE = "exact_match,strict-match", "exact_match,flexible-extract"


def side(path):
    return side_of_logged(read_logged(path), str(path))


def compared(a, b):
    found = compare(side(a), side(b), {side(a).names("checkpoint")[0]: "candidate"})
    return {row["measure"]: row for row in found.frame.to_dict("records")}


@pytest.mark.parametrize(
    ("base", "candidate", "measures", "repeats"),
    [
        (NEW, NEW, {"acc", "acc_norm", STRICT, LOOSE}, 1),
        (OLD, NEW, {"acc", "acc_norm", STRICT, LOOSE}, 1),
        (OLD, OLD, {"acc", "acc_norm", STRICT, LOOSE}, 1),
        (LOGS / "lighteval/details", None, {"acc", "em", "f1"}, 1),
        (LOGS / "nemo", None, {"reward"}, 2),
    ],
)
def test_programs_own_logs_pair(base, candidate, measures, repeats):
    """Between versions too: 0.4.3 names no filters, which its results list."""
    rows = compared(base / "base", (candidate or base) / "candidate")
    assert set(rows) == measures
    for measure, row in rows.items():
        assert (row["n"], row["alone_a"], row["alone_b"]) == (12 * repeats, 0, 0)
        if measure != STRICT:
            assert row["a"], row["b"] == (10 / 12, 9 / 12)
            counts = (2 * repeats, 1 * repeats)
            assert (row["only_a"], row["only_b"]) == counts
    if STRICT in rows:
        assert (rows[STRICT]["a"], rows[STRICT]["b"]) == (4 / 12, 5 / 12)


def test_inspect_epochs_are_one_cluster():
    """Its newer logs are compressed by Zstandard, which Python 3.11 does not read."""
    base = side(LOGS / "inspect" / "base")
    found = compare(base, side(LOGS / "inspect" / "candidate")).frame
    assert set(found["measure"]) == {"match", "includes"}
    row = found.iloc[0]
    assert (row["n"], row["only_a"], row["only_b"]) == (24, 4, 2)
    assert base.answers["cluster"].nunique() == 12
    decisive = base.decisive["mockllm/model", "sums"]
    stated = {name: value for name, value in decisive.items() if value != "unset"}
    assert '"solver": "generate"' in stated["solvers"]
    del stated["solvers"]
    scorers = '[["match", {"numeric": true}], ["includes", {}]]'
    assert stated.pop("scorers") == scorers
    assert stated == {"task_version": "0", "epochs": "2"}


def test_inspect_solvers_are_settings(tmp_path):
    """A system message of a solver makes another prompt."""
    solver = {"solver": "system_message", "params": {"template": "Talk like a pirate"}}
    logs = []
    for name, steps in (("plain", []), ("pirate", [solver])):
        header = HEADER | {"plan": {"name": "plan", "steps": steps, "config": {}}}
        files = {"header": header, "samples__1_epoch_1": SCORED}
        logs.append(read_logged(of_inspect(tmp_path / name, **files))[0])
    plain, pirate = logs
    assert plain.decisive["solvers"] != pirate.decisive["solvers"]


def test_lighteval_groups_state_directions(tmp_path):
    """A metric of several values has a direction for each."""
    shutil.copytree(LOGS / "lighteval", tmp_path, dirs_exist_ok=True)
    (file,) = (tmp_path / "results" / "base").glob("*.json")
    results = json.loads(file.read_text())
    for task in results["config_tasks"].values():
        grouped = {"em": False, "f1": True}
        task["metrics"] = [{"metric_name": ["em", "f1"], "higher_is_better": grouped}]
    file.write_text(json.dumps(results))
    directions = side(tmp_path / "details" / "base").more_is_better
    assert {metric: better for (_, metric), better in directions.items()} == grouped


def test_ranks_and_missing_rows():
    """Two processes log every second document each, here without the last."""
    two = NEW.parent / "two-ranks" / "base"
    found = compare(side(NEW / "base"), side(two))
    assert set(found.frame["n"]) == {11}
    assert set(found.frame["verdict"]) == {"same"}
    note = f"local_sums: only in {NEW / 'base'} (1): doc 11"
    assert note in found.notes


def test_changed_data_is_no_flip(tmp_path):
    """The same document under another question or another gold answer."""
    shutil.copytree(NEW / "candidate", tmp_path / "candidate")
    (file,) = (tmp_path / "candidate").glob("samples_local_sums*")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        if row["doc_id"] == 0:
            row["doc"]["question"] = "What is 1 plus 1 again?"
        if row["doc_id"] == 1:
            row["target"] = "13"
    file.write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
    found = compare(side(NEW / "base"), side(tmp_path / "candidate"))
    sums = found.frame[found.frame["task"] == "local_sums"]
    assert set(sums["n"]) == {10}
    (note,) = found.notes
    assert "options changed (2): doc 0, doc 1" in note
    assert "data" in found.differences["base", "local_sums"]


def of_inspect(folder, **files):
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "a.eval", "w") as archive:
        for name, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            archive.writestr(f"{name.replace('__', '/')}.json", text)
    return folder / "a.eval"


SPEC = {"model": "m", "task": "t", "created": "2026-11-27T08:00:00+00:00"}
SPEC |= {"dataset": {}, "config": {}}
HEADER = {"version": 2, "eval": SPEC, "status": "error"}
HEADER |= {"plan": {"name": "plan", "steps": [], "config": {}}}
SAMPLE = {"id": 1, "epoch": 1, "input": "q", "target": "a"}
SCORED = SAMPLE | {"scores": {"match": {"value": "C"}}}


def test_scores_of_inspect(tmp_path):
    """Letters and several scores; unfinished, which is noted."""
    scores = {"choice": {"value": "P"}, "judge": {"value": {"style": 2, "why": "x"}}}
    sample = SAMPLE | {"scores": scores}
    file = of_inspect(tmp_path, header=HEADER, samples__1_epoch_1=sample)
    (log,) = read_logged(file)
    (found,) = log.samples
    assert found.scores == {"choice": 0.5, "judge,style": 2.0}
    assert log.notes == (f"{file}: inspect did not finish it (error)",)
    assert found.others == ("judge,why",)


def test_other_grades_are_not_inspects_letters(tmp_path):
    """A C among grades from A to F is no `correct`, nor is any other grade left out."""
    grades = {}
    for number, grade in enumerate("CCF"):
        scores = {"own": {"value": grade}, "match": {"value": "C"}}
        sample = SAMPLE | {"id": number, "uuid": str(number), "scores": scores}
        grades[f"samples__{number}_epoch_1"] = sample
    (log,) = read_logged(of_inspect(tmp_path, header=HEADER, **grades))
    for sample in log.samples:
        assert (sample.scores, sample.others) == ({"match": 1.0}, ("own",))


@pytest.mark.parametrize(
    ("score", "is_judged"),
    [
        ({"reason": "grader_failed"}, False),
        ({"reason": "scoring_failed"}, False),
        ({"explanation": "Grade not found in model output: well"}, False),
        ({"reason": "no_response"}, True),
        ({"reason": "invalid_response_format", "explanation": "x"}, True),
    ],
)
def test_judge_of_inspect_that_failed_judges_nothing(tmp_path, score, is_judged):
    """What the model itself failed at is wrong."""
    sample = SAMPLE | {"scores": {"judge": {"value": "I"} | score}}
    (log,) = read_logged(of_inspect(tmp_path, header=HEADER, samples__1_epoch_1=sample))
    (found,) = log.samples
    assert found.scores == ({"judge": 0.0} if is_judged else {})
    assert found.others == (() if is_judged else ("judge",))


@pytest.mark.parametrize(
    ("options", "roles", "is_own"),
    [
        (None, None, True),
        ({"model": None}, None, True),
        ({"model": "openai/large"}, None, False),
        ({}, {"grader": {"model": "openai/large"}}, False),
        ({"model_role": "judge"}, {"grader": {"model": "openai/large"}}, True),
    ],
)
def test_model_of_inspect_that_judges_itself_is_noted(tmp_path, options, roles, is_own):
    """Base and candidate then have different judges."""
    scorers = [{"name": "model_graded_qa", "options": options}, {"name": "match"}]
    stated = SPEC | {"scorers": scorers, "model_roles": roles}
    files = {"header": HEADER | {"eval": stated}, "samples__1_epoch_1": SCORED}
    (log,) = read_logged(of_inspect(tmp_path, **files))
    told = "model_graded_qa has no judge but the model itself"
    assert any(note.endswith(told) for note in log.notes) == is_own


@pytest.mark.parametrize(
    "more",
    [
        {"scorers": [{"name": "judge", "options": {"template": "other"}}]},
        {"model_roles": {"grader": {"model": "openai/small"}}},
    ],
)
def test_judge_of_inspect_is_a_setting(tmp_path, more):
    decisive = []
    first = {"scorers": [{"name": "judge", "options": {"template": "one"}}]}
    first |= {"model_roles": {"grader": {"model": "openai/large"}}}
    for name, stated in (("a", first), ("b", first), ("c", first | more)):
        files = {"header": HEADER | {"eval": SPEC | stated}}
        file = of_inspect(tmp_path / name, **files, samples__1_epoch_1=SCORED)
        decisive.append(read_logged(file)[0].decisive)
    assert decisive[0] == decisive[1] != decisive[2]


@pytest.mark.parametrize("why", ["error", "invalidation"])
def test_sample_without_a_score_is_counted(tmp_path, why):
    """It failed, or somebody marked it as invalid."""
    cause = {"error": {"message": "planted", "traceback": "", "traceback_ansi": ""}}
    if why == "invalidation":
        cause = {"invalidation": {"author": "x", "reason": "wrong question"}}
    other = SCORED | cause | {"id": 2, "uuid": "2"}
    header = HEADER | {"invalidated": why == "invalidation"}
    files = {"header": header, "samples__2_epoch_1": other}
    file = of_inspect(tmp_path, **files, samples__1_epoch_1=SCORED | {"uuid": "1"})
    found = side(file)
    assert "t: samples without a number: any (1)" in found.notes
    assert len(found.answers) == 1
    told = refused(side, of_inspect(tmp_path / "b", **files))
    assert told.endswith("is a number; t: samples without a number: any (1)")


def test_newest_inspect_log_by_instant(tmp_path):
    """Not by its file's name, nor by the hour of its time zone."""
    for name, created in (("z", "2026-11-27T09:00:00+09:00"), ("a", SPEC["created"])):
        header = HEADER | {"eval": SPEC | {"created": created, "task_version": name}}
        files = {"header": header, "samples__1_epoch_1": SCORED}
        of_inspect(tmp_path / name, **files)
    (log,) = read_logged(tmp_path)
    assert log.decisive["task_version"] == "a"


def test_arguments_of_inspect_are_tasks(tmp_path):
    """Each is named by what differs; two models are refused."""
    for name, given in (("a", {"s": 0}), ("b", {"s": 1}), ("c", {"s": 1, "n": 2})):
        header = HEADER | {"eval": SPEC | {"task_args": given}}
        of_inspect(tmp_path / name, header=header, samples__1_epoch_1=SCORED)
    tasks = sorted(each.task for each in read_logged(tmp_path))
    assert tasks == ["t (n=2, s=1)", "t (n=null, s=0)", "t (n=null, s=1)"]
    header = HEADER | {"eval": SPEC | {"model_args": {"revision": "x"}}}
    of_inspect(tmp_path / "d", header=header, samples__1_epoch_1=SCORED)
    assert '{"revision": "x"}: name the logs of one' in refused(read_logged, tmp_path)


@pytest.mark.parametrize(
    ("details", "scores"),
    [
        ({}, {"reward": 0.0, "own": 1.0}),
        ({"error_category": "graceful"}, {"reward": 0.0, "own": 1.0}),
        ({"error_category": "system"}, {}),
        ({"error_category": "infra_error"}, {}),
        ({"error_category": "tool_infra"}, {}),
        ({"judge": {"error": "timeout", "total": None}}, {"own": 1.0}),
        ({"judge": {"normalized": 0.0, "parse_error": True}}, {"own": 1.0}),
        ({"unscored": True, "unscored_reason": "format_error"}, {}),
        ({"method": "harbor", "error": "no_sandbox"}, {}),
        ({"method": "exact_match_fallback", "match": False}, {}),
        ({"method": "byob_own", "error": 0.0}, {"reward": 0.0, "own": 1.0}),
        ({"error_category": "graceful", "error": "x"}, {"reward": 0.0, "own": 1.0}),
        ({"scorer:own": {"error": "x", "reward": 0.0}}, {"reward": 0.0}),
    ],
)
def test_nemo_infrastructure_is_no_judgement(tmp_path, details, scores):
    shutil.copytree(LOGS / "nemo" / "base", tmp_path / "base")
    (file,) = tmp_path.glob("**/results.jsonl")
    row = json.loads(file.read_text().splitlines()[0])
    row |= {"scoring_details": details, "reward": 0.0, "scorer_rewards": {"own": 1.0}}
    file.write_text(json.dumps(row))
    (log,) = read_logged(tmp_path)
    (sample,) = log.samples
    assert sample.scores == scores


def test_newest_bundle_of_nemo_by_its_time(tmp_path):
    """Its results replaced those of the others, whatever the files are called."""
    shutil.copytree(LOGS / "nemo" / "base", tmp_path / "base")
    (old,) = tmp_path.glob("**/eval-*.json")
    bundle = json.loads(old.read_text())
    bundle |= {"timestamp": "2026-11-27T18:00:00+09:00", "sdk_version": "newest"}
    new = old.with_name("eval-0.json")
    new.write_text(json.dumps(bundle))
    (log,) = read_logged(tmp_path)
    assert log.settings["sdk_version"] == "newest"
    new.write_text(json.dumps(bundle | {"timestamp": "2026-11-27T18:00:00"}))
    assert "does not say which is the newest" in refused(read_logged, tmp_path)


def test_two_times_of_lighteval_are_refused(tmp_path):
    """It logs no time but those of its names, which order nothing."""
    for time in ("2026-11-27T08-20-23.376368", "2026-11-28T00-00-00"):
        source = next((LOGS / "lighteval/details/base").glob("*/*sums*"))
        target = tmp_path / "details" / "base" / time
        target.mkdir(parents=True)
        shutil.copy(source, target / f"details_local_sums|0_{time}.parquet")
    assert "does not say which is the newest" in refused(read_logged, tmp_path)


def test_reducer_of_inspect_is_a_setting(tmp_path):
    """Here the mean of the epochs counts, which a note says."""
    logs = []
    for name in ("mean", "max"):
        config = {"epochs": 2, "epochs_reducer": [name]}
        header = HEADER | {"eval": SPEC | {"config": config}}
        folder = tmp_path / name
        files = {"header": header, "samples__1_epoch_1": SCORED}
        logs.append(read_logged(of_inspect(folder, **files))[0])
    mean, other = logs
    assert mean.decisive["epochs_reducer"] != other.decisive["epochs_reducer"]
    told = "inspect reduces epochs by max; here their mean counts"
    assert any(told in note for note in other.notes)
    assert not any("reduces" in note for note in mean.notes)


@pytest.mark.parametrize(
    ("config", "other", "equal"),
    [
        ({}, {"epochs": 1, "epochs_reducer": ["mean"]}, True),
        ({"epochs": 1}, {"epochs": 1, "epochs_reducer": ["max"]}, True),
        ({"epochs": 2}, {"epochs": 2, "epochs_reducer": ["mean"]}, True),
        ({"epochs": 2}, {"epochs": 2, "epochs_reducer": ["mean", "max"]}, False),
        ({"epochs": 2}, {"epochs": 3}, False),
    ],
)
def test_usual_epochs_of_inspect_are_equal(tmp_path, config, other, equal):
    decisive = []
    for name, stated in (("a", config), ("b", other)):
        header = HEADER | {"eval": SPEC | {"config": stated}}
        files = {"header": header, "samples__1_epoch_1": SCORED}
        decisive.append(read_logged(of_inspect(tmp_path / name, **files))[0].decisive)
    assert (decisive[0] == decisive[1]) == equal


@pytest.mark.parametrize(
    ("change", "scores", "is_same_prompt"),
    [
        ({"text_post_processed": None}, True, False),
        ({"text_post_processed": ["4"]}, True, True),
        ({"truncated_tokens_count": 9}, True, False),
        ({"logprobs": [0.0] * 4, "text": []}, False, True),
        ({"logprobs": [None, -1.0], "text": []}, False, True),
        ({"logprobs": [-2.0, -1.0], "text": []}, True, True),
    ],
)
def test_responses_of_lighteval(tmp_path, change, scores, is_same_prompt):
    """Answers with their thoughts, and of a prompt that was cut, belong to other
    prompts; likelihoods of nothing judge nothing."""
    shutil.copytree(LOGS / "lighteval" / "details", tmp_path / "details")
    (file,) = (tmp_path / "details" / "base").glob("*/details_local_sums*")
    rows = pq.read_table(file).to_pylist()
    prompts = []
    for more in ({}, change):
        rows[0]["model_response"] |= more
        pq.write_table(pa.Table.from_pylist(rows), file)
        sample = next(iter(read_logged(file)[0].samples))
        prompts.append(sample.prompt)
    assert bool(sample.scores) == scores
    assert bool(sample.others) != scores
    assert (prompts[0] == prompts[1]) == is_same_prompt


def test_unset_parameters_of_lighteval_are_no_settings(tmp_path):
    shutil.copytree(LOGS / "lighteval", tmp_path, dirs_exist_ok=True)
    (file,) = (tmp_path / "results" / "base").glob("*.json")
    results, decisive = json.loads(file.read_text()), []
    for more in ({}, {"newer": None}, {"newer": 0}):
        model = results["config_general"]["model_config"]
        model["generation_parameters"] = {"seed": 1} | more
        file.write_text(json.dumps(results))
        logs = side(tmp_path / "details" / "base").decisive
        decisive.append(next(iter(logs.values()))["generation_parameters"])
    assert decisive[0] == decisive[1] != decisive[2]


def test_damaged_inspect_logs(tmp_path):
    path = tmp_path / "b.eval"
    path.write_bytes(b"no zip")
    (real,) = (LOGS / "inspect" / "base").glob("*.eval")
    content = bytearray(real.read_bytes())
    with zipfile.ZipFile(real) as archive:
        content[archive.getinfo("header.json").header_offset + 60] ^= 255
    (tmp_path / "c.eval").write_bytes(content)
    files = [path, tmp_path / "c.eval", of_inspect(tmp_path / "d")]
    files.append(of_inspect(tmp_path / "e", header=[]))
    for file in files:
        assert f"{file}: no log that inspect reads" in refused(read_logged, file)


def test_inspect_reader_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    told = refused(read_logged, LOGS / "inspect" / "base")
    assert "pip install 'resurface[logs]'" in told


def test_other_formats_are_one_line(tmp_path):
    assert "no log of lm-eval (samples_*.jsonl), inspect" in refused(side, tmp_path)
    (tmp_path / "results_1.json").write_text("{}")
    told = refused(side, tmp_path)
    assert "results without samples: repeat lm-eval with --log_samples" in told
    exported = tmp_path / "inspect.json"
    exported.write_text('{"version": 2, "eval": {}}')
    assert "run `inspect log convert --to eval`" in refused(side, exported)
    details = tmp_path / "m" / "t" / "details_x_t.parquet"
    details.parent.mkdir(parents=True)
    pq.write_table(pa.table({"full_prompt": ["q"]}), details)
    assert "column 'doc' is missing: not the details of lighteval 0.10" in refused(
        side, details
    )
    details.write_bytes(b"PAR1")
    assert "details_x_t.parquet: cannot be read" in refused(side, details)
    (tmp_path / "a.eval").touch()
    told = refused(side, tmp_path)
    assert "logs of inspect and lighteval: name those of one" in told
    shutil.copytree(LOGS / "nemo" / "base", tmp_path / "n" / "base")
    shutil.copytree(LOGS / "nemo" / "base", tmp_path / "n" / "again")
    assert "'local_sums' of 'base' twice: name" in refused(side, tmp_path / "n")
