"""Two sides item by item: what moved, what is noise, what was set otherwise."""

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_1samp, ttest_rel
from statsmodels.stats.contingency_tables import mcnemar

from evaluator.deciding.comparison import compare, side_of_logged, side_of_run
from evaluator.metrics import Inputs, reduce_records
from evaluator.metrics.inputs import ROUNDED
from evaluator.metrics.measures import Unbounded
from evaluator.store.lm_eval import Logged, Sample
from tests.support.records import Seen, records
from tests.support.sweeps import refused
from tests.support.tables import only

BOTH_WRONG = Seen(greedy=False, choice=False)
RIGHT, WRONG = (
    Seen(greedy=True, choice=True),
    Seen(greedy=False, choice=True, said="Paris"),
)


def run(name, *seen, language="english", digest=None, **columns):
    asked = {f"{language}/{number}": each for number, each in enumerate(seen)}
    return side_of_run(
        Inputs(
            reduce_records(
                records("int4", asked, digest=digest or name).assign(**columns)
            )
        ),
        name,
    )


def test_moved_and_noise():
    """Changes in one direction moved; changes in both are noise."""
    found = compare(run("a", *[RIGHT] * 30), run("b", *[WRONG] * 12, *[RIGHT] * 18))
    row = only(found.frame, measure="open")
    assert row[["n", "only_a", "only_b", "differing"]].tolist() == [30, 12, 0, 12]
    assert (row["a"], row["b"], row["difference"]) == pytest.approx((1, 0.6, -0.4))
    assert row["difference_low"] < -0.4 < row["difference_high"] < 0
    assert row["mcnemar_p"] == pytest.approx(
        mcnemar([[18, 12], [0, 0]], exact=True).pvalue
    )
    # of two: open and choice
    assert row["holm_p"] == pytest.approx(2 * row["mcnemar_p"])
    assert row["verdict"] == "moved"
    assert only(found.frame, measure="choice")["verdict"] == "same"
    assert found.moved["measure"].tolist() == ["open", "exact_match"]
    b = run("b", WRONG, RIGHT, RIGHT, replace(WRONG, said="Rome"))
    found = compare(run("a", RIGHT, WRONG, RIGHT, WRONG, RIGHT, RIGHT), b)
    row = only(found.frame, measure="open")
    assert row[["n", "alone_a", "alone_b"]].tolist() == [4, 2, 0]
    assert row[["only_a", "only_b", "other_answer", "verdict"]].tolist() == [
        1,
        1,
        1,
        "noise",
    ]
    assert row["flip_rate"] == pytest.approx(0.5)
    assert found.moved.empty


def sides(**columns):
    """Two runs of one base and another checkpoint, which answers 8 of 30 otherwise
    under other weights."""
    found = []
    for name, seen in (("a", [RIGHT] * 30), ("b", [WRONG] * 8 + [RIGHT] * 22)):
        parts = [
            records(
                checkpoint,
                {f"english/{n}": each for n, each in enumerate(answers)},
                digest=digest,
            )
            for checkpoint, answers, digest in (
                ("dense", [RIGHT] * 30, "dense"),
                ("int4", seen, f"int4 of {name}"),
            )
        ]
        frame = pd.concat(
            [
                reduce_records(part.assign(**(columns if name == "b" else {})))
                for part in parts
            ]
        )
        found.append(side_of_run(Inputs(frame.reset_index(drop=True)), name))
    return found


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
    assert base["mcnemar_p"].tolist() == [1.0, 1.0, 1.0]
    assert base["holm_p"].isna().all()
    assert set(base["verdict"]) == {"same"}
    # a base that another engine served could differ: it counts once, since its three
    # measures are equal
    row = only(
        compare(*sides(engine_version="1")).frame, checkpoint="int4", measure="open"
    )
    assert row["holm_p"] == pytest.approx(3 * row["mcnemar_p"])
    # A second run of one model has no Holm p; its own p decides.
    a, b = (
        run("a", *[RIGHT] * 30, digest="same"),
        run("b", *[WRONG] * 12, *[RIGHT] * 18, digest="same"),
    )
    row = only(compare(a, b).frame, measure="open")
    assert pd.isna(row["holm_p"])
    assert (row["mcnemar_p"], row["verdict"]) == (pytest.approx(2 * 0.5**12), "moved")
    other = run("b", *[WRONG] * 12, *[RIGHT] * 18)
    few = only(
        compare(run("a", *[RIGHT] * 30), run("b", *[WRONG] * 6, *[RIGHT] * 24)).frame,
        measure="open",
    )
    # its own p is .03
    assert (few["holm_p"], few["verdict"]) == (pytest.approx(2 * 2 * 0.5**6), "noise")
    answers = other.answers.copy()
    answers.loc[
        (answers["measure"] == "exact_match") & (answers["item_id"] == "20"), "value"
    ] = 0.0
    row = only(
        compare(run("a", *[RIGHT] * 30), replace(other, answers=answers)).frame,
        measure="open",
    )
    # of exact_match, open and choice, the second smallest
    assert row["holm_p"] == pytest.approx(2 * row["mcnemar_p"])


