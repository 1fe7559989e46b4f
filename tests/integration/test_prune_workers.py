"""Prune tasks in a real Ray: what it makes of their options, with a GPU by name only."""

import os
import time
from pathlib import Path

import pytest
import ray

from launch.run.decide.nodes import prune_options
from tests.support.ray_nodes import FIRST_GPU, gpus_by_name

pytestmark = pytest.mark.slow


@pytest.fixture
def one_gpu():
    with gpus_by_name(1):
        ray.init(address="local", num_cpus=1, num_gpus=1, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


def _of_this_process():
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
