"""Two sides item by item: what moved, what is noise, what was set otherwise."""

from dataclasses import replace

import pandas as pd
import pytest
from scipy.stats import ttest_rel
from statsmodels.stats.contingency_tables import mcnemar

from evaluator.deciding.comparison import compare, side_of_run
from evaluator.deciding.logged import side_of_logged
from evaluator.logs.base import LoggedTask, Sample
from evaluator.metrics import Inputs, reduce_records
from tests.support.records import Seen, records
from tests.support.sweeps import refused
from tests.support.tables import only

RIGHT = Seen(greedy=True, choice=True)
WRONG = Seen(greedy=False, choice=True, said="Paris")
NUMBERS = ["n", "alone_a", "alone_b", "differing"]


def side_of(*parts, name="a", items=None, **run):
    outcomes = pd.concat(map(reduce_records, parts), ignore_index=True)
    return side_of_run(Inputs(outcomes, items, run=run), name)


def run(name, *seen, language="english", digest=None, **columns):
    asked = {f"{language}/{number}": each for number, each in enumerate(seen)}
    part = records("int4", asked, digest=digest or name)
    return side_of(part.assign(**columns), name=name)


def row_of(a, b, measure="open", **more):
    return only(compare(a, b).frame, measure=measure, **more)


def test_moved_and_noise():
    """Changes in one direction moved; changes in both are noise."""
    found = compare(run("a", *[RIGHT] * 30), run("b", *[WRONG] * 12, *[RIGHT] * 18))
    row = only(found.frame, measure="open")
    assert row[["n", "only_a", "only_b", "differing"]].tolist() == [30, 12, 0, 12]
    assert (row["a"], row["b"], row["difference"]) == pytest.approx((1, 0.6, -0.4))
    assert row["difference_low"] < -0.4 < row["difference_high"] < 0
    p = mcnemar([[18, 12], [0, 0]], exact=True).pvalue
    assert row["mcnemar_p"] == pytest.approx(p)
    assert row["holm_p"] == pytest.approx(2 * p)  # of two: open and choice
    assert only(found.frame, measure="choice")["verdict"] == "same"
    assert found.moved["measure"].tolist() == ["open", "exact_match"]
    b = run("b", WRONG, RIGHT, RIGHT, replace(WRONG, said="Rome"))
    row = row_of(run("a", RIGHT, WRONG, RIGHT, WRONG, RIGHT, RIGHT), b)
    assert row[["n", "alone_a", "alone_b"]].tolist() == [4, 2, 0]
    assert row[["only_a", "only_b", "other_answer"]].tolist() == [1, 1, 1]
    assert (row["verdict"], row["flip_rate"]) == ("noise", pytest.approx(0.5))


def sides(**columns):
    """Two runs of one base and another checkpoint, which answers 8 of 30 otherwise
    under other weights."""
    made = []
    for name, seen, more in (("a", [], {}), ("b", [WRONG] * 8, columns)):
        dense = {f"english/{n}": RIGHT for n in range(30)}
        int4 = dense | {f"english/{n}": each for n, each in enumerate(seen)}
        parts = [
            records("dense", dense, digest="dense").assign(**more),
            records("int4", int4, digest=f"int4 of {name}").assign(**more),
        ]
        made.append(side_of(*parts, name=name))
    return made


def test_holms_family():
    """The base is the same on both sides, and exact_match the same as open: two
    tests are left, open and choice."""
    frame = compare(*sides()).frame
    p = 2 * 0.5**8
    for measure in ("open", "exact_match"):
        row = only(frame, checkpoint="int4", measure=measure)
        assert (row["mcnemar_p"], row["holm_p"]) == pytest.approx((p, 2 * p))
        assert row["verdict"] == "moved"
    base = frame[frame["checkpoint"] == "dense"]
    assert set(base["mcnemar_p"]) == {1.0}
    assert base["holm_p"].isna().all()
    assert set(base["verdict"]) == {"same"}
    # a base that another engine served could differ: it counts once, since its three
    # measures are equal
    row = row_of(*sides(engine_version="1"), checkpoint="int4")
    assert row["holm_p"] == pytest.approx(3 * row["mcnemar_p"])
    # A second run of one model has no Holm p; its own p decides.
    before, after = [RIGHT] * 30, [WRONG] * 12 + [RIGHT] * 18
    row = row_of(run("a", *before, digest="same"), run("b", *after, digest="same"))
    assert pd.isna(row["holm_p"])
    assert (row["mcnemar_p"], row["verdict"]) == (pytest.approx(2 * 0.5**12), "moved")


