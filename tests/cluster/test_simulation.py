"""A whole sweep through the real driver, with engines that are only pretended:
whoever dies, the records are all there, each once, and as they would have been."""

import errno
import itertools
import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from evaluator.core import lease
from evaluator.core.errors import InputError, json_text
from evaluator.store.cells import Cells
from launch.run.decide.assignments import Outcome
from launch.run.directory.event_log import read_state
from launch.run.directory.lock import STOP
from launch.run.events import Advanced, Event
from launch.run.state import RunState
from launch.status import read_status
from tests.cluster.answers import Answers
from tests.cluster.pretended_ray import Deaths, PretendedRay
from tests.cluster.simulation import (
    BASE,
    Size,
    again,
    call,
    fault_of,
    made_up,
    mistakes,
    questions_of,
    simulate,
)

SIZE = Size(engines=8, checkpoints=20, items=40, shard_items=10)
PREPARED = made_up(SIZE)
DAY = 86400.0
SHARDS = SIZE.checkpoints * SIZE.items // SIZE.shard_items


@pytest.fixture(scope="module")
def answers() -> Answers:
    return Answers(questions_of(PREPARED))


def _ray(answers: Answers, deaths: Deaths) -> PretendedRay:
    return PretendedRay(nodes=4, gpus=2, answers=answers, deaths=deaths)


def test_mistakes_are_found(answers: Answers, tmp_path: Path) -> None:
    simulate(PREPARED, _ray(answers, Deaths()), tmp_path)
    assert mistakes(PREPARED, answers, tmp_path) == {}
    keys = {cell.checkpoint: cell.key for cell in Cells(tmp_path)}
    folder = tmp_path / "records" / keys[BASE]
    first, second, third, _ = sorted(folder.glob("*.parquet"))
    first.unlink()
    # an item's first record again
    pq.write_table(pq.read_table(second).slice(0, 1), folder / "more.parquet")
    third.replace(tmp_path / "records" / keys[PREPARED.jobs[1].name] / "part-9.parquet")
    assert mistakes(PREPARED, answers, tmp_path) == {
        "missing": 20,
        "twice": 11,
        "different": 2,
    }


def _whole(answers: Answers, run: Path, outcome: Outcome) -> bool:
    """Whether a run has come to its good end, nothing missing and nothing twice."""
    status = read_status(run)
    told = (status.state, status.done, status.count("done"))
    ended = told == ("finished", SIZE.checkpoints * SIZE.items, SIZE.checkpoints)
    left_over = [*run.rglob("*.writing"), *(run / "records").rglob(".*")]
    return (
        ended
        and outcome.failures == ()
        and mistakes(PREPARED, answers, run) == {}
        and not left_over
    )


