"""The headline: one row per checkpoint and task with the numbers that tell whether answers are gone or only unsaid."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from evaluator.metrics.inputs import ALL, Row

COLUMNS = (
    *("task", "checkpoint", "base", "n", "open_accuracy", "choice_accuracy"),
    *("known", "kept", "mc_only", "produced_only", "lost"),
    *("recovery_n", "beam_recoverability", "sample_recoverability"),
    *("failures", "beam_recovered", "sample_recovered"),
    *("mc_only_median_rank", "delta_pr"),
)
_COUNTS = ("n", "known", "recovery_n", "failures")


def headline_of(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The headline from the computed tables `accuracy`, `fates`, `recovery`, `rank` and `pr_gap`, languages pooled.

    `known` is how many items the base both produced and recognised; the fates are shares of it. Recoverability is
    over all items with beams or samples, `*_recovered` among the checkpoint's own greedy failures.
    """
    pooled = {name: table[table["language"] == ALL] for name, table in tables.items() if "language" in table}
    accuracy = pooled["accuracy"]
    rows: list[Row] = []
    for (task, checkpoint), own in accuracy.groupby(["task", "checkpoint"], sort=False):
        row: Row = {"task": task, "checkpoint": checkpoint, "base": own["base"].iloc[0]}
        here = {name: _only(table, task=task, checkpoint=checkpoint) for name, table in pooled.items()}
        opened = _only(own, format="open", probe="greedy")
        row |= {"n": _value(opened, "n"), "open_accuracy": _value(opened, "accuracy")}
        row["choice_accuracy"] = _value(_only(own, format="open", probe="choice"), "accuracy")
        row["known"] = _value(here["fates"], "n")
        row |= {fate: _value(here["fates"], f"{fate}_rate") for fate in ("kept", "mc_only", "produced_only", "lost")}
        for probe in ("beam", "sample"):
            everything = _only(here["recovery"], probe=probe, population="all_items")
            failures = _only(here["recovery"], probe=probe, population="greedy_failures")
            row["recovery_n"] = _value(everything, "n") or row.get("recovery_n")
            row["failures"] = _value(failures, "n") or row.get("failures")
            row |= {
                f"{probe}_recoverability": _value(everything, "rate"),
                f"{probe}_recovered": _value(failures, "rate"),
            }
        row["mc_only_median_rank"] = _value(_only(here["rank"], group="mc_only", side="own"), "rank_median")
        row["delta_pr"] = _value(here["pr_gap"], "delta_pr")
        rows.append(row)
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(dict.fromkeys(_COUNTS, "Int64"))


def headline_sentence(headline: pd.DataFrame) -> str:
    """The finding in one sentence: the checkpoint whose open answers suffered most beyond its choices, in numbers."""
    told = headline[headline["mc_only"].notna()]
    if told.empty and headline["known"].notna().any() and headline["n"].gt(0).any():
        return "The dense model both produced and recognised none of the items: there is no fate to tell."
    if told.empty:
        return (
            "No checkpoint here has a base with greedy and choice records: evaluate a dense and a pruned one together."
        )
    row = told.sort_values(["delta_pr", "mc_only"], ascending=False, kind="stable").iloc[0]
    bases = headline[(headline["checkpoint"] == row["base"]) & (headline["task"] == row["task"])]
    before = {name: f"{_percent(bases[name].iloc[0])} → " if len(bases) else "" for name in _ACCURACIES}
    where = f" on {row['task']}" if headline["task"].nunique() > 1 else ""
    sentence = (
        f"{row['checkpoint']}{where}: open accuracy {before['open_accuracy']}{_percent(row['open_accuracy'])}, "
        f"choice {before['choice_accuracy']}{_percent(row['choice_accuracy'])}. Of {row['known']} answers that "
        f"the dense model produced and recognised, {_percent(row['mc_only'])} are still recognised but no longer said, "
        f"and {_percent(row['lost'])} are lost"
    )
    if pd.notna(row["sample_recovered"]):
        sentence += f"; sampling finds {_percent(row['sample_recovered'])} of the answers that greedy decoding misses"
    return sentence + "."


_ACCURACIES = ("open_accuracy", "choice_accuracy")


def _percent(value: float) -> str:
    return f"{100 * value:.0f}\N{NO-BREAK SPACE}%"


def _only(table: pd.DataFrame, **equal: object) -> pd.DataFrame:
    for name, value in equal.items():
        table = table[table[name] == value]
    return table


def _value(table: pd.DataFrame, name: str) -> object:
    """The single row's value; None when there is no row or no value."""
    if table.empty or pd.isna(table[name].iloc[0]):
        return None
    return table[name].iloc[0]