def test_languages_have_own_rows():
    """Items of one id in several languages stay apart."""

    def both(name, thai):
        seen = {f"en/{n}": RIGHT for n in range(20)}
        seen |= {f"th/{n}": thai for n in range(20)}
        part = records("int4", seen, digest=name)
        return side_of(part.assign(task="t"), part.assign(task="u"), name=name)

    frame = compare(both("a", RIGHT), both("b", WRONG)).frame
    rows = frame[(frame["measure"] == "open") & (frame["task"] == "t")]
    # of this task's two languages
    assert only(rows, language="th")["holm_p"] == pytest.approx(2 * 2 * 0.5**20)
    assert set(rows["alone_a"]) == {0}
    verdicts = dict(zip(rows["language"], rows["verdict"], strict=True))
    assert verdicts == {"all": "moved", "en": "same", "th": "moved"}
    # what names no language is not paired at all
    unnamed = logged("m", "contains", *scored(1.0, 1.0, 1.0))
    assert "several languages have one id" in refused(
        compare, both("a", RIGHT), unnamed, task_pairs={"t": "arc"}
    )


def test_different_settings_are_named():
    """Different prompts are counted."""
    other = {"dtype": "bfloat16", "engine_version": "1", "weights_digest": "f" * 64}
    a = run("a", RIGHT, RIGHT, architecture="d1", prompt_digest="00")
    b = run("b", RIGHT, RIGHT, **other, architecture="d2", prompt_digest="11")
    found = compare(a, b)
    assert found.differences["int4", "t"] == {
        "dtype": ("float32", "bfloat16"),
        "engine version": ("0", "1"),
        "weights": ("a", "f" * 12),
        "configuration": ("d1", "d2"),
    }
    assert only(found.frame, measure="open")["other_prompt"] == 2
    part = records("int4", {"english/1": RIGHT})

    def stated(version, **settings):
        return side_of(
            part,
            provenance={"versions": {"vllm": version}, "device": "cpu"},
            identity={
                "engine": {"kind": "vllm"},
                "task_settings": {"int4": {"t": settings}},
            },
        )

    old = stated("0.31", seed=0, items=9)
    changed = compare(old, stated("0.32", seed=1, items=9)).differences["int4", "t"]
    assert changed == {"seed": ("0", "1"), "version of vllm": ("0.31", "0.32")}


def test_checkpoints_and_tasks_pair():
    """By name, by being alone, or as the user says."""
    a = run("a", RIGHT)
    assert row_of(a, run("b", RIGHT, checkpoint="fp8"))["n"] == 1
    told = refused(compare, a, run("b", RIGHT), {"int5": "int4"})
    assert told.startswith(
        "a: no checkpoint 'int5' (there are: int4); did you mean 'int4'?"
    )
    two = side_of(*(records(name, {"english/0": RIGHT}) for name in ("x", "y")))
    told = refused(compare, a, two)
    assert "no checkpoints in common" in told
    assert told.endswith("; name pairs with --pair A=B (Python: pairs={A: B})")
    found = compare(a, two, {"int4": "y"}).frame
    assert set(found["checkpoint_b"]) == {"y"}
    thai = run("b", RIGHT, language="thai")
    assert "no item in common" in refused(compare, a, thai)
    part = records("int4", {"english/0": RIGHT})
    tasks = side_of(part.assign(task="x"), part.assign(task="y"))
    assert "no tasks in common" in refused(compare, a, tasks)
    found = compare(a, tasks, task_pairs={"t": "y"}).frame
    assert only(found, measure="open")["task"] == "t"


def sample(number, content, score, fields, metric="acc", **more):
    given = {"answer": "", "prompt": "p", "content": fields.get("digest", content)}
    given["own_id"] = fields.get("id")
    given["cluster"] = fields.get("cluster")
    given["language"] = fields.get("language", "")
    given |= more
    return Sample(number=number, response="", scores={metric: score}, **given)


def log_of(model, samples, **more):
    given = {"settings": {}, "decisive": {}} | more
    log = LoggedTask(model=model, task="arc", samples=samples, **given)
    return side_of_logged([log], model)


def logged(model, metric, *documents, filters=("none",), prompt="p"):
    """The log of one task: the content, score and fields of each document, alike
    under each filter."""
    samples = []
    for name in filters:
        for number, document in enumerate(documents):
            more = {"filter": name, "prompt": prompt}
            samples.append(sample(number, *document, metric=metric, **more))
    return log_of(model, samples, settings={"model_args": f"pretrained={model}"})


def scored(*scores, ids=True):
    rows = enumerate(scores)
    return [(f"log {n}", score, {"id": str(n)} if ids else {}) for n, score in rows]


def paired(found):
    row = only(found.frame, language="all")
    return row[["measure", "n", "only_a", "only_b", "verdict"]].tolist()


def test_lm_eval_pairs_by_document():
    """And with a run by the ids of its items."""
    one = logged("one", "acc", *scored(*[1.0] * 10, 0.0, ids=False))
    two = logged("two", "acc", *scored(*[0.0] * 11, ids=False), prompt="q")
    found = compare(one, two)
    assert paired(found) == ["acc", 11, 10, 0, "moved"]
    changed = {"model_args": ("pretrained=one", "pretrained=two")}
    assert found.differences["one", "arc"] == changed
    assert found.frame["other_prompt"].tolist() == [11]
    side = logged("m", "contains", *scored(0.0, 1.0, 1.0, 1.0))
    found = compare(run("a", *[RIGHT] * 4), side)
    assert paired(found) == ["open", 4, 1, 0, "noise"]
    # tokens are no hashes
    assert found.frame[["other_answer", "other_prompt"]].isna().all(axis=None)


