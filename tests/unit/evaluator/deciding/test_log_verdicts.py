"""The gate's verdict on two logs, and its numbers recounted in plain Python."""

import json
from dataclasses import replace

import pytest

from evaluator.deciding.comparison import compare
from evaluator.deciding.log_verdicts import document_of, judge_logs
from evaluator.deciding.logged import side_of_logged
from evaluator.deciding.policy import Policy
from evaluator.logs.base import LoggedTask, Sample
from tests.support.sweeps import refused
from tests.support.tables import only


def log_of(values, *, task="t", model="m", metric="acc", options=0, **more):
    """A log whose i-th document has the i-th value; None: a missing row."""
    samples, sample = [], more.pop("sample", {})
    for number, value in enumerate(values):
        given = {"answer": f"{value}", "response": f"{model} {value}"}
        given |= {"content": f"log {number}", "prompt": "p"} | sample
        if value is not None:
            scores = {metric: value}
            samples.append(
                Sample(number=number, scores=scores, options=options, **given)
            )
    settings = {"settings": {}, "decisive": {}, "more_is_better": {metric: True}} | more
    return LoggedTask(model=model, task=task, samples=samples, **settings)


def side(*logs):
    return side_of_logged(logs, logs[0].model)


def judged(base, candidate, **policy):
    return judge_logs(side(base), side(candidate), Policy(**policy))


def outcome(base, candidate, **policy):
    (verdict,) = judged(base, candidate, **policy).verdicts
    return verdict.outcome, verdict


RIGHT = [1.0] * 240 + [0.0] * 60


def loses(count, gains=0):
    """The answers after `count` losses and some gains."""
    return [0.0] * count + RIGHT[count:240] + [1.0] * gains + RIGHT[240 + gains :]


@pytest.mark.parametrize("options", [0, 4])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (loses(0), "PASS"),
        (loses(9, gains=2), "WARN"),
        (loses(40), "BLOCK"),
        (loses(0, gains=59), "ANOMALOUS"),
        ([*RIGHT[:290], *[None] * 10], "WARN"),
    ],
)
def test_planted_losses(values, expected, options):
    """Of open answers and of options: a log of options needs no open answers."""
    base = log_of(RIGHT, options=options)
    found, verdict = outcome(base, log_of(values, model="c", options=options))
    assert (found, verdict.measure) == (expected, "acc")
    assert verdict.checks[0].criterion.name.startswith("choice" if options else "open")
    assert len(verdict.checks) == 1


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (9, 2)])
def test_numbers_agree_with_recount(lost, gained):
    """Where nothing differs, Gaffke's bound is 1 - level^(1/n)."""
    base, candidate = side(log_of(RIGHT)), side(log_of(loses(lost, gained), model="c"))
    row = only(compare(base, candidate, {"m": "c"}).frame, language="all")
    assert row["a"] == pytest.approx(240 / 300, abs=1e-12)
    assert row["difference"] == pytest.approx((gained - lost) / 300, abs=1e-12)
    found = judge_logs(base, candidate, Policy(default={"max_flips": 9}))
    (verdict,) = found.verdicts
    (flips,) = verdict.of("open_flips")
    assert flips.value == pytest.approx((lost + gained) / 300, abs=1e-12)
    if not lost:
        (drop,) = verdict.of("open_drop")
        assert drop.high == pytest.approx(1 - 0.05 ** (1 / 300), rel=1e-12)


def test_other_numbers_have_no_flips():
    values, others = [0.5, 0.25, 1.0] * 100, [0.5, 0.5, 0.75] * 100
    base, candidate = (
        log_of(values, metric="f1"),
        log_of(others, metric="f1", model="c"),
    )
    found = judged(base, candidate, default={"max_flips": 1})
    (verdict,) = found.verdicts
    assert [check.criterion.name for check in verdict.checks] == ["open_drop"]
    assert verdict.checks[0].value == pytest.approx(0.0, abs=1e-12)
    assert "flips of said answers" in found.absent