def test_noise_floor_and_equal_intervals():
    sides = (
        run("a", RIGHT),
        run("b", RIGHT, pattern="2:4 + W8A8 (per channel)", base="dense"),
    )
    for found in (compare(*sides), compare(*sides[::-1])):
        assert found.notes == [f"int4: {ROUNDED}"]
    assert (
        compare(run("a", RIGHT), run("b", RIGHT, pattern="W4A16 (group 32)")).notes
        == []
    )
    # 30 items are right on the first side alone, 12 on the second alone; open, choice
    # and exact match alike.
    a, b = (
        [RIGHT] * 30 + [BOTH_WRONG] * 12 + [RIGHT] * 58,
        [BOTH_WRONG] * 30 + [RIGHT] * 70,
    )
    rows = compare(run("a", *a), run("b", *b)).frame
    assert rows["measure"].tolist() == ["open", "exact_match", "choice"]
    assert rows[["only_a", "only_b"]].drop_duplicates().to_numpy().tolist() == [
        [30, 12]
    ]
    assert rows[["difference_low", "difference_high"]].notna().all(axis=None)
    assert len(rows[["difference_low", "difference_high"]].drop_duplicates()) == 1


def test_languages_have_own_rows():
    """Items of one id in several languages stay apart."""

    def both(name, english, thai):
        seen = {
            f"{language}/{n}": each
            for language, each in (("en", english), ("th", thai))
            for n in range(20)
        }
        parts = [
            reduce_records(records("int4", seen, digest=name).assign(task=task))
            for task in "tu"
        ]
        return side_of_run(Inputs(pd.concat(parts, ignore_index=True)), name)

    frame = compare(both("a", RIGHT, RIGHT), both("b", RIGHT, WRONG)).frame
    opened = frame[(frame["measure"] == "open") & (frame["task"] == "t")]
    # of this task's two languages
    assert only(opened, language="th")["holm_p"] == pytest.approx(2 * 2 * 0.5**20)
    assert set(opened["alone_a"]) == {0}
    verdicts = dict(zip(opened["language"], opened["verdict"], strict=True))
    assert verdicts == {"all": "moved", "en": "same", "th": "moved"}
    # As XQuAD's: what a run exports is paired by language, and what names no language
    # is not paired at all.
    keys = list(product(("en", "th"), "012"))
    seen = {f"{language}/{n}": RIGHT for language, n in keys}
    mine = side_of_run(Inputs(reduce_records(records("int4", seen))), "a")
    exported = [
        (f"{language} {n}", 1.0, {"id": n, "language": language})
        for language, n in keys
    ]
    found = compare(mine, logged("m", "contains", *exported)).frame
    assert dict(zip(found["language"], found["n"], strict=True)) == {
        "all": 6,
        "en": 3,
        "th": 3,
    }
    assert "several languages have one id" in refused(
        compare, mine, logged("m", "contains", *scored(1.0, 1.0, 1.0))
    )


