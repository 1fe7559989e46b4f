"""Two nodes in a real Ray, and a network between them that fails: nothing is lost,
nothing is there twice, and the run ends by itself."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pandas as pd
import psutil
import pytest
import yaml

from tests.support.kills import ENGINE, Desk, check_same, family, parts, when
from tests.support.networks import HERE, OPEN, Place, lacking, two_places
from tests.support.runs import records

pytestmark = [pytest.mark.slow, pytest.mark.long]
ADDRESS = f"{HERE}:6379"
# Ray takes a silent node for lost after some 15 s, not after 60
QUICK = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
}
BALLAST = "/tmp/ray/ballast"
GONE = "its node is gone; others do its work"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    if (reason := lacking()) is not None:
        pytest.skip(reason)
    return Desk(tmp_path_factory.mktemp("desk"))


@pytest.fixture(scope="module")
def undisturbed(desk: Desk) -> pd.DataFrame:
    run = desk.directory / "undisturbed"
    desk.finish(_sweep(desk), run)
    return records(run)


def _sweep(desk: Desk, **resources: int) -> Path:
    """With the engine that starts fastest, and a shard for each item."""
    file = desk.sweep(shard_items=1, **resources)
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    quick = {"items": 2, "probes": ["greedy", "sample"], "samples": 3}
    document["tasks"][0] |= quick
    document["engine"] = {"kind": "torch"}
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


@dataclass(frozen=True)
class Machines:
    """A head and a node of a running Ray, and a sweep that uses both."""

    desk: Desk
    run: Path
    here: Place
    there: Place
    head: subprocess.Popen[bytes]
    node: subprocess.Popen[bytes]

    def start(self, place: Place) -> subprocess.Popen[bytes]:
        """Start the driver in a place."""
        program = self.desk.program
        self.desk.program = place.inside(*program)
        try:
            return self.desk.start(
                _sweep(self.desk, engines=2),
                self.run,
                variables=OPEN | {"RAY_ADDRESS": ADDRESS},
            )
        finally:
            self.desk.program = program

    @property
    def log(self) -> str:
        return self.desk.log(self.run).read_text()

    @contextmanager
    def stopped_in_a_shard(self, driver: subprocess.Popen[bytes]) -> Iterator[int]:
        """Both engines stand still within the block, the head's from its start, the
        node's in a shard. Yields the parts that are done."""
        log = self.desk.log(self.run)
        stopped = when(driver, lambda: family(self.head, ENGINE), log)
        _suspend(stopped)

        def working() -> list[psutil.Process]:
            return family(self.node, ENGINE) if parts(self.run) else []

        stopped += when(driver, working, log)
        _suspend(stopped)
        try:
            yield len(parts(self.run))
        finally:
            _resume(stopped)

    def wait_for(self, text: str, driver: subprocess.Popen[bytes]) -> None:
        when(
            driver, lambda: [text] if text in self.log else [], self.desk.log(self.run)
        )


