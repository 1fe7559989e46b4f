"""Which responses are judged, that each is judged once, and that verdicts survive
being interrupted and extended."""

from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from evaluator.core.errors import EngineError
from evaluator.judging.controls import controls_of
from evaluator.judging.matcher import Claim, Match
from evaluator.store import verdicts as stored
from evaluator.store.records import RecordStore, to_table
from evaluator.store.schema import CONTROLS, VERDICTS
from evaluator.store.verdicts import (
    ControlStore,
    VerdictStore,
    read_controls,
    read_fit_only,
    responses,
    write_fit_only,
)
from launch.matching import match_controls, match_parts
from tests.support.stamps import make_item, stamped
from tests.support.sweeps import refused
from tests.support.synthetic import write_run

CHECKPOINTS = ("dense", "wanda-0.6")

YES = Match(verdict=True, probability=0.9, status="ok")
FAILED = Match(verdict=None, probability=None, status="engine_error")


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path, 6, CHECKPOINTS, languages=("english", "arabic"))


class Judge:
    """Says yes to short responses, remembers what it was asked, and dies when told
    to."""

    def __init__(self, dies_after=10**6):
        self.asked: list[Claim] = []
        self._left = dies_after

    def __call__(self, pairs):
        if self._left == 0:
            raise EngineError("died")
        self._left -= 1
        self.asked += pairs
        return [
            Match(verdict=len(pair.response) < 12, probability=0.5, status="ok")
            for pair in pairs
        ]


def judged(run, judge, *, everything=False, probes=("greedy",)):
    store = VerdictStore(run, "m", "digest")
    return match_parts(
        store, responses(run, probes, everything=everything), judge, lambda what: None
    )[0]


def contents(run):
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted((run / "verdicts").rglob("*.parquet"))
    }


def test_only_what_grading_denies_is_judged_once_and_judging_all_adds_to_it(run):
    records = pq.read_table(run / "records").to_pylist()
    greedy = [
        row
        for row in records
        if row["probe"] == "greedy" and row["contains"] is not None
    ]
    few, all_ = (
        responses(run, ["greedy"], everything=everything)
        for everything in (False, True)
    )
    assert sum(map(len, all_.values())) == len(greedy)
    assert sum(map(len, few.values())) == sum(not row["contains"] for row in greedy) > 0
    more = responses(run, ["greedy", "sample"], everything=False)
    assert sum(map(len, more.values())) > sum(map(len, few.values()))
    judge = Judge()
    assert (
        judged(run, judge, probes=["greedy", "beam", "sample"])
        == len(judge.asked)
        == len(set(judge.asked))
    )
    rows = pq.read_table(run / "verdicts" / "m" / "dense" / "gazetteer.parquet")
    assert rows.schema.equals(VERDICTS)
    found = [
        each
        for part in responses(
            run, ["greedy", "beam", "sample"], everything=False
        ).values()
        for each in part
    ]
    assert len(judge.asked) == len({each.claim for each in found}) < len(found)
    for path in (run / "verdicts").rglob("*.parquet"):
        path.unlink()
    first, second = Judge(), Judge()
    judged(run, first)
    judged(run, second, everything=True)
    assert second.asked
    assert not set(first.asked) & set(second.asked)
    at_once = contents(run)
    for path in (run / "verdicts").rglob("*.parquet"):
        path.unlink()
    judged(run, Judge(), everything=True)
    assert contents(run) == at_once


def test_an_interrupted_call_goes_on_and_ends_as_an_uninterrupted_one(
    run, tmp_path_factory
):
    whole = write_run(
        tmp_path_factory.mktemp("whole"),
        6,
        CHECKPOINTS,
        languages=("english", "arabic"),
    )
    judged(whole, Judge())
    first = Judge(dies_after=1)
    with pytest.raises(EngineError):
        judged(run, first)
    assert len(contents(run)) == 1
    second = Judge()
    judged(run, second)
    assert not set(first.asked) & set(second.asked)
    assert contents(run) == contents(whole)