def test_different_settings_are_named():
    """Different prompts are counted."""
    other = {
        "dtype": "bfloat16",
        "engine_version": "1",
        "weights_digest": "f" * 64,
        "prompt_digest": "11",
    }
    found = compare(
        run("a", RIGHT, RIGHT, architecture="d1", prompt_digest="00"),
        run("b", RIGHT, RIGHT, **other, architecture="d2"),
    )
    differences = {
        "dtype": ("float32", "bfloat16"),
        "engine version": ("0", "1"),
        "weights": ("a", "f" * 12),
    }
    differences["configuration"] = ("d1", "d2")
    assert found.differences["int4", "t"] == differences
    assert only(found.frame, measure="open")["other_prompt"] == 2
    dated = [
        run(name, RIGHT, RIGHT, prompt_digest=each)
        for name, each in (("a", "00"), ("b", "11"), ("c", None))
    ]
    counts = [
        only(compare(dated[0], each).frame, measure="open")["other_prompt"]
        for each in dated
    ]
    assert counts == [0, 2, 0]  # the last has no digests
    outcomes = reduce_records(records("int4", {"english/1": RIGHT}))
    sides = []
    for version, seed in (("0.31", 0), ("0.32", 1)):
        document = {
            "provenance": {"versions": {"vllm": version}, "device": "cpu"},
            "identity": {
                "engine": {"kind": "vllm"},
                "task_settings": {"int4": {"t": {"seed": seed, "items": 9}}},
            },
        }
        sides.append(side_of_run(Inputs(outcomes, run=document), version))
    assert compare(*sides).differences["int4", "t"] == {
        "seed": ("0", "1"),
        "version of vllm": ("0.31", "0.32"),
    }
    # a run from before the setting drew any options
    settings = (
        {"seed": 0},
        {"seed": 0, "options": "alike"},
        {"seed": 0, "options": "any"},
    )
    runs = [{"identity": {"task_settings": {"int4": {"t": each}}}} for each in settings]
    old, new, paper = (side_of_run(Inputs(outcomes, run=each), "run") for each in runs)
    assert compare(old, new).differences["int4", "t"] == {"options": ("any", "alike")}
    assert compare(old, paper).differences["int4", "t"] == {}


def test_checkpoints_and_tasks_pair():
    assert (
        only(
            compare(run("a", RIGHT), run("b", RIGHT, checkpoint="fp8")).frame,
            measure="open",
        )["n"]
        == 1
    )
    told = refused(compare, run("a", RIGHT), run("b", RIGHT), {"int5": "int4"})
    assert told.startswith("a: no checkpoint 'int5' (there are: int4)")
    two = [records(name, {"english/0": RIGHT}) for name in ("x", "y")]
    side = side_of_run(Inputs(reduce_records(pd.concat(two, ignore_index=True))), "b")
    assert (
        "--pair A=B"
        in refused(compare, run("a", RIGHT), side).partition(
            "no checkpoints in common"
        )[2]
    )
    assert set(compare(run("a", RIGHT), side, {"int4": "y"}).frame["checkpoint_b"]) == {
        "y"
    }
    assert "no item in common" in refused(
        compare, run("a", RIGHT), run("b", RIGHT, language="thai")
    )
    tasks = [
        records("int4", {"english/0": RIGHT}).assign(task=name) for name in ("x", "y")
    ]
    side = side_of_run(Inputs(reduce_records(pd.concat(tasks, ignore_index=True))), "b")
    assert "no tasks in common (t; x, y); name pairs with --pair-task A=B" in refused(
        compare, run("a", RIGHT), side
    )
    assert (
        only(
            compare(run("a", RIGHT), side, task_pairs={"t": "y"}).frame, measure="open"
        )["task"]
        == "t"
    )


def logged(model, metric, *documents, filters=("none",), prompt="p"):
    """lm-eval's files of one task: the hash, score and fields of each document,
    alike under each filter."""
    samples = tuple(
        Sample(task="arc", doc_id=number, doc=fields, filter=each, answer="", prompt_hash=prompt, doc_hash=doc_hash,
               scores={metric: score})
        for each in filters for number, (doc_hash, score, fields) in enumerate(documents)
    )  # fmt: skip
    results = {
        "config": {"model": "vllm", "model_args": f"pretrained={model}"},
        "n-shot": {"arc": 5},
    }
    return side_of_logged(
        [Logged(model=model, samples={"arc": samples}, results=results)], model
    )


def scored(*scores, ids=True):
    return [
        (f"hash {number}", score, {"id": str(number)} if ids else {})
        for number, score in enumerate(scores)
    ]


def paired(found):
    row = only(found.frame, language="all")
    return row[["measure", "n", "only_a", "only_b", "verdict"]].tolist()


