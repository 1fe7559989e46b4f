"""All results of a run: tables, headline, excluded items, verdicts, and the paper's numbers next to ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from evaluator.deciding.decision import Verdict
from evaluator.deciding.thresholds import thresholds_of
from evaluator.deciding.verdicts import judge
from evaluator.metrics.columns import rows_of
from evaluator.metrics.counting import left_out
from evaluator.metrics.headline import SUMMED, headline_of, headline_sentence, pooled, screened_sentence
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.published import published
from evaluator.metrics.table import FilledTable
from evaluator.metrics.tables import TABLES, compute_tables


@dataclass(frozen=True, eq=False)
class Results:
    """The numbers of a run. `left_out` is empty if everything was measured, `paper` if no setting is the paper's."""

    tables: Mapping[str, FilledTable]
    headline: pd.DataFrame
    left_out: pd.DataFrame
    paper: pd.DataFrame
    verdicts: Sequence[Verdict] = ()  # of each compressed checkpoint on each task
    screened: str = ""  # which of them stopped early

    @property
    def sentence(self) -> str:
        """The main finding, and which checkpoints stopped early."""
        return " ".join(filter(None, (headline_sentence(self.headline), self.screened)))

    @property
    def missed(self) -> str:
        """Names the checkpoints whose sparsity is not the requested one, which is part of their names."""
        column = TABLES["accuracy"].column("sparsity")
        names = ["checkpoint", "sparsity", "requested_sparsity"]
        if "accuracy" not in self.tables:
            return ""
        rows = self.tables["accuracy"].frame[names].drop_duplicates()
        found = [f"{row['checkpoint']} {column.shown(row)}" for row in rows_of(rows) if column.missed(row)]
        return f"Achieved sparsity: {'; '.join(found)}" if found else ""

    @property
    def files(self) -> dict[str, pd.DataFrame]:
        """The CSV tables, by name."""
        found = {"headline": self.headline}
        found |= {name: table.frame for name, table in self.tables.items() if not table.failed}
        if len(self.left_out):
            found["left_out"] = self.left_out
        return found if self.paper.empty else found | {"reference": self.paper}

    @property
    def failures(self) -> dict[str, str]:
        """The error of each failed table, by name."""
        return {name: table.note for name, table in self.tables.items() if table.failed}


def compute(inputs: Inputs, run: Mapping[str, Any]) -> Results:
    """All results. `run`: the content of run.json, with the settings and thresholds."""
    tables = compute_tables(inputs)
    frames = {name: table.frame for name, table in tables.items()}
    verdicts = judge(inputs, thresholds_of(run, "run.json"))
    screened = screened_sentence(frames["screening"])
    headline = headline_of({name: pooled(frames[name]) for name in SUMMED})
    paper = published(frames, run)
    return Results(tables, headline, left_out(inputs), paper, verdicts, screened)
