"""Shared by every test: quiet, offline, without a GPU unless a test asks for one, and no engine outside slow tests."""

import os

import hypothesis
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
if "PYTEST_XDIST_WORKER" in os.environ:  # threads that wait for each other beside other work lose more than they gain
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.support import v2
from tests.support.devices import hides_gpus, vllm_serves_cpus
from tests.support.guard import GUARD

# No test has a time limit, and each of hypothesis's examples has one of 200 ms unless it is told otherwise.
unhurried = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("unhurried", unhurried)
hypothesis.settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--runner", choices=("V1", "V2"), default="V1", help="vLLM's model runner; V2 is the GPU's")


def pytest_configure(config: pytest.Config) -> None:
    """Before anything looks for a GPU or imports vLLM, here or in a process that a test starts."""
    if config.option.runner == "V2" and v2.missing() is None:
        v2.enter()
    start = config.invocation_params.dir
    if hides_gpus(config.option.markexpr, [start / argument.partition("::")[0] for argument in config.args]):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Commands that start a whole run serve it with vLLM, whose builds for GPUs cannot do without one."""
    if "long" not in config.option.markexpr:
        later = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=later)
        items[:] = [item for item in items if item not in later]
    _select_runner(config, items)
    if vllm_serves_cpus():
        return
    for item in items:
        if item.get_closest_marker("slow") and item.path.parent.name in ("integration", "real"):
            item.add_marker(pytest.mark.skip(reason="no vLLM that serves on a CPU is installed"))


def _select_runner(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests of the runner that the option names."""
    runs_v2 = config.option.runner == "V2"
    marks = ("runners", "v2") if runs_v2 else ()
    others = [
        item
        for item in items
        if (runs_v2 and not any(map(item.get_closest_marker, marks))) or (not runs_v2 and item.get_closest_marker("v2"))
    ]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]
    why = v2.missing() if runs_v2 else None
    if why is not None:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: what the test may start."""
    GUARD.next_test(slow=any(item.get_closest_marker(mark) for mark in ("slow", "gpu")))
