"""Shared by every test: quiet, offline, without a GPU unless a test asks for one,
and no engine outside slow tests."""

import itertools
import os
import sys
from collections.abc import Iterator

import hypothesis
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# threads that wait for each other beside other work lose more than they gain
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.support import v2
from tests.support.devices import hides_gpus, vllm_serves_cpus
from tests.support.guard import GUARD

# No test has a time limit, and each of hypothesis's examples has one of 200 ms unless
# it is told otherwise.
unhurried = hypothesis.settings(
    deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("unhurried", unhurried)
hypothesis.settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--runner",
        choices=("V1", "V2"),
        default="V1",
        help="vLLM's model runner; V2 is the GPU's",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Before anything looks for a GPU or imports vLLM, here or in a process that a
    test starts."""
    if config.option.runner == "V2" and v2.missing() is None:
        v2.enter()
    start = config.invocation_params.dir
    if hides_gpus(
        config.option.markexpr,
        [start / argument.partition("::")[0] for argument in config.args],
    ):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two processes more than cores, as tests wait for the processes that they
    start; memory is enough for four."""
    return min(4, len(os.sched_getaffinity(0)) + 2)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Commands that start a whole run serve it with vLLM, whose builds for GPUs
    cannot do without one."""
    runs_v2 = config.option.runner == "V2"
    due = [_is_due(item, config.option.markexpr, runs_v2=runs_v2) for item in items]
    config.hook.pytest_deselected(
        items=[item for item, kept in zip(items, due, strict=True) if not kept]
    )
    items[:] = itertools.compress(items, due)
    # files that start engines come first: no process is left with the longest one
    started = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in started)
    reason = v2.missing() if runs_v2 else None
    for item in items:
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
        elif not vllm_serves_cpus() and _starts_a_run(item):
            item.add_marker(
                pytest.mark.skip(reason="no vLLM that serves on a CPU is installed")
            )


def _is_due(item: pytest.Item, expression: str, *, runs_v2: bool) -> bool:
    """Whether the test belongs to the model runner, and to what `-m EXPRESSION`
    names."""
    marks = {mark.name for mark in item.iter_markers()}
    if "long" in marks and "long" not in expression:
        return False
    if "more" in marks and "more" not in expression:
        return False
    return bool(marks & {"runners", "v2"}) if runs_v2 else "v2" not in marks


def _starts_a_run(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None and item.path.parent.name in (
        "integration",
        "real",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: what the test may start."""
    GUARD.next_test(slow=any(item.get_closest_marker(mark) for mark in ("slow", "gpu")))


@pytest.fixture
def any_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints of this test hold a few tensors of no model."""
    from evaluator.checkpoints import info
    from evaluator.checkpoints.fit import Fit

    monkeypatch.setattr(info, "check_fit", lambda *_, **__: Fit())


@pytest.fixture(autouse=True)
def text_on_stdout() -> Iterator[None]:
    """A command with --json sends its text to stderr, for the rest of its process."""
    yield
    if (terminal := sys.modules.get("launch.commands.terminal")) is not None:
        terminal.console.stderr = False
