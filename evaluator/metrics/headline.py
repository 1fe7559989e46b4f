"""The headline: per checkpoint and task, the numbers that show whether answers are
gone or only no longer said."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
    is_null,
    names_of,
    rounded,
    rows_of,
    rows_with,
    typed_frame,
)
from evaluator.metrics.fates import FATES
from evaluator.metrics.items import ALL

_KNOWN = (
    "answers that the dense model said and picked; the next are % of these (counts"
    f" below {FEW}):"
)
_RANK = (
    "picked only: median rank of the answer's first token (1: likeliest); of few: (n)"
)
_ALIGNED = "picked only: the same after the dense model's own lead-in"
COLUMNS = (
    *TEXT("task", "checkpoint"),
    Column("base", TEXT, csv_only=True),
    Column("re_run", FLAG, csv_only=True),
    *COUNT("n"),
    Column(
        "open_accuracy",
        PERCENTAGE,
        "said",
        short="said",
        meaning="% right when the model says the answer",
    ),
    Column(
        "choice_accuracy",
        PERCENTAGE,
        "picked",
        short="picked",
        meaning="% right when it picks the answer from options",
    ),
    Column(
        "hard_accuracy",
        PERCENTAGE,
        "picked, hard options",
        short="hard",
        meaning="% picked among the options most like the answer",
    ),
    *PERCENTAGE("open_base", "open_paired", csv_only=True),
    *PERCENTAGE("choice_base", "choice_paired", csv_only=True),
    *COUNT("open_n_paired", "choice_n_paired", csv_only=True),
    Column("known", COUNT, short="known", meaning=_KNOWN),
    Column(
        "kept",
        PERCENTAGE,
        short="kept",
        of="known",
        meaning="still said and still picked",
    ),
    Column(
        "mc_only",
        PERCENTAGE,
        short="picked only",
        of="known",
        meaning="no longer said (the rest: said only)",
    ),
    Column("produced_only", PERCENTAGE, of="known"),
    Column(
        "lost",
        PERCENTAGE,
        short="lost",
        of="known",
        meaning="neither said nor picked, which does not mean erased",
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
        meaning="% with the answer in any random sample, the mean of several seeds",
    ),
    Column("failures", COUNT, csv_only=True),
    Column("beam_recovered", PERCENTAGE, csv_only=True),
    Column("sample_recovered", PERCENTAGE, of="failures"),
    Column("mc_only_ranked", COUNT, csv_only=True),
    Column(
        "mc_only_median_rank",
        RANK,
        "median rank of picked only",
        of="mc_only_ranked",
        short="rank",
        meaning=_RANK,
    ),
    Column(
        "mc_only_median_aligned_rank",
        RANK,
        "median aligned rank of picked only",
        of="mc_only_ranked",
        short="aligned",
        meaning=_ALIGNED,
    ),
    Column("delta_pr", RATIO, "Delta_PR"),
)

_OPEN = {"format": "open", "probe": "greedy"}
_CHOICE = {"format": "open", "probe": "choice"}
_MC_ONLY = {"group": "mc_only", "side": "own"}


def _recovery_cells(probe: str) -> dict[str, tuple[str, str, Mapping[str, str]]]:
    every = {"probe": probe, "population": "all_items"}
    failures = {"probe": probe, "population": "greedy_failures"}
    return {
        f"{probe}_n": ("recovery", "n", every),
        f"{probe}_recoverability": ("recovery", "rate", every),
        f"{probe}_failures": ("recovery", "n", failures),
        f"{probe}_recovered": ("recovery", "rate", failures),
    }


# Column of the headline -> table, column, and what its row equals beside checkpoint,
# task and all languages.
_CELLS: Mapping[str, tuple[str, str, Mapping[str, str]]] = {
    "n": ("accuracy", "n", _OPEN),
    "open_accuracy": ("accuracy", "accuracy", _OPEN),
    "choice_accuracy": ("accuracy", "accuracy", _CHOICE),
    "hard_accuracy": ("hard_distractors", "hard_accuracy", {}),
    "re_run": ("fates", "re_run", {}),
    "known": ("fates", "n", {}),
    **{fate: ("fates", f"{fate}_rate", {}) for fate in FATES},
    **_recovery_cells("beam"),
    **_recovery_cells("sample"),
    "mc_only_ranked": ("rank", "n", _MC_ONLY),
    "mc_only_median_rank": ("rank", "rank_median", _MC_ONLY),
    "mc_only_median_aligned_rank": ("rank", "aligned_rank_median", _MC_ONLY),
    "delta_pr": ("pr_gap", "delta_pr", {}),
}
SUMMED = tuple(dict.fromkeys(table for table, *_ in _CELLS.values()))  # their tables


# for the page: the CSV has no intervals
WITH_INTERVALS = tuple(
    replace(
        column,
        interval=column.name in _CELLS and column.kind in (PERCENTAGE, RANK, RATIO),
    )
    for column in COLUMNS
)
_BOUNDS = {*names_of(WITH_INTERVALS)} - {*names_of(COLUMNS)}


def headline_with_intervals(tables: Mapping[str, Sequence[Row]]) -> pd.DataFrame:
    """The headline from the rows of the tables that SUMMED names, languages pooled.

    `open_base` and `open_paired` are both accuracies on the `open_n_paired` items
    measured in both. `known` counts the items that the base both said and
    picked, null if none was measured in both; fates are shares of it.
    Recoverability is over all items with beams or samples, `*_recovered` over the
    checkpoint's own greedy failures.
    """
    pooled = {name: rows_with(tables[name], {"language": ALL}) for name in SUMMED}
    seen: dict[tuple[str, str], Row] = {}
    for row in pooled["accuracy"]:
        seen.setdefault((row["task"], row["checkpoint"]), row)
    rows = []
    for (task, checkpoint), first in seen.items():
        key = {"task": task, "checkpoint": checkpoint}
        own = {name: rows_with(every, key) for name, every in pooled.items()}
        rows.append({**key, "base": first["base"], **_summary(own)})
    return typed_frame(WITH_INTERVALS, rows)


def _summary(tables: Mapping[str, Sequence[Row]]) -> Row:
    """The numbers of one checkpoint on one task, from its own rows."""
    row: Row = {}
    for name, (table, column, equal) in _CELLS.items():
        row[name] = _cell(tables[table], column, equal)
        for end in ("_low", "_high"):
            if name + end in _BOUNDS:
                row[name + end] = _cell(tables[table], column + end, equal)
    row["re_run"] = bool(row["re_run"])
    for name, equal in (("open", _OPEN), ("choice", _CHOICE)):
        base = _cell(tables["accuracy"], "dense_accuracy", equal)
        drop = _cell(tables["accuracy"], "drop", equal)
        if base is not None and drop is not None:
            row[f"{name}_base"], row[f"{name}_paired"] = base, base - drop
            row[f"{name}_n_paired"] = _cell(tables["accuracy"], "n_paired", equal)
    if not _cell(tables["fates"], "items", {}):
        row["known"] = None
    for name, column in (("recovery_n", "n"), ("failures", "failures")):
        beam, sample = row.pop(f"beam_{column}"), row.pop(f"sample_{column}")
        row[name] = sample or beam or None
    return row


def _cell(rows: Sequence[Row], column: str, equal: Mapping[str, str]) -> Any:
    """The value in the first row that equals `equal`; None without one."""
    found = rows_with(rows, equal)
    return found[0][column] if found else None


def partly_measured(headline: pd.DataFrame) -> Iterator[str]:
    """The checkpoints with fewer items than another on their task, a line each, with
    what the base says on these."""
    base_said = Column("open_base", PERCENTAGE, of="open_n_paired")
    for task, rows in headline.groupby("task", sort=False):
        most = rows["n"].max()
        for row in rows_of(rows[rows["n"] < most]):
            line = f"{row['checkpoint']} on {task}: of {row['n']:,} of {most:,} items"
            if not is_null(both := row["open_n_paired"]):
                shared = "" if both == row["n"] else f"{both:,} of "
                line += f", on {shared}which {row['base']} says {base_said.shown(row)}"
            yield line


def headline_sentence(headline: pd.DataFrame) -> str:
    """The finding: the checkpoint that lost most open answers relative to choices, in
    numbers.

    Both sides of an arrow are over the items measured in both. A re-run is the headline
    only without other checkpoints.
    """
    fated = headline[headline["mc_only"].notna()]
    if fated.empty:
        return _why_no_fates(headline)
    pruned = fated[~fated["re_run"].astype(bool)]
    shown = (fated if pruned.empty else pruned).sort_values(
        ["delta_pr", "mc_only"], ascending=False, kind="stable"
    )
    row = shown.iloc[0]
    dense = "the dense model" if fated["base"].nunique() == 1 else str(row["base"])
    where = f" on {row['task']}" if headline["task"].nunique() > 1 else ""
    name = f"{row['checkpoint']}{where}"
    known = f"{_answers(row['known'])} that {dense} said and picked"
    if pruned.empty:
        changed = _part(1 - row["kept"], row["known"])
        its = "its" if changed == "1" else "their"
        return (
            f"{name} has the weights of its base: of {known}, {changed} changed {its}"
            " fate, which is the noise of the measurement."
        )
    changes = f"said {_change(row, 'open')}, picked {_change(row, 'choice')}"
    of_task = headline[headline["task"] == row["task"]]
    base = of_task.loc[of_task["checkpoint"] == row["base"], "n"]
    if (base > row["n"]).any() and row["n"] >= FEW:
        changes += f" on its {row['n']:,} of {base.max():,} items"
    return f"{name}: {changes}. Of {known}, {_fates(row)}{_sampled(row)}."


def _sampled(row: pd.Series) -> str:
    """What samples find; empty without samples."""
    if pd.isna(row["sample_recovered"]):
        return ""
    found = _part(row["sample_recovered"], row["failures"])
    if row["failures"] < FEW:
        missed = f"{_answers(row['failures'])} that greedy decoding misses"
        return f"; of {missed}, sampling finds {found}"
    return f"; sampling finds {found} of the answers that greedy decoding misses"


def _why_no_fates(headline: pd.DataFrame) -> str:
    if headline["known"].notna().any():
        return (
            "The dense model both said and picked none of the items: no answer has a"
            " fate."
        )
    if headline["base"].notna().any():
        return (
            "No checkpoint was measured beside its base with greedy and choice: no"
            " answer has a fate."
        )
    return (
        "No checkpoint here has a base with greedy and choice records: evaluate a"
        " dense and a compressed one together (--base)."
    )


def _answers(count: int) -> str:
    return "1 answer" if count == 1 else f"{count:,} answers"


def _change(row: pd.Series, probe: str) -> str:
    n = row[f"{probe}_n_paired"]
    before, after = (_part(row[f"{probe}_{end}"], n) for end in ("base", "paired"))
    return f"{before} → {after} of {n}" if n < FEW else f"{before} → {after}"


def _fates(row: pd.Series) -> str:
    if row["kept"] == 1:
        return "every one is kept"
    silent, lost = _are(row, "mc_only"), _are(row, "lost")
    text = f"{silent} picked only, and {lost} lost"
    if row["produced_only"] > max(row["mc_only"], row["lost"]):
        reverse = _are(row, "produced_only")
        text += f"; {reverse} said only"
    return text


def _are(row: pd.Series, fate: str) -> str:
    """`1 is` or `20 % are`."""
    part = _part(row[fate], row["known"])
    if row[fate] == 0:
        return "none is"
    return "1 is" if part == "1" else f"{part} are"


def _part(share: float, total: int) -> str:
    """A count if `total` is small, else a whole percentage: 0 or 100 only if the
    share is exactly 0 or 1."""
    if total < FEW:
        return f"{round(share * total)}"
    number = rounded(100 * share)
    if number == "0" and share > 0:
        number = "under 1"
    if number == "100" and share < 1:
        number = "over 99"
    return f"{number}\N{NO-BREAK SPACE}%"