def _suspend(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.suspend()


def _resume(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.resume()


@contextmanager
def _machines(
    desk: Desk, name: str, variables: Mapping[str, str] = QUICK
) -> Iterator[Machines]:
    as_head = ("--head", "--port=6379", "--include-dashboard=false")
    joining = f"--address={ADDRESS}"
    with two_places(desk.directory) as (here, there):
        head = here.start_ray(*as_head, "--num-cpus=4", variables=variables)
        node = there.start_ray(joining, "--num-cpus=4", variables=variables)
        yield Machines(desk, desk.directory / name, here, there, head, node)


_LISTEN = "import socket; s = socket.socket(type=2); s.bind(('', 9)); print(1, flush=True); s.settimeout(3); s.recv(9)"
_SEND = "import socket, sys; socket.socket(type=2).sendto(b'x', (sys.argv[1], 9))"


def _arrives(sender: Place, receiver: Place) -> bool:
    """Whether a packet does."""
    python = [sys.executable, "-c"]
    command = receiver.inside(*python, _LISTEN)
    with subprocess.Popen(command, stdout=PIPE, stderr=DEVNULL) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline() == b"1\n"
        with suppress(subprocess.CalledProcessError):  # what is dropped on the way out
            sender.run(*python, _SEND, receiver.address)
        return listening.wait() == 0


@pytest.mark.parametrize("hears", [True, False])
@pytest.mark.parametrize("speaks", [True, False])
def test_wire_is_cut(desk: Desk, hears: bool, speaks: bool) -> None:
    with two_places(desk.directory) as (here, there):
        there.cut(hears=hears, speaks=speaks)
        assert (_arrives(here, there), _arrives(there, here)) == (hears, speaks)
        there.heal()
        assert _arrives(here, there)
        assert _arrives(there, here)


@pytest.mark.parametrize(
    ("hears", "speaks"), [(False, False), (True, False), (False, True)]
)
def test_partition_that_stays(
    desk: Desk, undisturbed: pd.DataFrame, hears: bool, speaks: bool
) -> None:
    """Its engine works on behind the partition, and nobody takes its results."""
    with _machines(desk, f"stays-{hears}-{speaks}") as machines:
        driver = machines.start(machines.here)
        with machines.stopped_in_a_shard(driver) as done:
            machines.there.cut(hears=hears, speaks=speaks)
            _resume(family(machines.node, ENGINE))
            machines.wait_for(GONE, driver)
        assert driver.wait() == 0, machines.log
    assert len(parts(machines.run)) > done, "it was over before the cut"
    assert GONE in machines.log
    check_same(machines.run, undisturbed)
    assert not (machines.run / "tables" / "failures.csv").exists()


def test_partition_heals_after_the_verdict(
    desk: Desk, undisturbed: pd.DataFrame
) -> None:
    """The node is back while the run still goes on, with an engine that has finished
    its shards."""
    with _machines(desk, "late") as machines:
        driver = machines.start(machines.here)
        with machines.stopped_in_a_shard(driver) as done:
            machines.there.cut()
            _resume(family(machines.node, ENGINE))
            machines.wait_for(GONE, driver)
            machines.there.heal()
        assert driver.wait() == 0, machines.log
    assert len(parts(machines.run)) > done
    check_same(machines.run, undisturbed)


@pytest.mark.parametrize(("seconds", "checks"), [(5, QUICK), (25, {}), (60, {})])
def test_partition_heals_before_the_verdict(
    desk: Desk, undisturbed: pd.DataFrame, seconds: int, checks: dict[str, str]
) -> None:
    """It only takes time. By default, Ray's verdict comes after some 60 s. A cut of
    45 or 60 s may be too long: TCP waits twice as long before each try."""
    with _machines(desk, f"heals-{seconds}", checks) as machines:
        driver = machines.start(machines.here)
        with machines.stopped_in_a_shard(driver):
            machines.there.cut()
            _resume(family(machines.node, ENGINE))
            time.sleep(seconds)
            machines.there.heal()
        assert driver.wait() == 0, machines.log
        if GONE in machines.log:
            assert seconds == 60
            assert machines.node.wait() == 1  # Ray ends a node that it takes for lost
            check_same(machines.run, undisturbed)
        else:
            _check_undisturbed(machines, undisturbed)


def test_slow_link(desk: Desk, undisturbed: pd.DataFrame) -> None:
    with _machines(desk, "slow", {}) as machines:
        machines.here.slow()
        machines.there.slow()
        driver = machines.start(machines.here)
        with machines.stopped_in_a_shard(driver):
            pass
        assert driver.wait() == 0, machines.log
    _check_undisturbed(machines, undisturbed)


def test_full_disk_of_ray(desk: Desk, undisturbed: pd.DataFrame) -> None:
    """On the head no process can start then, as Ray keeps its logs there. The other
    node does it all."""
    with _machines(desk, "full") as machines:
        machines.here.run("sh", "-c", f"head --bytes=1G /dev/zero >{BALLAST} || true")
        driver = machines.start(machines.here)
        assert driver.wait() == 0, machines.log
    check_same(machines.run, undisturbed)
    assert "or Ray's disk is full" in machines.log
    assert "is given no more work" in machines.log


def _check_undisturbed(machines: Machines, undisturbed: pd.DataFrame) -> None:
    """Both nodes took part, and nothing failed."""
    check_same(machines.run, undisturbed)
    served = json.loads((machines.run / "run.json").read_text())["engine_stats"]
    assert len({row["node_id"] for row in served if row["items"]}) == 2
    assert GONE not in machines.log
    assert not (machines.run / "tables" / "failures.csv").exists()


def test_driver_is_cut_off(desk: Desk, undisturbed: pd.DataFrame) -> None:
    """From Ray's control service. The run ends with a line, and the same command
    finishes it."""
    with _machines(desk, "off") as machines:
        driver = machines.start(machines.there)
        with machines.stopped_in_a_shard(driver) as done:
            machines.there.cut()
            # an engine beside the driver would do all of this small run
            assert driver.wait() == 1, machines.log
        assert "error: the Ray cluster died (no answer for" in machines.log
        assert "the same command resumes" in machines.log.replace("\n", " ")
        assert len(parts(machines.run)) >= done
        again = machines.start(machines.here)
        assert again.wait() == 0, machines.log
    check_same(machines.run, undisturbed)
