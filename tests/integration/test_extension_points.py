"""One file brings a probe, a pruning method, a task, a table and an engine, and
takes them from YAML to the page. This module is the plugin: in the runs that it
starts, RESURFACE_PLUGINS names it, and `register_all` fills the registries. Nothing
else of the tree knows these names."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest
from torch import Tensor

from evaluator.core.records import Item
from evaluator.core.reducing import KEY, where_measured
from evaluator.engine import ENGINES
from evaluator.engine.config import EngineConfig, EngineKind
from evaluator.metrics.columns import COUNT, PERCENTAGE, REASON, TEXT, Column, Row
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.table import Table
from evaluator.metrics.tables import TABLES
from evaluator.probes import PROBES
from evaluator.probes.base import Cost, ItemProbe, Steps
from evaluator.probes.config import EvalConfig
from evaluator.probes.item import ItemRun
from evaluator.tasks import TASKS, Task
from pruning.methods import METHODS
from pruning.methods.base import ScoringMethod
from tests.support.fake import FakeEngine, FakeLM
from tests.support.runs import environment, records, resurface_apart

ITEMS = 6
VOCABULARY = 3072  # of the bundled model


class First(ItemProbe):
    """How likely the first token of the greedy answer was."""

    name = "first"
    help = "the log-probability of the first token that greedy decoding gives"
    evidence = "said"
    view = "answers"
    title = "first token"
    columns: Mapping[str, str] = {"first_logprob": "Float64"}

    def run(self, item: ItemRun) -> Steps:
        (response,) = yield [item.greedy()]
        return [
            item.record(
                self.name,
                **item.graded(response.token_ids[:1]),
                logprob=response.logprobs[0],
            )
        ]

    def cost(self, config: EvalConfig) -> Cost:
        return Cost(requests=1, generated_tokens=config.max_new_tokens)

    def reduce(self, asked: pd.DataFrame) -> pd.DataFrame:
        first = (
            asked.astype({"logprob": "Float64"}).groupby(list(KEY))[["logprob"]].first()
        )
        return where_measured(
            first.rename(columns={"logprob": "first_logprob"}),
            asked,
            self.name,
            "first_logprob",
        )


class Contrary(ScoringMethod):
    """The largest weights go: what no method should do."""

    name = "contrary"
    help = "the largest weights go"

    def score(self, weight_OI: Tensor, norm_sq_I: Tensor | None) -> Tensor:
        return -weight_OI.float().abs()


def _items(_: Path | None) -> list[Item]:
    return [
        Item(task="towns", language="english", item_id=f"t{n}", context=f"Town {n} lies on river R{n}.",
             question=f"On which river does town {n} lie?", answers=(f"R{n}",), cluster=f"t{n}")
        for n in range(ITEMS)
    ]  # fmt: skip


def _rows(inputs: Inputs) -> list[Row]:
    rows: list[Row] = []
    for subject in inputs.checkpoints:
        part = inputs.outcomes_of(subject.checkpoint, subject.task)
        known = part["first_logprob"].dropna()
        rows.append(
            {"task": subject.task, "checkpoint": subject.checkpoint, "language": "all", "n": len(known),
             "sure": float((known > -1.0).mean()) if len(known) else None, "reason": None}
        )  # fmt: skip
    return rows


SURE = Table(
    name="sure",
    title="Is the first token sure?",
    reading="The share of items whose first token has a log-probability above -1.",
    needs="the probe first",
    columns=(
        Column("task", TEXT), Column("checkpoint", TEXT), Column("language", TEXT), Column("n", COUNT),
        Column("sure", PERCENTAGE, "surely begun"), REASON,
    ),
    compute=_rows,
)  # fmt: skip


def build_toy(_: EngineConfig) -> FakeEngine:
    return FakeEngine(FakeLM(vocabulary=VOCABULARY, eos_ids=frozenset({0})).answer)


def register_all() -> None:
    PROBES.register(First())
    METHODS.register(Contrary())
    TASKS.register(Task(name="towns", help="invented towns", read_items=_items))
    TABLES.register(SURE)
    ENGINES.register(
        EngineKind(name="toy", help="a pseudo-random language model", build=build_toy)
    )


if __name__ in os.environ.get("RESURFACE_PLUGINS", ""):
    register_all()

SWEEP = """
models: {dense: bundled}
prune:
  - {method: contrary, sparsity: 0.5}
tasks:
  - {task: towns, probes: [greedy, choice, first], max_new_tokens: 4}
engine: {kind: toy}
"""


@pytest.fixture(scope="module")
def sweep_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("sweep") / "sweep.yaml"
    path.write_text(SWEEP, encoding="utf-8")
    return path


def toys():
    """The variables that make this file the only plugin."""
    path = [environment().get("PYTHONPATH"), str(Path(__file__).resolve().parents[2])]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "RESURFACE_PLUGINS": __name__,
    }


def run(*arguments, code=0):
    done = resurface_apart(*arguments, **toys())
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def finished(sweep_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "toys"
    run("sweep", sweep_file, "--out", out)
    return out


@pytest.mark.more
def test_plugin_is_listed(sweep_file, tmp_path):
    """The dry run and the lists name the toys; without the plugin they are unknown."""
    typed = [
        ["sweep", str(sweep_file), "--dry-run"],
        ["list", "tasks"],
        ["list", "probes"],
        ["list", "methods"],
    ]
    program = (
        "from launch.commands.cli import *; load_plugins(); [app(e,"
        f" standalone_mode=print('==')) for e in {typed}]"
    )
    each = [sys.executable, "-c", program]
    told = subprocess.run(
        each, env=environment() | toys(), capture_output=True, text=True, check=True
    ).stdout
    _, plan, *lists = told.split("==\n")
    assert "contrary-0.5" in plan
    assert "towns: greedy of open, choice, first" in " ".join(plan.split())
    # Two checkpoints, six items: greedy, four options and the toy's own request.
    assert f"{2 * ITEMS * (1 + 4 + 1)} requests" in plan
    assert all(
        re.search(rf"\b{name}\b", " ".join(lists))
        for name in ("first", "towns", "contrary")
    )
    unknown = resurface_apart("sweep", sweep_file, "--out", tmp_path / "out")
    assert (unknown.returncode, "unknown" in unknown.stderr) == (2, True)


@pytest.mark.more
@pytest.mark.slow
def test_plugin_fills_records_and_page(finished):
    found = records(finished)
    assert set(found["probe"]) == {"greedy", "choice", "first"}
    assert (set(found["method"].dropna()), set(found["task"])) == (
        {"contrary"},
        {"towns"},
    )
    assert set(found["engine"]) == {"fake"}
    first = found[found["probe"] == "first"]
    assert len(first) == 2 * ITEMS
    assert first["logprob"].lt(0).all()
    manifest = json.loads(
        (finished / "checkpoints" / "contrary-0.5" / "prune_manifest.json").read_text()
    )
    assert manifest["method"] == "contrary"
    assert manifest["measured_sparsity"] == pytest.approx(0.5, abs=1e-3)
    table = pd.read_csv(finished / "tables" / "sure.csv")
    assert table["checkpoint"].tolist() == ["dense", "contrary-0.5"]
    assert table["n"].tolist() == [ITEMS, ITEMS]
    page = (finished / "report" / "index.html").read_text(encoding="utf-8")
    assert "Is the first token sure?" in page
    assert "surely begun" in page
    assert re.search(r"\b\d+\.\d %", page)
    assert '"first token"' in page  # the item view's heading of the probe