def test_filters_of_lm_eval():
    """A measure of a single filter is compared under its plain name."""
    mine, rows = run("a", *[RIGHT] * 3), scored(1.0, 1.0, 1.0)
    single = logged("m", "exact_match", *rows, filters=["remove_whitespace"])
    assert paired(compare(mine, single))[:2] == ["exact_match", 3]
    names = ["strict-match", "flexible-extract"]
    two = logged("m", "exact_match", *rows, filters=names)
    told = refused(compare, mine, two)
    assert (
        "of measures of one name (choice, exact_match, open; exact_match,flex" in told
    )
    found = compare(two, two).frame
    assert set(found["measure"]) == {f"exact_match,{name}" for name in names}


def test_other_numbers_get_t_test():
    before, after = [0.5, 0.6, 0.4, 0.7, 0.2], [0.7, 0.9, 0.5, 1.1, 0.3]
    one, two = (logged("m", "bleu", *scored(*side)) for side in (before, after))
    row = row_of(one, two, "bleu")
    assert row["t_p"] == pytest.approx(ttest_rel(before, after).pvalue)
    assert row["difference"] == pytest.approx(0.22)
    assert (row["holm_p"], row["verdict"]) == (row["t_p"], "moved")
    assert pd.isna(row["mcnemar_p"])


def posed(name, digests, *seen):
    """A run whose items, by id, asked what their digests say."""
    keys = [f"english/{item}" for item in digests]
    rows = [("t", "english", item, item, digest) for item, digest in digests.items()]
    columns = ["task", "language", "item_id", "cluster", "digest"]
    part = records("int4", dict(zip(keys, seen, strict=True)))
    return side_of(part, name=name, items=pd.DataFrame(rows, columns=columns))


def test_moved_items_pair_by_content():
    digests, seen = {"0": "x", "1": "y", "2": "z"}, (RIGHT, WRONG, RIGHT)
    a = posed("a", digests, *seen)
    b = posed("b", {"0": "new", "1": "x", "2": "y", "3": "z"}, WRONG, *seen)
    found = compare(a, b)
    row = only(found.frame, measure="open")
    assert row[[*NUMBERS, "verdict"]].tolist() == [3, 0, 1, 0, "same"]
    assert found.notes == ["t: only in b (1): 0"]
    assert set(found.differences["int4", "t"]) == {"data"}
    again = compare(a, posed("c", digests, *seen))
    assert (again.notes, again.differences["int4", "t"]) == ([], {})


def test_changed_items_do_not_pair():
    asked = {str(n): f"asked {n}" for n in range(9)}
    a = posed("a", asked, *[RIGHT] * 9)
    changed = dict.fromkeys(asked, "changed") | {"0": "asked 0", "1": "asked 1"}
    found = compare(a, posed("b", changed, *[RIGHT] * 2, *[WRONG] * 7))
    row = only(found.frame, measure="open")
    assert row[NUMBERS].tolist() == [2, 7, 7, 0]
    told = "t: not paired, as question, context, gold answers or options changed"
    assert found.notes == [f"{told} (7): 2, 3, 4, 5, 6 and 2 more"]


def test_equal_questions_pair_by_id_then_order():
    a = posed("a", {"0": "x", "1": "x", "2": "x"}, RIGHT, WRONG, RIGHT)
    b = posed("b", {"1": "x", "2": "x", "3": "x"}, WRONG, RIGHT, RIGHT)
    assert row_of(a, b)[["n", "differing"]].tolist() == [3, 0]


def test_sides_without_digests_pair_by_id():
    a = posed("a", {"0": "x", "1": "y"}, RIGHT, RIGHT)
    found = compare(a, logged("m", "contains", *scored(1.0, 1.0)))
    assert only(found.frame, measure="open")["n"] == 2
    assert found.notes == ["t: only a has choice, exact_match"]
    moved = ("log h", 1.0, {"id": "9", "digest": "x"})
    changed = ("log g", 1.0, {"id": "1", "digest": "new"})
    found = compare(a, logged("m", "contains", moved, changed))
    assert only(found.frame, measure="open")["n"] == 1
    assert "options changed (1): 1" in found.notes[0]


def test_other_drawn_options_are_counted():
    """The items are the same, and what choice was made among is not."""
    other = replace(RIGHT, option_texts=("g", "other", "w2", "w3"))
    a, b = run("a", RIGHT, RIGHT), run("b", RIGHT, other)
    assert row_of(a, b, "choice")["other_prompt"] == 1
    assert row_of(a, b)["other_prompt"] == 0


def test_metrics_without_number_are_told():
    """The document is on both sides: it is not one that only A has."""
    value = float("-inf")
    a = logged("m", "acc", *scored(1.0, 0.0, 1.0, ids=False))
    b = logged("m", "acc", *scored(1.0, value, 1.0, ids=False))
    found = compare(a, b)
    row = only(found.frame, language="all")
    assert row[["n", "alone_a", "alone_b"]].tolist() == [2, 0, 0]
    assert found.notes == [f"arc: acc left out (1): it is {value} for doc 1"]