def test_lm_eval_pairs_by_document():
    one = logged("one", "acc", *scored(*[1.0] * 10, 0.0, ids=False))
    found = compare(
        one, logged("two", "acc", *scored(*[0.0] * 11, ids=False), prompt="q")
    )
    assert paired(found) == ["choice", 11, 10, 0, "moved"]
    assert found.differences["one", "arc"] == {
        "model_args": ("pretrained=one", "pretrained=two")
    }
    assert found.frame["other_prompt"].tolist() == [11]
    side = logged("m", "contains", *scored(0.0, 1.0, 1.0, 1.0))
    found = compare(run("a", *[RIGHT] * 4), side)
    assert paired(found) == ["open", 4, 1, 0, "noise"]
    # tokens are no hashes
    assert found.frame[["other_answer", "other_prompt"]].isna().all(axis=None)
    same = logged("m", "acc", *[("h", 1.0, {})] * 3)
    assert sorted(same.answers["item_id"]) == ["doc 0", "doc 1", "doc 2"]
    plain = logged("m", "acc", *[(name, 1.0, {"id": "x"}) for name in "hgf"])
    shared = logged(
        "m", "acc", *[(name, 1.0, {"id": "x", "cluster": "c"}) for name in "hgf"]
    )
    # the id is not one document's
    assert sorted(shared.answers["item_id"]) == ["doc 0", "doc 1", "doc 2"]
    for found in (compare(shared, plain), compare(plain, shared)):
        assert found.frame["difference_low"].isna().all()  # one context
    mine = run("a", *[RIGHT] * 3)
    single = logged(
        "m", "exact_match", *scored(1.0, 1.0, 1.0), filters=["remove_whitespace"]
    )
    assert paired(compare(mine, single))[:2] == ["exact_match", 3]
    both = logged(
        "m", "exact_match", *scored(1.0, 1.0, 1.0), filters=["none", "strict-match"]
    )
    assert compare(mine, both).frame["n"].tolist() == [3]
    two = logged(
        "m",
        "exact_match",
        *scored(1.0, 1.0, 1.0),
        filters=["strict-match", "flexible-extract"],
    )
    assert (
        "of measures of one name (choice, exact_match, open; exact_match,flex"
        in refused(compare, mine, two)
    )
    assert set(compare(two, two).frame["measure"]) == {
        "exact_match,strict-match",
        "exact_match,flexible-extract",
    }


def test_other_numbers_get_t_test():
    """It counts the items of one context as a group."""
    before, after = [0.5, 0.6, 0.4, 0.7, 0.2], [0.7, 0.9, 0.5, 1.1, 0.3]
    found = compare(
        logged("one", "bleu", *scored(*before)), logged("two", "bleu", *scored(*after))
    )
    row = only(found.frame, measure="bleu")
    assert row["t_p"] == pytest.approx(ttest_rel(before, after).pvalue)
    assert (row["difference"], row["holm_p"], row["verdict"]) == (
        pytest.approx(0.22),
        row["t_p"],
        "moved",
    )
    assert pd.isna(row["mcnemar_p"])
    # Four items of each context that moved together are one observation.
    changes = [0.1, 0.3, -0.05]
    found = Unbounded.ratio(
        np.tile(changes, 4), np.ones(12), np.tile(np.arange(3), 4)
    ).p
    assert found == pytest.approx(ttest_1samp(changes, 0).pvalue)
    assert (
        Unbounded.ratio(np.array([0.1, 0.2]), np.ones(2), np.zeros(2, dtype=np.intp)).p
        is None
    )


def posed(name, digests, *seen):
    """A run whose items, by id, asked what their digests say."""
    outcomes = reduce_records(
        records(
            "int4",
            {f"english/{item}": each for item, each in zip(digests, seen, strict=True)},
        )
    )
    rows = [("t", "english", item, item, digest) for item, digest in digests.items()]
    items = pd.DataFrame(
        rows, columns=["task", "language", "item_id", "cluster", "digest"]
    )
    return side_of_run(Inputs(outcomes, items), name)


def test_moved_items_pair_by_content():
    a = posed("a", {"0": "x", "1": "y", "2": "z"}, RIGHT, WRONG, RIGHT)
    b = posed(
        "b", {"0": "new", "1": "x", "2": "y", "3": "z"}, WRONG, RIGHT, WRONG, RIGHT
    )
    found = compare(a, b)
    row = only(found.frame, measure="open")
    assert row[["n", "alone_a", "alone_b", "differing", "verdict"]].tolist() == [
        3,
        0,
        1,
        0,
        "same",
    ]
    assert found.notes == ["t: only in b (1): 0"]
    assert set(found.differences["int4", "t"]) == {"data"}
    again = compare(a, posed("c", {"0": "x", "1": "y", "2": "z"}, RIGHT, WRONG, RIGHT))
    assert (again.notes, again.differences["int4", "t"]) == ([], {})


