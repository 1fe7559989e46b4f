"""Records -> tables, as pure functions.

    outcomes = pd.concat([reduce_records(part) for part in parts])   # parts: records of one checkpoint and task each
    tables = compute_tables(outcomes, items)                         # items: optional, gives the clusters of intervals
    tables["fates"].frame

Only outcomes (one small row per checkpoint, item and format) are held in memory, never the records of a sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pandas as pd

from evaluator.metrics.accuracy import accuracy
from evaluator.metrics.agreement import matching
from evaluator.metrics.calibration import calibration
from evaluator.metrics.fates import fates
from evaluator.metrics.fertility import fertility
from evaluator.metrics.formats import CANDIDATE_FORMATS, candidates, one_shot
from evaluator.metrics.gaps import ladder, pr_gap
from evaluator.metrics.hard_distractors import hard_distractors
from evaluator.metrics.headline import headline_of, headline_sentence
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.left_out import left_out
from evaluator.metrics.outcomes import empty_outcomes, reduce_records
from evaluator.metrics.perplexity import perplexity
from evaluator.metrics.ranks import rank
from evaluator.metrics.recovery import recovery, recovery_seeds
from evaluator.metrics.reference import reference

__all__ = [
    "TABLES",
    "Inputs",
    "Table",
    "compute_tables",
    "empty_outcomes",
    "headline_of",
    "headline_sentence",
    "headline_table",
    "left_out",
    "reduce_records",
    "reference",
]

TABLES: Mapping[str, Callable[[Inputs], pd.DataFrame]] = MappingProxyType(
    {
        "accuracy": accuracy,
        "fates": fates,
        "ladder": ladder,
        "recovery": recovery,
        "rank": rank,
        "pr_gap": pr_gap,
        "candidates": candidates,
        "hard_distractors": hard_distractors,
        "recovery_seeds": recovery_seeds,
        "one_shot": one_shot,
        "calibration": calibration,
        "fertility": fertility,
        "perplexity": perplexity,
        "matching": matching,
    }
)

_NEEDS: Mapping[str, str] = MappingProxyType(
    {
        "accuracy": "the probe greedy or choice on any checkpoint",
        "fates": "the probes greedy and choice on a dense checkpoint and on a pruned one that names it as its base",
        "ladder": "the probes greedy and choice, and the formats open and shown, on a checkpoint and its base",
        "recovery": "the probe beam or sample",
        "rank": "the probe rank",
        "pr_gap": "the probes greedy and choice on a checkpoint and its base",
        "candidates": "the formats open, distractors_only, unrelated and shown with the probe greedy",
        "hard_distractors": "the probes choice and hard_choice, and greedy for the dissociation rates",
        "one_shot": "the formats open_capped and one_shot with the probe greedy, on a checkpoint and its base",
        "calibration": "the probes greedy and choice on a pruned checkpoint that was calibrated",
        "recovery_seeds": "the probes greedy and sample, the latter under at least two run seeds",
        "fertility": "the probe choice",
        "perplexity": "the probe perplexity on a task text:FILE",
        "matching": "the probe greedy and a matcher model's verdicts: run resurface match RUN --matcher CHECKPOINT",
    }
)


@dataclass(frozen=True, eq=False)
class Table:
    """One table of the report.

    `note` says what to run when nothing could be computed, `lacks` what to run for the parts that are missing; both
    are empty when all is there.
    """

    name: str
    frame: pd.DataFrame
    note: str
    lacks: str = ""


def compute_tables(
    outcomes: pd.DataFrame, items: pd.DataFrame | None = None, verdicts: pd.DataFrame | None = None
) -> dict[str, Table]:
    """Every table, in the report's order. A table without its inputs is empty and says what it needs."""
    inputs = Inputs(outcomes, items, verdicts)
    tables = {}
    for name, compute in TABLES.items():
        frame = compute(inputs)
        note = _note(name, frame)
        tables[name] = Table(name, frame, note, "" if note else _lacks(name, frame))
    return tables


def headline_table(outcomes: pd.DataFrame, items: pd.DataFrame | None = None) -> pd.DataFrame:
    """One row per checkpoint and task: see `headline_of`, which takes tables that are already computed."""
    inputs = Inputs(outcomes, items)
    return headline_of({name: TABLES[name](inputs) for name in ("accuracy", "fates", "recovery", "rank", "pr_gap")})


def _note(name: str, frame: pd.DataFrame) -> str:
    if frame.empty:
        return f"No records for this table: it needs {_NEEDS[name]}."
    if not frame["n" if "n" in frame else "n_max"].fillna(0).gt(0).any():
        reasons = "; ".join(dict.fromkeys(frame["reason"].dropna().astype(str)))
        return f"Nothing could be computed: {reasons}. It needs {_NEEDS[name]}."
    return ""


def _lacks(name: str, frame: pd.DataFrame) -> str:
    """What a table that has records still lacks of its columns or kinds of rows."""
    told: list[str] = []
    for column, wanted in _PARTS.get(name, {}).items():
        present = set(frame.loc[frame["n"] > 0, column].dropna().astype(str))
        told += [what for value, what in wanted.items() if value not in present]
    told += [what for column, what in _COLUMNS.get(name, {}).items() if frame[column].isna().all()]
    reasons = [reason for whole in frame["reason"].dropna().unique() for reason in str(whole).split("; ")]
    told += [reason.removeprefix("needs ") for reason in reasons if reason.startswith("needs ")]
    return f"Not in this run: {'; '.join(dict.fromkeys(told))}." if told else ""


_PARTS: Mapping[str, Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "accuracy": {"probe": {probe: f"the probe {probe}" for probe in ("greedy", "choice")}},
        "ladder": {
            "rung": {
                "open": "the probe greedy (the rung open)",
                "shown": "the format shown with the probe greedy",
                "choice": "the probe choice (its rung)",
            }
        },
        "recovery": {
            "probe": {
                "greedy": "the probe greedy (for what is recovered among its failures)",
                "beam": "the probe beam",
                "sample": "the probe sample",
            }
        },
        "candidates": {"format": {form: f"the format {form} with the probe greedy" for form in CANDIDATE_FORMATS}},
        "one_shot": {
            "zero_shot_format": {
                "open_capped": "the format open_capped with the probe greedy (0-shot here is open, with whole contexts)"
            }
        },
    }
)
_COLUMNS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "accuracy": {"drop": "a checkpoint with its base (for the drops)"},
        "recovery": {"drop": "a checkpoint with its base (for the drops)"},
        "fertility": {"open_drop": "the probe greedy on a checkpoint and its base"},
        "hard_distractors": {"known": "the probe greedy on a checkpoint and its base (for the dissociation rates)"},
        "perplexity": {"perplexity_ratio": "the same text on the base"},
    }
)
