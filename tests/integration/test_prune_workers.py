"""Prune tasks in a real Ray: what it makes of their options, with a GPU by name only, and whom it has given a task."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from launch.run import prune_tasks
from launch.run.nodes import prune_options
from launch.run.prune_tasks import PruneTasks
from launch.sweep.config import Resources
from tests.support.ray_nodes import FIRST_GPU, gpus_by_name

pytestmark = pytest.mark.slow


@pytest.fixture
def one_gpu() -> Iterator[None]:
    with gpus_by_name(1):
        ray.init(address="local", num_cpus=1, num_gpus=1, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


def _of_this_process() -> tuple[int, str]:
    return os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.usefixtures("one_gpu")
def test_the_process_of_a_prune_task_is_gone_when_the_next_one_has_its_gpu() -> None:
    task = ray.remote(**prune_options(gpu=True))(_of_this_process)
    (first, given), (second, _) = ray.get(task.remote()), ray.get(task.remote())
    assert given == str(FIRST_GPU)
    assert first != second
    while Path(f"/proc/{first}").exists() or Path(f"/proc/{second}").exists():
        time.sleep(0.05)


@pytest.mark.usefixtures("one_gpu")
def test_a_prune_task_on_a_cpu_does_not_see_the_gpus_of_its_node() -> None:
    _, seen = ray.get(ray.remote(**prune_options(gpu=False))(_of_this_process).remote())
    assert seen == ""


@pytest.fixture
def one_cpu() -> Iterator[None]:
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("one_cpu")
def test_one_that_is_stopped_before_its_first_word_is_ended_and_what_waits_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try stops, and keeps the only CPU; the other jobs wait for that much longer than a load may take."""

    def make_checkpoint(config: object, out: Path, *_: object) -> None:
        if out.name == "stopped" and not out.exists():
            out.touch()
            os.kill(os.getpid(), signal.SIGSTOP)

    monkeypatch.setattr(prune_tasks, "make_checkpoint", make_checkpoint)
    for name in ("_ASK_SECONDS", "_LOOK_SECONDS"):
        monkeypatch.setattr(prune_tasks, name, 0.1)
    config = SimpleNamespace(absolute=lambda: None)
    names, warned = ["stopped", "first", "second"], list[str]()
    tasks = PruneTasks(
        [SimpleNamespace(name=name, path=tmp_path / name, after=None, prune=config, quantise=None) for name in names],
        log_dir=tmp_path,
        held_out={},
        free=None,
        resources=Resources(load_seconds=5),
        warn=warned.append,
    )
    done = []
    while tasks.left:
        tasks.start()
        done += [job.name for job in tasks.done(0.2)]
    assert sorted(done) == sorted(names)
    assert tasks.given_up() == []
    (line,) = warned
    assert line.startswith("stopped could not be made (no sign of progress for ")
