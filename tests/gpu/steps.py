"""The steps of a visit, their cards, and the summary."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from benchmarks.harness import module_command
from launch.doctor.machine import Machine
from launch.sweep.models import BUNDLED_MODEL

DECISIVE = "imports"  # where it fails, no other step can work
TESTS = {
    "two-runs": "test_engine_gpu.py::test_equal_runs_do_not_mix",
    "deterministic": ("test_engine_gpu.py::test_deterministic_engine_ignores_batch"),
    "shared-gpu": "test_engine_gpu.py::test_shared_gpu_keeps_shares",
    "prune-tests": "test_prune_cuda.py",
}
TINY = ("heads-64", "heads-256", "window")  # random models that agree.py makes
_PATIENCE_ON_A_CPU = 10  # how much longer the limits are


@dataclass(frozen=True, slots=True)
class Step:
    """A process and its limit in seconds. It begins when the step `after` has passed
    and Python finds `module`."""

    name: str
    seconds: float
    command: Sequence[str]
    after: str | None = None
    module: str | None = None
    gpu: bool = False  # it needs one
    timed: bool = False  # nothing else works beside it


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """How a step ended; `reason`: why it did not pass; `at`: the second of the
    visit."""

    step: str
    state: Literal["passed", "failed", "not run", "skipped"]
    reason: str | None = None
    seconds: float = 0.0
    at: float = 0.0
    rehearsed: bool = False
    last_lines: Sequence[str] = ()


def read(out: Path, names: Sequence[str]) -> dict[str, Card]:
    """The cards that lie in `out`, by step; a file that is no card counts as none."""
    found = {}
    for name in names:
        with contextlib.suppress(OSError, ValueError, TypeError):
            found[name] = Card(**json.loads((out / f"{name}.json").read_bytes()))
    return found


def markdown(
    machine: Machine, states: Mapping[str, str], cards: Mapping[str, Card]
) -> str:
    """The summary: the machine, a row of each step, and the last lines of those that
    failed. `states`: by step, without a card."""
    lines = ["# A visit", "", "| machine | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in machine.facts]
    lines += ["", "| step | state | seconds | at | result |", "|---|---|---|---|---|"]
    details = []
    for name, state in states.items():
        card = cards.get(name)
        row = [name, state]
        if card is not None:
            said = card.reason or next(iter(card.last_lines[-1:]), "")
            row = [
                name,
                card.state,
                f"{card.seconds:.0f}",
                f"{card.at:.0f}",
                said.replace("|", r"\|"),
            ]
            details += (
                ["", f"## {name}", "", "```", *card.last_lines, "```"]
                if card.state == "failed"
                else []
            )
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join([*lines, *details, ""])


def steps(out: Path, scratch: Path, *, tiny: bool, gpu: bool) -> list[Step]:
    """The whole list, the cheapest decisive ones first. Results go to `out`, models
    to `scratch`. `tiny`: the smallest counts."""
    shape, tokens, items, samples = (
        ("tiny", 60, 4, 2) if tiny else ("0.6b", 300, 200, 128)
    )
    model = scratch / shape

    def agree(name: str, checkpoint: object, dtype: str, graphs: str) -> Step:
        command = module_command(
            "tests.gpu.agree", checkpoint, dtype, "--graphs", graphs, "--tokens", tokens
        )
        return Step(name, 220, command, after="model" if checkpoint == model else None)

    resurface = partial(module_command, "launch.commands.cli")
    bench = partial(resurface, "bench")
    prune = ("--method", "sparsegpt", "--sparsity", 0.5, "--calibration", "gazetteer")
    passes = (
        "--model",
        model,
        "--items",
        items,
        "--context-tokens",
        tokens,
        "--rounds",
        1,
        "--out",
        out / "pass",
    )
    sides = (
        ("full,piecewise,eager,theirs", "--kv-cache-gib", 4)
        if gpu
        else ("eager,theirs",)
    )
    listed = [
        Step("imports", 60, module_command("tests.gpu.libraries", "imports")),
        agree("eager", BUNDLED_MODEL, "bfloat16", "false"),
        Step(
            "model", 150, module_command("benchmarks.pruning.synthetic", shape, model)
        ),
        agree("full", BUNDLED_MODEL, "bfloat16", "full"),
        Step("plain", 120, module_command("tests.gpu.libraries", "plain")),
        Step(
            "doctor", 330, resurface("doctor", "--out", out / "doctor.md"), module="ray"
        ),
        agree("piecewise", BUNDLED_MODEL, "bfloat16", "piecewise"),
        agree("float32", BUNDLED_MODEL, "float32", "full"),
        agree("large", model, "bfloat16", "full"),
        Step(
            "prune",
            170,
            resurface(
                "prune",
                model,
                *prune,
                "--samples",
                samples,
                "--out",
                scratch / "pruned",
            ),
            after="model",
        ),
        agree("large-float32", model, "float32", "full"),
        *(
            agree(f"{name}-{graphs}", name, "bfloat16", graphs)
            for name in TINY
            for graphs in ("full", "piecewise")
        ),
        *(
            Step(name, 150, module_command("tests.gpu", f"tests/gpu/{test}"), gpu=True)
            for name, test in TESTS.items()
        ),
        Step(
            "pass",
            260,
            bench("pass", *passes, "--sides", *sides),
            after="model",
            timed=True,
        ),
        Step(
            "profile",
            90,
            module_command("tests.gpu.libraries", "profile", model, items),
            after="model",
            timed=True,
        ),
        Step(
            "demo",
            200,
            resurface("demo", "--out", out / "demo"),
            module="ray",
            timed=True,
        ),
        Step("host", 90, bench("host", "--pace", 4, "--items", items), timed=True),
    ]
    return (
        listed
        if gpu
        else [
            replace(step, seconds=_PATIENCE_ON_A_CPU * step.seconds) for step in listed
        ]
    )