def test_what_failed_is_asked_again_and_what_was_judged_is_not(run):
    class Flaky(Judge):
        def __call__(self, pairs):
            return [
                FAILED,
                replace(FAILED, status="excluded"),
                *super().__call__(pairs)[2:],
            ][: len(pairs)]

    first, second, third = Flaky(), Judge(), Judge()
    many = ["greedy", "beam", "sample"]
    judged(run, first, probes=many)
    parts = len(contents(run))
    judged(run, second, probes=many)
    assert 0 < len(second.asked) <= parts  # one pair of each part had failed
    assert set(second.asked) <= set(first.asked)
    assert {row["status"] for row in pq.read_table(run / "verdicts").to_pylist()} == {
        "ok",
        "excluded",
    }
    before = contents(run)
    assert judged(run, third, probes=many) == len(third.asked) == 0
    assert contents(run) == before


def test_verdicts_of_another_matcher_of_that_name_and_damaged_files_are_named(run):
    judged(run, Judge())
    store = VerdictStore(run, "m", "other digest")
    asked = responses(run, ["greedy"], everything=False)
    told = refused(match_parts, store, asked, Judge(), lambda what: None)
    assert "matcher_digest: verdicts of another matcher named 'm'" in told
    judged(run, Judge())
    path = run / "verdicts" / "m" / "dense" / "gazetteer.parquet"
    path.write_bytes(b"PAR1")
    assert "cannot be read" in refused(judged, run, Judge())
    (run / "items" / "gazetteer.parquet").unlink()
    missing = "gazetteer.parquet: missing: a matcher needs the questions"
    assert missing in refused(responses, run, ["greedy"], everything=False)
    assert read_controls(run) is None
    ControlStore(run, "judge", "digest").write(("gazetteer",), {}).write_bytes(b"PAR1")
    assert "gazetteer.parquet: cannot be read as Parquet" in refused(read_controls, run)


def test_thinking_is_no_part_of_a_response(run):
    item = replace(make_item(), task="gazetteer", item_id="english-0001")
    record = stamped(
        item,
        "greedy",
        checkpoint="t",
        text="<think>Lima?</think> Quito. ",
        contains=False,
    )
    RecordStore(run).append("t", "gazetteer", "0", to_table([record]))
    assert (
        responses(run, ["greedy"], everything=False)["t", "gazetteer"][0].claim.response
        == "Quito."
    )


def test_what_was_said_is_read_back_and_only_the_rest_is_asked(run):
    pairs = controls_of(stored.read_questions(run, "gazetteer"), 4)
    assert {each.kind for each in pairs} == {"same", "paraphrase", "other"}
    said = {stored.control_key(each): YES for each in pairs[1:]} | {
        stored.control_key(pairs[-1]): FAILED
    }
    store = ControlStore(run, "judge", "digest")
    assert store.read(("gazetteer",)) == {}
    path = store.write(("gazetteer",), said)
    assert path == run / "controls" / "judge" / "gazetteer.parquet"
    assert pq.read_table(path).schema.equals(CONTROLS)
    assert store.read(("gazetteer",)) == said
    asked = []
    match_controls(
        store,
        {"gazetteer": pairs},
        lambda claims: asked.extend(claims) or [YES] * len(claims),
        str,
    )
    assert asked == [pairs[0].claim, pairs[-1].claim]
    assert ControlStore(run, "judge", "other weights").read(("gazetteer",)) == {}
    frame = read_controls(run)
    assert len(frame) == len(pairs)
    assert (set(frame["matcher"]), frame["verdict"].all()) == ({"judge"}, True)


def test_who_has_a_vote_is_kept_until_it_is_said_otherwise(run):
    assert not read_fit_only(run)
    write_fit_only(run, False)
    assert not (run / "controls").exists()
    write_fit_only(run, True)
    assert read_fit_only(run)
    write_fit_only(run, False)
    assert not read_fit_only(run)
    (run / "controls" / "panel.json").write_text('{"fit_only": "yes"}')
    assert "panel.json: field 'fit_only' must be true or false, is 'yes'" in refused(
        read_fit_only, run
    )
    write_fit_only(run, False)  # what was kept is not asked
    assert not read_fit_only(run)