@pytest.mark.parametrize("stating", [0, 1])
def test_either_log_states_direction(stating):
    """The name of an error without a statement, or two statements, are no verdict."""
    stated = {"more_is_better": {"wer": False}}
    values, worse = [[1 - value for value in of] for of in (RIGHT, loses(40))]
    unstated = {"more_is_better": {}}
    base, own = (unstated, stated) if stating else (stated, unstated)
    candidate = log_of(worse, metric="wer", model="c", **own)
    assert outcome(log_of(values, metric="wer", **base), candidate)[0] == "BLOCK"
    other = {"more_is_better": {"wer": True} if stating else {}}
    base = log_of(values, metric="wer", **other)
    found = judged(base, log_of(worse, metric="wer", model="c", **own))
    (failure,) = found.not_judged
    assert "whether more of it is better" in failure.reason
    assert not found.verdicts


def test_unset_is_a_setting():
    """Unless a log has no settings at all."""
    base = log_of(RIGHT, decisive={"temperature": None, "seed": None})
    other = log_of(RIGHT, model="c", decisive={"temperature": 0.9, "seed": None})
    found, verdict = outcome(base, other)
    assert found == "BLOCK"
    assert verdict.incomparable == "settings differ: temperature unset | 0.9"
    assert outcome(log_of(RIGHT), other)[0] == "PASS"


def test_policy_names_group():
    """Its tolerances are those of its tasks, and each of them is required."""
    logs, groups = [], {"mmlu": ["mmlu_law"]}
    for model, values in (("m", RIGHT), ("c", loses(40))):
        logs.append(log_of(values, task="mmlu_law", model=model, groups=groups))
    group = {"mmlu": {"tier": "advisory"}}
    (verdict,) = judged(*logs, tasks=group, required=["mmlu"]).verdicts
    assert (verdict.task, verdict.outcome) == ("mmlu_law", "WARN")


@pytest.mark.parametrize(
    "metric", ["WER", "edit-distance", "bpb", "hallucination_rate"]
)
@pytest.mark.parametrize(
    ("base", "own", "stated", "expected"),
    [
        (0.3, 0.1, {}, None),
        (0.1, 0.3, {}, None),
        (0.0, 1.0, {}, None),  # perhaps an error
        (1.0, 0.0, {}, "BLOCK"),
        (1.0, 1.0, {}, "PASS"),
        (0.1, 0.3, {"lower_is_better": True}, "BLOCK"),
        (0.3, 0.1, {"lower_is_better": True}, "ANOMALOUS"),
        (0.3, 0.1, {"higher_is_better": True}, "BLOCK"),
        (0.1, 0.3, {"higher_is_better": True, "lower_is_better": True}, None),
    ],
)
def test_no_name_states_a_direction(metric, base, own, stated, expected):
    sides = [
        log_of([value] * 200, metric=metric, model=model, more_is_better={})
        for model, value in (("m", base), ("c", own))
    ]
    found = judged(*sides, **dict.fromkeys(stated, (metric,)))
    assert [each.outcome for each in found.verdicts] == [expected] * bool(expected)
    assert len(found.not_judged) == (expected is None)
    told = refused(judged, *sides, lower_is_better=[f"{metric}s"])
    assert f"unknown metric '{metric}s'" in told


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({"all": 90, "inner": 10}, "BLOCK"),
        ({"all": 10, "inner": 90}, "PASS"),
        ({"all": 10, "middle": 90}, "PASS"),
        ({"all": 90, "inner": 90, "t": 10}, "BLOCK"),
        ({"inner": 10, "other": 90}, "in group 'inner' and in 'other'"),
    ],
)
@pytest.mark.parametrize("first", ["s", "u"])
def test_innermost_group_counts(named, expected, first):
    """Whatever stands before a task in its group."""
    groups = {"all": ["middle", "v"], "middle": [first, "inner"], "inner": ["t"]}
    groups["other"] = ["t"]
    base = log_of(RIGHT, groups=groups)
    candidate = log_of(loses(100), model="c", groups=groups)
    tasks = {name: {"max_drop": drop} for name, drop in named.items()}
    policy = {"tasks": tasks, "default": {"max_drop_language": None}}
    if " " in expected:
        assert expected in refused(judged, base, candidate, **policy)
    else:
        assert outcome(base, candidate, **policy)[0] == expected


