"""Which responses are judged, that each is judged once, and that verdicts survive
being interrupted and extended."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from evaluator import open_run
from evaluator.core.errors import ResurfaceError
from evaluator.judging.matcher import Claim
from evaluator.store.reading import read_controls
from evaluator.store.records import to_table
from evaluator.store.schema import VERDICTS
from evaluator.store.verdicts import Match, Verdicts, control_pairs, responses
from tests.support.judging import answer
from tests.support.stamps import make_item, stamped
from tests.support.sweeps import refused
from tests.support.synthetic import store_part, write_run

CHECKPOINTS = ("dense", "wanda-0.6")
MANY = ["greedy", "beam", "sample"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path, 6, CHECKPOINTS, languages=("english", "arabic"))


def short(claim: Claim) -> float:
    return 1.0 if len(claim.response) < 12 else -1.0


def opened(
    run: Path,
    probes: Sequence[str] = ("greedy",),
    everything: bool = False,
    digest: str = "d",
) -> Verdicts:
    return Verdicts(run, "m", digest, responses(run, probes, everything=everything))


def judge(run: Path, **wanted: object) -> set[Claim]:
    """Judge all that is left; returns it."""
    verdicts = opened(run, **wanted)
    answer(verdicts, short)
    verdicts.close()
    return set(verdicts.claims)


def contents(run: Path) -> dict[Path, bytes]:
    paths = (run / "verdicts").rglob("*.parquet")
    return {path.relative_to(run): path.read_bytes() for path in paths}


def test_denied_responses_are_judged(run: Path) -> None:
    """`everything` adds those that contain a gold answer."""
    records = open_run(run).records().to_dict("records")
    graded = [row for row in records if row["contains"] is not None]
    greedy = [row for row in graded if row["probe"] == "greedy"]
    few = responses(run, ["greedy"], everything=False)
    assert set(few) == {(name, "gazetteer") for name in CHECKPOINTS}
    denied = [row for row in greedy if not row["contains"]]
    assert sum(map(len, few.values())) == len(denied) > 0
    every = responses(run, ["greedy"], everything=True)
    assert sum(map(len, every.values())) == len(greedy)


def test_equal_claims_are_judged_once(run: Path) -> None:
    wanted = responses(run, MANY, everything=False)
    claims = [claim for rows in wanted.values() for claim in rows.values()]
    asked = opened(run, MANY).claims
    assert len(asked) == len(set(claims)) < len(claims)
    assert set(asked) == set(claims)
    judge(run, probes=MANY)
    path = run / "verdicts" / "m" / "dense" / "gazetteer.parquet"
    assert pq.read_table(path).schema.equals(VERDICTS)
    verdicts = opened(run, MANY)
    assert verdicts.claims == ()
    for file, rows in wanted.items():
        for key, claim in rows.items():
            assert verdicts.rows[file][key] == Match(short(claim) > 0, "ok")


def test_later_call_adds_verdicts(run: Path) -> None:
    """In two calls or in one: the files are the same."""
    first = judge(run)
    second = judge(run, everything=True)
    assert second
    assert not first & second
    in_two = contents(run)
    for path in in_two:
        (run / path).unlink()
    judge(run, everything=True)
    assert contents(run) == in_two


def test_interrupted_judging_goes_on(run: Path) -> None:
    judge(run)
    whole = contents(run)
    for path in whole:
        (run / path).unlink()
    first = opened(run)
    half = first.claims[: len(first.claims) // 2]
    answer(first, short, half)
    first.close()
    with pytest.raises(ResurfaceError, match="after the judging had ended"):
        answer(first, short, half)
    assert judge(run) == set(first.claims) - set(half)
    assert contents(run) == whole


def test_failed_claims_are_judged_again(run: Path) -> None:
    first = opened(run)
    fails = first.claims[0]
    assert not first.measured("")
    answer(first, lambda claim: None, [fails])
    assert not first.measured("")
    answer(first, short, first.claims[1:])
    assert first.measured("")
    assert "on 1 the engine failed: the same command repeats them" in first.summary
    before = contents(run)
    again = opened(run)
    assert again.claims == (fails,)
    answer(again, short)
    assert contents(run) != before
    assert opened(run).claims == ()


def test_control_pairs_are_kept_apart(run: Path) -> None:
    """The summary counts responses alone."""
    assert read_controls(run) is None
    wanted = responses(run, ["greedy"], everything=False)
    verdicts = Verdicts(run, "m", "d", control_pairs() | wanted)
    answer(verdicts, short)
    frame = read_controls(run)
    assert frame is not None
    assert (set(frame["matcher"]), len(frame)) == ({"m"}, 60)
    count = sum(map(len, wanted.values()))
    assert f"of {count} responses with a verdict " in verdicts.summary


def test_unusable_verdicts_are_named(run: Path) -> None:
    """Those of another matcher with the name, damaged ones, and a lost question."""
    judge(run)
    other = refused(opened, run, digest="other")
    assert "matcher_digest: verdicts of another matcher named 'm'" in other
    path = run / "verdicts" / "m" / "dense" / "gazetteer.parquet"
    path.write_bytes(b"PAR1")
    assert "cannot be read" in refused(opened, run)
    (run / "items" / "gazetteer.parquet").unlink()
    missing = "gazetteer.parquet: missing: a matcher needs the questions"
    assert missing in refused(responses, run, ["greedy"], everything=False)


def test_thinking_is_no_response(run: Path) -> None:
    item = replace(make_item(), task="gazetteer", item_id="english-0001")
    text = "<think>Lima?</think> Quito. "
    record = stamped(item, "greedy", checkpoint="t", text=text, contains=False)
    store_part(run, "t", "gazetteer", to_table([record]))
    wanted = responses(run, ["greedy"], everything=False)
    (claim,) = wanted["t", "gazetteer"].values()
    assert claim.response == "Quito."
