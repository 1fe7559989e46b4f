"""The headline: per checkpoint and task, the numbers that show whether answers are gone or only no longer produced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from evaluator.metrics.columns import (
    COUNT,
    FEW,
    FLAG,
    PERCENTAGE,
    RANK,
    RATIO,
    TEXT,
    Column,
    Row,
    columns_of,
    few,
    rounded,
    typed_frame,
)
from evaluator.metrics.drops import FATES
from evaluator.metrics.inputs import ALL, grouped, rows_where

COLUMNS = (
    *columns_of(TEXT, "task", "checkpoint"),
    Column("base", TEXT, csv_only=True),
    Column("re_run", FLAG, csv_only=True),
    Column("n", COUNT),
    Column("open_accuracy", PERCENTAGE, short="open", meaning="% right when the model writes the answer"),
    Column("choice_accuracy", PERCENTAGE, short="choice", meaning="% right when it picks the answer from options"),
    Column(
        "hard_accuracy",
        PERCENTAGE,
        "hard choice accuracy",
        short="hard",
        meaning="% right among the options most like the answer",
    ),
    *(Column(f"{name}_{end}", PERCENTAGE, csv_only=True) for name in ("open", "choice") for end in ("base", "paired")),
    *(Column(f"{name}_n_paired", COUNT, csv_only=True) for name in ("open", "choice")),
    Column(
        "known",
        COUNT,
        short="known",
        meaning=f"answers that the dense model wrote and picked; the next are % of these (counts below {FEW}):",
    ),
    Column("kept", PERCENTAGE, short="kept", of="known", meaning="still written and still picked"),
    Column(
        "mc_only",
        PERCENTAGE,
        "mc_only",
        short="mc_only",
        of="known",
        meaning="still picked, no longer written (the rest: the reverse)",
    ),
    Column("produced_only", PERCENTAGE, "produced_only", of="known"),
    Column(
        "lost",
        PERCENTAGE,
        short="lost",
        of="known",
        meaning="neither written nor picked, which does not mean erased",
    ),
    Column("recovery_n", COUNT, csv_only=True),
    Column(
        "beam_recoverability",
        PERCENTAGE,
        "in any beam",
        short="beam",
        meaning="% with the answer in any beam of a beam search",
    ),
    Column(
        "sample_recoverability",
        PERCENTAGE,
        "in any sample",
        short="sample",
        meaning="% with the answer in any random sample",
    ),
    Column("failures", COUNT, csv_only=True),
    Column("beam_recovered", PERCENTAGE, csv_only=True),
    Column("sample_recovered", PERCENTAGE, of="failures"),
    Column(
        "mc_only_median_rank",
        RANK,
        "median rank of mc_only",
        short="rank",
        meaning="mc_only: median rank of the answer's first token (1: likeliest)",
    ),
    Column(
        "mc_only_median_aligned_rank",
        RANK,
        "median aligned rank of mc_only",
        short="aligned",
        meaning="mc_only: the same after the dense model's own lead-in",
    ),
    Column("delta_pr", RATIO, "Δ PR"),
)


SUMMED = ("accuracy", "fates", "recovery", "rank", "pr_gap", "hard_distractors")


def headline_of(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The headline from the computed tables that SUMMED names, languages pooled.

    `open_base` and `open_paired` are the base's and the checkpoint's own accuracy on the `open_n_paired` items measured
    in both. `known` counts the items that the base both produced and recognised; it is null if no item was measured in
    both. The fates are shares of `known`. Recoverability is over all items with beams or samples. `*_recovered` is over
    the checkpoint's own greedy failures.
    """
    whole = {name: pooled(tables[name]) for name in SUMMED}
    rows_of = {name: grouped(table, "task", "checkpoint") for name, table in whole.items()}
    rows: list[Row] = []
    for (task, checkpoint), own in whole["accuracy"].groupby(["task", "checkpoint"], sort=False):
        row: Row = {"task": task, "checkpoint": checkpoint, "base": own["base"].iloc[0]}
        here = {name: found(task, checkpoint) for name, found in rows_of.items()}
        opened = _only(own, format="open", probe="greedy")
        row |= {"n": _value(opened, "n"), "open_accuracy": _value(opened, "accuracy")}
        chosen = _only(own, format="open", probe="choice")
        row["choice_accuracy"] = _value(chosen, "accuracy")
        row["hard_accuracy"] = _value(here["hard_distractors"], "hard_accuracy")
        for name, table in (("open", opened), ("choice", chosen)):
            before, drop = _value(table, "dense_accuracy"), _value(table, "drop")
            if before is not None and drop is not None:
                row |= {f"{name}_base": before, f"{name}_paired": float(before) - float(drop)}
                row[f"{name}_n_paired"] = _value(table, "n_paired")
        row["re_run"] = bool(_value(here["fates"], "re_run"))
        row["known"] = _value(here["fates"], "n") if _value(here["fates"], "items") else None
        row |= {fate: _value(here["fates"], f"{fate}_rate") for fate in FATES}
        for probe in ("beam", "sample"):
            everything = _only(here["recovery"], probe=probe, population="all_items")
            failures = _only(here["recovery"], probe=probe, population="greedy_failures")
            row["recovery_n"] = _value(everything, "n") or row.get("recovery_n")
            row["failures"] = _value(failures, "n") or row.get("failures")
            row |= {
                f"{probe}_recoverability": _value(everything, "rate"),
                f"{probe}_recovered": _value(failures, "rate"),
            }
        ranks = _only(here["rank"], group="mc_only", side="own")
        row["mc_only_median_rank"] = _value(ranks, "rank_median")
        row["mc_only_median_aligned_rank"] = _value(ranks, "aligned_rank_median")
        row["delta_pr"] = _value(here["pr_gap"], "delta_pr")
        rows.append(row)
    return typed_frame(COLUMNS, rows)