@pytest.mark.parametrize("stating", ["m", "c"])
def test_required_group_needs_each_subtask(stating):
    """By either side's groups, and where both logs lack it."""
    groups = {"all": ["t", "inner"], "inner": ["deep"], "deep": []}
    base, own = (
        log_of(RIGHT, model=model, groups=groups if model == stating else {})
        for model in ("m", "c")
    )
    unmet = [
        each.task for each in judged(base, own, required=["all"]).verdicts if each.unmet
    ]
    assert unmet == ["deep"]


def test_rounding_is_in_range():
    values = [value * (1 + 2**-52) for value in RIGHT]
    for own in (RIGHT, [-1e-17, *RIGHT[1:]]):
        assert outcome(log_of(values), log_of(own, model="c"))[0] == "PASS"


def test_two_metrics_stay_two():
    samples = []
    for values in (RIGHT, loses(100)):
        pairs = zip(log_of(values).samples, values, strict=True)
        samples.append(
            [replace(each, scores={"acc": v, "choice": 1.0}) for each, v in pairs]
        )
    logs = [
        replace(log_of([], model=m), samples=s)
        for m, s in zip("mc", samples, strict=True)
    ]
    found = judged(*logs).verdicts
    assert {each.measure: each.outcome for each in found} == {
        "acc": "BLOCK",
        "choice": "PASS",
    }


def test_logs_of_which_nothing_is_judged():
    base, own = log_of([3.0, 20.0]), log_of([4.0, 21.0], model="c")
    compared = compare(side(base), side(own), {"m": "c"})
    told = document_of(judged(base, own), compared, Policy())
    assert told["verdict"] == "WARN"
    assert (
        told["summary"] == told["words"] == "No measure of these logs could be judged."
    )


def test_required_task_is_not_judged():
    base, own = log_of([3.0, 20.0]), log_of([4.0, 21.0], model="c")
    (verdict,) = judged(base, own, required=["t"]).verdicts
    assert verdict.outcome == "BLOCK"
    assert verdict.unmet.startswith("not judged: acc is 3 to 21")


def halves(model, *, gone):
    """Two halves that each count from 0, under two filters of which one lacks items."""
    samples = []
    for half in range(2):
        for number, value in enumerate(RIGHT[::-1]):
            for metric in ("strict", "flex"):
                if metric == "strict" and half == 0 and number in gone:
                    continue
                sample = log_of([value], metric=metric, model=model).samples[0]
                content = f"log {half} {number}"
                samples.append(replace(sample, number=number, content=content))
    return replace(log_of([], model=model), samples=samples)


def test_repeated_ids_pair_by_content():
    sides = side(halves("m", gone={1, 2})), side(halves("c", gone={2, 250}))
    found = compare(*sides, {"m": "c"})
    assert set(found.frame["verdict"]) == {"same"}
    assert list(found.frame["n"]) == [597, 600]
    assert not any("changed" in note for note in found.notes)


def test_documents_that_no_log_has_are_told():
    """Both logs end early, so no item of either is without its pair."""
    base, own = (log_of(RIGHT, model=model, documents=400) for model in ("m", "c"))
    found = compare(side(base), side(own), {"m": "c"})
    assert "t: 300 of its 400 documents count" in found.notes
    for known in (300, None, "400"):
        assert not side(log_of(RIGHT, documents=known)).notes


