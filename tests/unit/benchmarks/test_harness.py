"""Two sides, and a third one, timed in turn; what goes wrong in the process of one is one line."""

import json
import sys

import pytest

from benchmarks.harness import Agreement, Child, Peer, Side, compare


def side(name, seconds, value=1.0):
    measured = iter([100.0, *seconds])  # the warm-up is not timed
    return Side(name=name, run=lambda: {"value": value, "seconds": next(measured)})


def agree(ours, theirs):
    return Agreement(holds=ours["value"] == theirs["value"], how=f"{ours['value']} and {theirs['value']}")


def test_the_ratio_is_the_median_of_neighbours(capsys):
    ours, theirs = side("ours", [1.0, 2.0, 1.0]), side("theirs", [3.0, 4.0, 8.0])
    compare("some", ours=ours, theirs=theirs, agree=agree, rounds=3, facts=lambda: {"items": 7})
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["ratio"], told["ratio_min"], told["ratio_max"]) == (3.0, 2.0, 8.0)
    assert (told["ours_s"], told["theirs_s"], told["items"], told["agreement"]) == (1.0, 4.0, 7, "1.0 and 1.0")
    assert "peer" not in told


@pytest.mark.parametrize("ours", [None, [0.5, 0.5]])
def test_a_peer_is_held_against_ours_or_against_as_much_of_it_as_it_does(capsys, ours):
    peer = Peer(
        side=side("peer", [2.0, 4.0]),
        ours=None if ours is None else side("less", ours),
        agree=agree,
        facts=lambda: {"defaults": "its own"},
    )
    compare("some", ours=side("a", [1.0, 1.0]), theirs=side("b", [3.0, 3.0]), agree=agree, rounds=2, peer=peer)
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["ratio"] == 3.0
    assert told["peer"]["ratio"] == (3.0 if ours is None else 6.0)
    assert (told["peer"]["name"], told["peer"]["theirs_s"], told["peer"]["defaults"]) == ("peer", 3.0, "its own")


@pytest.mark.parametrize(("theirs", "peer"), [(2.0, 1.0), (1.0, 2.0)])
def test_no_ratio_where_any_side_disagrees(capsys, theirs, peer):
    third = Peer(side=side("peer", [], peer), agree=agree, facts=dict)
    with pytest.raises(SystemExit) as ended:
        compare("some", ours=side("ours", []), theirs=side("theirs", [], theirs), agree=agree, rounds=1, peer=third)
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert "ratio" not in said.out
    assert said.err == "some: no ratio: the results do not agree (1.0 and 2.0)\n"


@pytest.mark.parametrize("code", ["raise ValueError('a\\nwhy')", "print('{}', flush=True); raise ValueError('why')"])
def test_a_child_that_ends_says_why_in_one_line(code):
    with pytest.raises(SystemExit) as ended, Child("ours", [sys.executable, "-c", code]) as child:
        child.round()
    assert str(ended.value) == "ours failed with exit code 1: " + ("why" if "a\\n" in code else "ValueError: why")