def pooled(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table that the headline uses."""
    return table[table["language"] == ALL]


_NAMED = 5  # checkpoints that a sentence names


def headline_sentence(headline: pd.DataFrame) -> str:
    """The finding in one sentence: the checkpoint with the largest loss of open answers relative to choices, in
    numbers.

    Both sides of an arrow are over the items measured in both. A re-run is the headline only without other checkpoints.
    """
    fated = headline[headline["mc_only"].notna()]
    if fated.empty and headline["known"].notna().any():
        return "The dense model both produced and recognised none of the items: no answer has a fate."
    if fated.empty and headline["base"].notna().any():
        return "No checkpoint was measured beside its base with greedy and choice: no answer has a fate."
    if fated.empty:
        return (
            "No checkpoint here has a base with greedy and choice records: evaluate a dense and a pruned one together."
        )
    pruned = fated[~fated["re_run"].astype(bool)]
    widest = (fated if pruned.empty else pruned).sort_values(["delta_pr", "mc_only"], ascending=False, kind="stable")
    row = widest.iloc[0]
    dense = "the dense model" if fated["base"].nunique() == 1 else str(row["base"])
    where = f" on {row['task']}" if headline["task"].nunique() > 1 else ""
    answers = "1 answer" if row["known"] == 1 else f"{row['known']:,} answers"
    if pruned.empty:
        changed = _part(1 - row["kept"], row["known"])
        its = "its" if changed == "1" else "their"
        return (
            f"{row['checkpoint']}{where} has the weights of its base: of {answers} that {dense} produced and "
            f"recognised, {changed} changed {its} fate, which is the noise of the measurement."
        )
    sentence = (
        f"{row['checkpoint']}{where}: open accuracy {_change(row, 'open')}, choice {_change(row, 'choice')}. "
        f"Of {answers} that {dense} produced and recognised, {_fate(row)}"
    )
    if pd.notna(row["sample_recovered"]):
        sentence += f"; {_recovered(row['sample_recovered'], row['failures'])}"
    return sentence + "."


def screened_sentence(screening: pd.DataFrame) -> str:
    """Which checkpoints stopped early, from the table `screening`; empty if none did."""
    out = screening[screening["asked"] < screening["items"]]
    if out.empty:
        return ""
    several = screening["task"].nunique() > 1
    told = [
        f"{row['checkpoint']}{' on ' + row['task'] if several else ''} ({row['asked']:,} of {row['items']:,})"
        for row in out.head(_NAMED).to_dict("records")
    ]
    more = f" and {len(out) - _NAMED:,} more" if len(out) > _NAMED else ""
    return f"Decided early, on some of the items: {', '.join(told)}{more}."


def _change(row: pd.Series, probe: str) -> str:
    n = row[f"{probe}_n_paired"]
    before, after = (_part(row[f"{probe}_{end}"], n) for end in ("base", "paired"))
    return f"{before} → {after} of {n}" if few(n) else f"{before} → {after}"


def _fate(row: pd.Series) -> str:
    if row["kept"] == 1:
        return "every one is still said and recognised"
    silent, reverse, lost = (_are(row[fate], row["known"]) for fate in ("mc_only", "produced_only", "lost"))
    what = f"{silent} still recognised but no longer said, and {lost} lost"
    if row["produced_only"] > max(row["mc_only"], row["lost"]):
        what += f"; {reverse} still said but no longer recognised"
    return what


def _recovered(share: float, failures: int) -> str:
    if few(failures):
        answers = "1 answer" if failures == 1 else f"{failures} answers"
        return f"of {answers} that greedy decoding misses, sampling finds {_part(share, failures)}"
    return f"sampling finds {_percent(share)} of the answers that greedy decoding misses"


def _are(share: float, total: int) -> str:
    part = _part(share, total)
    return "none is" if share == 0 else f"{part} is" if part == "1" else f"{part} are"


def _part(share: float, total: int) -> str:
    """A share of `total` items: a percentage, or a count if `total` is small."""
    if few(total):
        return f"{round(share * total)}"
    return _percent(share)


def _percent(value: float) -> str:
    """A whole percentage that is 0 or 100 only if the share is exactly 0 or 1."""
    number = rounded(100 * value)
    if number == "0" and value > 0:
        number = "under 1"
    if number == "100" and value < 1:
        number = "over 99"
    return f"{number}\N{NO-BREAK SPACE}%"


def _only(table: pd.DataFrame, **equal: object) -> pd.DataFrame:
    return rows_where(table, equal)


def _value(table: pd.DataFrame, name: str) -> Any:
    """The first row's value; None without a row or a value."""
    if table.empty or pd.isna(table[name].iloc[0]):
        return None
    return table[name].iloc[0]