def test_other_prompts_never_pass():
    candidate = log_of(RIGHT, model="c")
    first, *others = candidate.samples
    other = replace(candidate, samples=[replace(first, prompt="q"), *others])
    found, verdict = outcome(log_of(RIGHT), other)
    assert found == "ANOMALOUS"
    assert verdict.anomaly.startswith("prompts differ on 1 of 300 items")


def test_changed_items_count_once():
    """Neither as a flip nor as two missing items."""
    changed = log_of(RIGHT, model="c")
    samples = [*changed.samples]
    for number in (3, 4):
        samples[number] = replace(samples[number], content="log new")
    found, verdict = outcome(log_of(RIGHT), replace(changed, samples=samples[::-1]))
    assert (found, verdict.planned, verdict.checks[0].missing) == ("WARN", 300, 2)
    assert verdict.checks[0].value == 0


def test_duplicates_are_one_context():
    """Documents with equal questions; each still counts as an item."""
    sample = {"content": "log same"}
    logs = log_of(RIGHT, sample=sample), log_of(RIGHT, model="c", sample=sample)
    found, verdict = outcome(*logs)
    assert (verdict.checks[0].n, verdict.checks[0].contexts) == (300, 1)
    assert found == "WARN"
    assert outcome(log_of(RIGHT), log_of(RIGHT, model="c"))[1].checks[0].contexts == 300


def test_what_no_sample_scores():
    """Metrics without a number of their own, and those of one side alone, are told."""
    (scored,) = log_of([1.0]).samples
    unscored = replace(scored, scores={}, others=("bleu", "ter"))
    pairs = replace(log_of([], task="u"), samples=[unscored])
    base = side(log_of(RIGHT), log_of(RIGHT, metric="f1"), pairs)
    candidate = side(log_of(RIGHT, model="c"))
    reasons = {
        each.task: each.reason
        for each in judge_logs(base, candidate, Policy()).not_judged
    }
    assert reasons == {
        "t": "f1: the candidate's log does not have it",
        "u": "samples without a number: bleu (1), ter (1)",
    }
    notes = compare(base, candidate, {"m": "c"}).notes
    assert "u: samples without a number: bleu (1), ter (1)" in notes
    assert "t: only m has f1" in notes
    told = refused(side, pairs)
    assert told.endswith("a number; u: samples without a number: bleu (1), ter (1)")


def test_policy_by_task():
    """An advisory task, a required one that is missing, and one that only the base's
    log has."""
    base = side(log_of(RIGHT), log_of(RIGHT, task="u"))
    tasks = {"t": {"max_drop": 1, "tier": "advisory"}}
    policy = Policy(tasks=tasks, required=["u"])
    found = judge_logs(base, side(log_of(loses(40), model="c")), policy)
    outcomes = {each.task: (each.outcome, each.advisory) for each in found.verdicts}
    assert outcomes == {"t": ("WARN", True), "u": ("BLOCK", False)}
    (failure,) = found.not_judged
    assert (failure.task, failure.checkpoint) == ("u", "c")


def test_identical_candidate_is_warned_of():
    """Responses count: equal scores alone say little."""
    base, same = log_of(RIGHT), log_of(RIGHT, model="m")
    found, verdict = outcome(base, same)
    assert (found, verdict.identical) == ("PASS", True)
    assert not outcome(base, log_of(RIGHT, model="c"))[1].identical
    policy = Policy()
    compared = compare(side(base), side(same))
    document = document_of(judged(base, same), compared, policy)
    assert "perhaps the compression was never applied" in document["words"]
    assert json.loads(json.dumps(document)) == document


def test_impossible_pairs_are_one_line():
    several = side(log_of(RIGHT), log_of(RIGHT, model="other"))
    told = refused(judge_logs, several, several, Policy())
    assert told == "m: logs of m, other: name those of one"
    two = side(log_of(RIGHT, task="u"), log_of(RIGHT, task="v"))
    told = refused(judge_logs, side(log_of(RIGHT)), two, Policy())
    assert told == "m and m: no common task (t; u, v)"
