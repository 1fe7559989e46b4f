"""Whatever is killed, whenever and however work is cut: the same command ends with
an undisturbed run's records."""

import json
import os
import signal
import sys

import pytest

from evaluator.core.errors import json_text
from launch.run.directory.event_log import read_state
from tests.support.kills import (
    CHECKPOINTS,
    ENGINE,
    PRUNING,
    Desk,
    check_same,
    family,
    gone,
    of_ray,
    parts,
    when,
)
from tests.support.runs import finish, records, resurface

pytestmark = [pytest.mark.slow, pytest.mark.more]

# A driver whose silence counts as death after two seconds.
HASTY = """
from evaluator.core import lease
from evaluator.core.liveness import Pace
lease.PACE = Pace(beat_seconds=0.2, missed=10, look_seconds=0.1)
from launch.commands.cli import main
main()
"""

# A driver that takes longer to leave Ray than Ray's own handler of SIGTERM grants.
SLOW_TO_LEAVE = """
import time
from launch.run.work import cluster
keep = cluster._keep_logs
cluster._keep_logs = lambda *places: (time.sleep(4), keep(*places))
from launch.commands.cli import main
main()
"""

# A driver that SIGTERM meets within `ray.init`, once Ray's C++ side has its own
# handler; writing run.json takes longer than that grants.
STOPPED_IN_RAY = """
import os, signal, time
from ray._private import worker
from launch.run.directory.rundir import RunDirectory
connect, write = worker.connect, RunDirectory.write

def connected(*args, **kwargs):
    connect(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGTERM)

def slowly(self, state):
    time.sleep(4 if state.end and state.end.state == "interrupted" else 0)
    write(self, state)

worker.connect, RunDirectory.write = connected, slowly
from launch.commands.cli import main
main()
"""


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    made = Desk(tmp_path_factory.mktemp("desk"))
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def undisturbed(desk):
    run = desk.directory / "undisturbed"
    desk.finish(desk.sweep(), run, "--track", "mlflow")
    return records(run)


def test_driver_killed_repeatedly(desk, undisturbed, monkeypatch):
    """Interrupted while it prunes, stopped while an engine starts, killed amid the
    records; then other shards."""
    run = desk.directory / "driver"
    log, sweep = desk.log(run), desk.sweep()

    driver = desk.start(sweep, run)
    when(driver, lambda: family(driver, PRUNING), log)
    workers = family(driver, PRUNING) + family(driver, ENGINE)
    os.kill(driver.pid, signal.SIGINT)
    assert driver.wait() == 130
    assert log.read_text().splitlines()[-1] == "interrupted; the same command resumes"
    assert json.loads((run / "run.json").read_text())["state"] == "interrupted"
    assert parts(run) == []

    with monkeypatch.context() as slow:
        slow.setattr(desk, "program", [sys.executable, "-c", SLOW_TO_LEAVE])
        driver = desk.start(sweep, run)
    when(driver, lambda: family(driver, ENGINE), log)
    workers += family(driver, PRUNING) + family(driver, ENGINE)
    driver.send_signal(signal.SIGTERM)
    assert driver.wait() == -signal.SIGTERM, log.read_text()
    assert log.read_text().splitlines()[-1] == "stopped; the same command resumes"
    assert json.loads((run / "run.json").read_text())["state"] == "interrupted"

    driver = desk.start(sweep, run)
    when(driver, lambda: parts(run), log)
    driver.kill()
    assert driver.wait() == -signal.SIGKILL
    kept = {part: part.read_bytes() for part in parts(run)}
    assert 0 < len(records(run)) < len(undisturbed)
    measured = read_state(run).document["engine_stats"]

    # At once: what the dead driver left behind is in nobody's way.
    desk.finish(desk.sweep(shard_items=5, engines=2), run)
    assert gone(workers)
    check_same(run, undisturbed)
    assert {part: part.read_bytes() for part in kept} == kept
    document = json.loads((run / "run.json").read_text())
    folded = json.loads(json_text(read_state(run).document))
    assert {name: document[name] for name in folded} == folded
    rows = document["engine_stats"]
    assert measured == rows[: len(measured)]
    # 3 items may have been stored just before the kill
    assert 36 - sum(row["items"] for row in rows) in (0, 3)
    told = [
        json.loads(line)
        for line in (run / "logs" / "events.jsonl").read_text().splitlines()
    ]
    assert [(each["call"], each["state"]) for each in told if each["event"] == "end"] == [
        (1, "interrupted"), (2, "interrupted"), (4, "finished")
    ]  # fmt: skip
    assert [each["call"] for each in told if each["event"] == "took_over"] == [4]


def test_driver_stopped_while_ray_starts(desk, monkeypatch):
    run = desk.directory / "starting"
    monkeypatch.setattr(desk, "program", [sys.executable, "-c", STOPPED_IN_RAY])
    driver = desk.start(desk.sweep(), run)
    log = desk.log(run)
    assert driver.wait() == -signal.SIGTERM, log.read_text()
    assert log.read_text().splitlines()[-1] == "stopped; the same command resumes"
    assert json.loads((run / "run.json").read_text())["state"] == "interrupted"


