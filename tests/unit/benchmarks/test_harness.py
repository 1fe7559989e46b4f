"""Sides timed in turn, and a peer; what goes wrong in the process of one is one
line, and stops no other."""

import json
import sys

import pytest

from benchmarks.harness import Agreement, Child, Side, compare


def agree(ours, theirs):
    return Agreement(
        holds=ours["value"] == theirs["value"],
        how=f"{ours['value']} and {theirs['value']}",
    )


def side(name, seconds, value=1.0, **more):
    measured = iter([100.0, *seconds])  # the warm-up is not timed
    more = {"agree": None if name == "ours" else agree, **more}
    return Side(
        name=name, run=lambda: {"value": value, "seconds": next(measured)}, **more
    )


def told(capsys, sides, **how):
    """What `compare` says in its last line, and its exit code."""
    code = 0
    try:
        compare("some", sides, **how)
    except SystemExit as ended:
        code = ended.code
    return json.loads(capsys.readouterr().out.splitlines()[-1]), code


def test_ratio_is_median_of_neighbours(capsys):
    ours = side("ours", [1.0, 2.0, 1.0], facts=lambda: {"items": 7})
    said, code = told(
        capsys, {"ours": ours, "theirs": side("theirs", [3.0, 4.0, 8.0])}, rounds=3
    )
    assert (said["ratio"], said["ratio_min"], said["ratio_max"]) == (3.0, 2.0, 8.0)
    assert (said["ours_s"], said["theirs_s"], said["items"], said["agreement"]) == (
        1.0,
        4.0,
        7,
        "1.0 and 1.0",
    )
    assert (code, "failed" in said) == (0, False)


def ending(why):
    def run():
        raise SystemExit(why)

    return Side(name="ends", run=run, agree=agree)


def test_left_out_side_stops_no_other(capsys):
    kept = []
    sides = {
        "full": side("ours", [1.0, 1.0]),
        "eager": side("eager", [2.0, 2.0]),
        "other": side("other", [], 2.0),
        "theirs": ending("theirs failed"),
    }
    keep = lambda key, results, failed: kept.append((key, len(results), failed))  # noqa: E731
    said, code = told(capsys, sides, rounds=2, keep=keep)
    disagree = "no ratio: the results of full and other do not agree (1.0 and 2.0)"
    assert (code, said["failed"]) == (1, {"theirs": "theirs failed", "other": disagree})
    assert "ratio" not in said
    assert (said["eager"]["ratio"], said.keys() & {"other", "theirs"}) == (2.0, set())
    assert kept[:3] == [(key, 1, None) for key in ("full", "eager", "other")]
    assert kept[3:5] == [("theirs", 0, "theirs failed"), ("other", 1, disagree)]
    assert kept[5:] == [
        (key, number, None) for number in (2, 3) for key in ("full", "eager")
    ]


@pytest.mark.parametrize("code", ["raise ValueError('a\\nwhy')"])
def test_ended_child_says_why(code):
    with (
        pytest.raises(SystemExit) as ended,
        Child("ours", [sys.executable, "-c", code]) as child,
    ):
        child.round()
    assert str(ended.value) == "ours failed with exit code 1: " + (
        "why" if "a\\n" in code else "ValueError: why"
    )