def test_damaged_parts_are_made_again(answers: Answers, tmp_path: Path) -> None:
    """Cut off, empty, a bit that changed, of another schema: of a finished run, the
    base's among them."""
    simulate(PREPARED, _ray(answers, Deaths()), tmp_path)
    parts = sorted((tmp_path / "records").rglob("*.parquet"))
    damaged = {path: path.read_bytes() for path in parts[:: len(parts) // 7]}
    for number, (path, content) in enumerate(damaged.items()):
        # within values: a flipped bit of a page's statistics changes nothing that is
        # read
        within = len(content) // 3
        flipped = bytearray(content)
        flipped[within] ^= 16
        path.write_bytes([content[:within], b"", bytes(flipped)][number % 3])
    other = parts[1]
    pq.write_table(pq.read_table(other).drop_columns(["status"]), other)
    cost = simulate(PREPARED, _ray(answers, Deaths()), tmp_path)
    assert cost.outcome.items == (len(damaged) + 1) * SIZE.shard_items
    assert _whole(answers, tmp_path, cost.outcome)
    aside = {path.parts[-2:] for path in (tmp_path / "damaged").rglob("*.parquet")}
    assert aside == {path.parts[-2:] for path in (*damaged, other)}


def test_deaths_change_no_record(
    answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock jumps by a day, forwards and backwards, at every look."""
    real, jump = time.time, itertools.cycle((0.0, DAY, -DAY))
    monkeypatch.setattr(time, "time", lambda: real() + next(jump))
    ray = _ray(answers, Deaths(actors=6, nodes=4, within=SHARDS, seed=1))
    cost = simulate(PREPARED, ray, tmp_path)
    assert ray.died["actors"] + ray.died["nodes"] == 10
    assert ray.died["nodes"] > 0
    assert cost.outcome.items == SIZE.checkpoints * SIZE.items
    assert _whole(answers, tmp_path, cost.outcome)
    assert cost.outcome.seconds < DAY


@pytest.mark.parametrize("moment", [0, 50])
def test_run_json_follows_from_the_events(
    answers: Answers, tmp_path: Path, moment: int
) -> None:
    """After each one: also a driver that is killed there leaves all that it knew. The
    next call goes on from it."""
    killed, states = [0], list[RunState]()

    def compare(event: Event, state: RunState) -> None:
        states.append(state)
        if event.logged and len(states) % 9 == 0 and (tmp_path / "run.json").exists():
            assert read_state(tmp_path).document == state.document
        if isinstance(event, Advanced) and moment:
            killed[0] += 1
            if killed[0] == moment:
                unheld = shutil.ignore_patterns(lease.FOLDER)
                shutil.copytree(tmp_path, tmp_path / "copy", ignore=unheld)

    deaths = Deaths(actors=6, nodes=4, within=SHARDS, seed=2)
    simulate(PREPARED, _ray(answers, deaths), tmp_path, compare)
    run = tmp_path / "copy" if moment else tmp_path
    before = read_state(run).document["engine_stats"]
    simulate(PREPARED, _ray(answers, Deaths()), run)
    written, state = json.loads((run / "run.json").read_text()), read_state(run)
    told = json.loads(json_text(state.document))
    assert {name: written[name] for name in told} == told
    rows = written["engine_stats"]
    assert rows[: len(before)] == before
    lost = SIZE.checkpoints * SIZE.items - sum(row["items"] for row in rows)
    # of each engine, what was stored just before the kill is not counted yet
    assert 0 <= lost <= SIZE.engines * SIZE.shard_items * bool(moment)
    assert (written["state"], written["failures"]) == ("finished", [])


@pytest.mark.parametrize("engines", [2, 3, 4])
def test_engines_that_share_gpus_change_no_record(
    answers: Answers, tmp_path: Path, engines: int
) -> None:
    """With deaths of engines and nodes; the first engine of a GPU and others, which do
    most of the work."""
    size = replace(SIZE, engines=4)
    prepared = made_up(size, engines_per_gpu=engines)
    deaths = Deaths(actors=6, nodes=2, within=SHARDS, seed=engines)
    ray = PretendedRay(
        nodes=4, gpus=2, answers=answers, deaths=deaths, pace=25.0, beside=1000.0
    )
    cost = simulate(prepared, ray, tmp_path)
    assert ray.died["actors"] + ray.died["nodes"] == 8
    assert cost.outcome.items == SIZE.checkpoints * SIZE.items
    assert mistakes(prepared, answers, tmp_path) == {}
    engines_seen = {
        row["engine"]
        for row in json.loads((tmp_path / "run.json").read_text())["engine_stats"]
    }
    assert len(engines_seen) > 4


NO_SPACE = "no space left on the device; free some and run the same command"
READ_ONLY = "cannot write there: Read-only file system"


@pytest.mark.parametrize(
    ("step", "number", "said"),
    [
        ("fsync", errno.ENOSPC, NO_SPACE),
        ("open", errno.EROFS, READ_ONLY),
        ("replace", errno.EROFS, READ_ONLY),
    ],
)
def test_full_disk_ends_and_resumes(
    answers: Answers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    number: int,
    said: str,
) -> None:
    """From the fortieth file on, until somebody mends it: not a byte more, of
    whatever file."""
    files = itertools.count()
    place = os if step == "fsync" else Path
    real = getattr(place, step)

    def broken(target: Any, *given: Any, **more: Any) -> Any:
        if step == "open" and "w" not in "".join(given[:1]):
            return real(target, *given, **more)
        if next(files) >= 40:
            if step == "fsync":
                os.ftruncate(target, 4)  # what there was room for
            raise OSError(number, os.strerror(number))
        return real(target, *given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(place, step, broken)
        with pytest.raises(InputError) as refused:
            simulate(PREPARED, _ray(answers, Deaths()), tmp_path)
    assert str(refused.value).endswith(said)
    assert "\n" not in str(refused.value)
    # the driver's process has ended with that line
    monkeypatch.setattr(lease, "sight", lambda owner: "gone")
    parts = list((tmp_path / "records").rglob("*.parquet"))
    assert 0 < len(parts) < SHARDS
    kept = {path: path.read_bytes() for path in parts}
    assert all(pq.read_metadata(path).num_rows for path in kept)
    cost = simulate(PREPARED, _ray(answers, Deaths()), tmp_path)
    assert cost.outcome.items == (SHARDS - len(parts)) * SIZE.shard_items
    assert {path: path.read_bytes() for path in kept} == kept
    assert _whole(answers, tmp_path, cost.outcome)


def test_request_stops(answers: Answers, tmp_path: Path) -> None:
    def ask(event: Event, _: object) -> None:
        if isinstance(event, Advanced):
            (tmp_path / STOP).touch()

    ray = PretendedRay(nodes=4, gpus=2, answers=answers, deaths=Deaths(), pace=25.0)
    with pytest.raises(KeyboardInterrupt):
        simulate(PREPARED, ray, tmp_path, ask)
    before = read_status(tmp_path)
    assert before.state == "interrupted"
    assert 0 < before.done < SIZE.checkpoints * SIZE.items
    # the file STOP, which is still there, does not end the next call
    cost = simulate(PREPARED, _ray(answers, Deaths()), tmp_path)
    assert cost.outcome.items == SIZE.checkpoints * SIZE.items - before.done
    assert _whole(answers, tmp_path, cost.outcome)


@pytest.mark.parametrize(
    "seeds",
    [range(8), range(8, 16), pytest.param(range(2000), marks=pytest.mark.long)],
    ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}",
)
def test_bursts_of_failures_lose_nothing(tmp_path: Path, seeds: range) -> None:
    """Dead and hung engines, lost nodes, engines out of reach: what is missing has a
    reason, and the next call does exactly that."""
    for seed in seeds:
        _, fault = fault_of(seed, tmp_path / str(seed))
        assert not fault, f"{fault}; {again(seed)} repeats it"


@pytest.mark.parametrize("moment", [0, 30])
def test_all_other_nodes_at_once(tmp_path: Path, moment: int) -> None:
    deaths = Deaths()
    deaths._planned[moment] = "nodes"
    ended = call(moment, deaths, tmp_path)
    assert ended.died["nodes"] == 2
    assert (ended.mistakes, ended.given_up) == ({}, ())


def test_seed_repeats_its_execution(tmp_path: Path) -> None:
    calls = [fault_of(9, tmp_path / name)[0] for name in ("one", "two")]
    assert calls[0] == calls[1]
    assert fault_of(4, tmp_path / "other")[0].trace != calls[0].trace
    assert calls[0].seconds > 20  # virtual ones: an engine hangs