def test_changed_items_do_not_pair():
    ids = [str(number) for number in range(9)]
    a = posed("a", {item: f"asked {item}" for item in ids}, *[RIGHT] * 9)
    changed = {item: f"asked {item}" if int(item) < 2 else "changed" for item in ids}
    found = compare(a, posed("b", changed, *[RIGHT] * 2, *[WRONG] * 7))
    row = only(found.frame, measure="open")
    assert row[["n", "alone_a", "alone_b", "differing"]].tolist() == [2, 7, 7, 0]
    told = (
        "t: not paired, as question, context, gold answers or options changed (7): 2,"
        " 3, 4, 5, 6 and 2 more"
    )
    assert found.notes == [told]
    message = refused(
        compare, a, posed("b", dict.fromkeys(ids, "changed"), *[RIGHT] * 9)
    )
    assert "no item in common" in message
    assert "changed (9): 0, 1, 2, 3, 4 and 4 more" in message


def test_equal_questions_pair_by_id_then_order():
    a = posed("a", {"0": "x", "1": "x", "2": "x"}, RIGHT, WRONG, RIGHT)
    b = posed("b", {"1": "x", "2": "x", "3": "x"}, WRONG, RIGHT, RIGHT)
    row = only(compare(a, b).frame, measure="open")
    assert row[["n", "differing"]].tolist() == [3, 0]


def test_sides_without_digests_pair_by_id():
    a = posed("a", {"0": "x", "1": "y"}, RIGHT, RIGHT)
    for b in (run("b", RIGHT, RIGHT), logged("m", "contains", *scored(1.0, 1.0))):
        found = compare(a, b)
        assert (only(found.frame, measure="open")["n"], found.notes) == (2, [])
    exported = logged(
        "m",
        "contains",
        ("h", 1.0, {"id": "9", "digest": "x"}),
        ("g", 1.0, {"id": "1", "digest": "new"}),
    )
    found = compare(a, exported)
    assert only(found.frame, measure="open")["n"] == 1
    assert "options changed (1): 1" in found.notes[0]


def test_other_drawn_options_are_counted():
    """The items are the same, and what choice was made among is not."""
    drawn = [RIGHT, replace(RIGHT, option_texts=("g", "other", "w2", "w3"))]
    found = compare(run("a", RIGHT, RIGHT), run("b", *drawn))
    assert only(found.frame, measure="choice")["other_prompt"] == 1
    assert only(found.frame, measure="open")["other_prompt"] == 0


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_metrics_without_number_are_told(value):
    """The document is on both sides: it is not one that only A has."""
    a = logged(
        "m", "acc", *[(f"h{n}", score, {}) for n, score in enumerate((1.0, 0.0, 1.0))]
    )
    b = logged(
        "m", "acc", *[(f"h{n}", score, {}) for n, score in enumerate((1.0, value, 1.0))]
    )
    found = compare(a, b)
    assert only(found.frame, language="all")[["n", "alone_a", "alone_b"]].tolist() == [
        2,
        0,
        0,
    ]
    assert found.notes == [f"arc: choice left out (1): it is {value} for doc 1"]


def test_lm_eval_duplicates_pair_by_doc_id():
    """Two engines log every second document each; equal documents keep their scores."""
    hashes, scores = ["h", "g", "h", "h"], [1.0, 0.0, 0.0, 1.0]

    def side(name, order):
        samples = [
            Sample(task="arc", doc_id=n, doc={}, filter="none", answer=str(scores[n]), prompt_hash="p",
                   doc_hash=hashes[n], scores={"acc": scores[n]})
            for n in order
        ]  # fmt: skip
        return side_of_logged(
            [Logged(model="m", samples={"arc": tuple(samples)}, results={})], name
        )

    found = compare(side("one", (0, 1, 2, 3)), side("two", (3, 1, 2, 0)))
    assert only(found.frame, language="all")[["n", "differing"]].tolist() == [4, 0]
    assert "no sample has a metric that is a number" in refused(
        side_of_logged, [], "empty"
    )