def _without(driver, program, how, run, log):
    """A program of Ray's dies while an engine is there, and pauses: the driver ends,
    and says why."""
    for engine in when(driver, lambda: family(driver, ENGINE), log):
        engine.suspend()
    (process,) = of_ray(driver, program)
    process.kill()
    assert driver.wait() == 1, log.read_text()
    *_, last = log.read_text().splitlines()
    assert last.startswith(f"error: the local Ray died ({how}")
    assert last.endswith("the same command resumes")
    assert "Traceback" not in log.read_text()
    assert json.loads((run / "run.json").read_text())["state"] == "failed"


def test_workers_and_ray_killed(desk, undisturbed):
    """A prune task dies, an engine stops and its successor dies, and the driver goes
    on by itself. Without Ray's control service it cannot, nor without its raylet.
    Then parts are damaged, which the report refuses. The same command goes on each
    time."""
    run = desk.directory / "workers"
    log, sweep = desk.log(run), desk.sweep(stall_seconds=15)
    driver = desk.start(sweep, run)
    for process in when(driver, lambda: family(driver, PRUNING), log)[:1]:
        process.kill()
    before = when(driver, lambda: parts(run), log)
    stopped = family(driver, ENGINE)
    for process in stopped:
        process.suspend()
    # one more may have been on its way
    when(driver, lambda: parts(run)[len(before) + 1 :], log)
    assert "warning: engine 0 died (no sign of progress for" in log.read_text()
    assert len(stopped) == 1
    assert gone(stopped)
    for process in when(driver, lambda: family(driver, ENGINE), log):
        process.kill()
    when(
        driver,
        lambda: (
            [log] if "died (its process ended without a word" in log.read_text() else []
        ),
        log,
    )

    _without(driver, "gcs_server", "no answer for", run, log)
    driver = desk.start(sweep, run)
    _without(driver, "raylet", "its raylet is gone", run, log)

    damaged = sorted(parts(run))[:2]
    for part, size in zip(damaged, (0, damaged[1].stat().st_size // 2), strict=True):
        os.truncate(part, size)
    reported = " ".join(finish("report", run, code=2).stderr.split())
    assert f"{damaged[0]}: cannot be read as Parquet: " in reported
    desk.finish(sweep, run)
    assert (
        f"2 parts are damaged, and moved to {run / 'damaged'}: {damaged[0]}"
        in " ".join(log.read_text().split())
    )
    assert sorted(path.name for path in (run / "damaged").rglob("*.parquet")) == sorted(
        part.name for part in damaged
    )
    check_same(run, undisturbed)


@pytest.mark.long
def test_paused_driver_loses_its_run(desk, undisturbed, monkeypatch):
    """In the middle of its records. Another one goes on; woken up, the first stops
    and has written nothing."""
    monkeypatch.setattr(desk, "program", [sys.executable, "-c", HASTY])
    run, sweep = desk.directory / "paused", desk.sweep()
    log = desk.log(run)
    driver = desk.start(sweep, run)
    when(driver, lambda: parts(run), log)
    driver.send_signal(signal.SIGSTOP)
    paused = log.rename(desk.directory / "first.log")
    stopped = json.loads(resurface("status", run, "--json").stdout)
    assert stopped["state"] == "stale"
    assert f"(process {driver.pid} on " in stopped["why"]
    assert "is stopped" in stopped["why"]

    desk.finish(desk.sweep(shard_items=5), run)
    assert f"process {driver.pid} on" in log.read_text()
    assert "is stopped: looking for a sign of life" in log.read_text()
    check_same(run, undisturbed)

    def written():
        return {
            path: path.stat().st_mtime_ns
            for path in run.rglob("*")
            if path.is_file() and "logs" not in path.parts
        }

    before = written()
    driver.send_signal(signal.SIGCONT)
    assert driver.wait() == 1
    (error,) = [
        line for line in paused.read_text().splitlines() if line.startswith("error: ")
    ]
    gone = f"the lease is gone: this process (process {driver.pid} on "
    assert error.startswith(f"error: {run}: {gone}")
    assert "writes nothing more there" in error
    assert "Traceback" not in paused.read_text()
    assert written() == before
    assert json.loads(resurface("status", run, "--json").stdout)["state"] == "finished"


@pytest.mark.usefixtures("undisturbed")
def test_tracker_gets_the_ended_run(desk, undisturbed):
    heard = [json.loads(line) for line in desk.tracked.read_text().splitlines()]
    assert {"call": "start_run", "run_name": "undisturbed"} in heard
    sent = {each.get("artifact_path") for each in heard}
    assert {"report", "records"} <= sent
    named = {each["key"].partition("/")[0] for each in heard if "value" in each}
    assert named >= CHECKPOINTS


def test_finished_run_repeats_nothing(desk, undisturbed):
    run = desk.directory / "undisturbed"
    before = {part: part.stat().st_mtime_ns for part in parts(run)}
    desk.finish(desk.sweep(), run)
    assert {part: part.stat().st_mtime_ns for part in parts(run)} == before
    assert "starting Ray" not in desk.log(run).read_text()
    check_same(run, undisturbed)
