"""The headline: per checkpoint and task, the numbers that show whether answers are
gone or only no longer produced."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

import evaluator.metrics.columns as col
from evaluator.metrics.columns import FEW, Column, Row, rounded, typed_frame
from evaluator.metrics.fates import FATES
from evaluator.metrics.inputs import ALL, rows_where

_OPEN_CHOICE = ("open", "choice")
_KNOWN = (
    "answers that the dense model wrote and picked; the next are % of these (counts"
    f" below {FEW}):"
)
_RANK = "mc_only: median rank of the answer's first token (1: likeliest)"
_ALIGNED = "mc_only: the same after the dense model's own lead-in"
COLUMNS = (
    *col.TEXT("task", "checkpoint"),
    Column("base", col.TEXT, csv_only=True),
    Column("re_run", col.FLAG, csv_only=True),
    Column("n", col.COUNT),
    *(
        Column(name, col.PERCENTAGE, title, short=short, meaning=meaning)
        for name, title, short, meaning in (
            ("open_accuracy", "", "open", "% right when the model writes the answer"),
            (
                "choice_accuracy",
                "",
                "choice",
                "% right when it picks the answer from options",
            ),
            (
                "hard_accuracy",
                "hard choice accuracy",
                "hard",
                "% right among the options most like the answer",
            ),
        )
    ),
    *(
        Column(f"{name}_{end}", col.PERCENTAGE, csv_only=True)
        for name in _OPEN_CHOICE
        for end in ("base", "paired")
    ),
    *(Column(f"{name}_n_paired", col.COUNT, csv_only=True) for name in _OPEN_CHOICE),
    Column("known", col.COUNT, short="known", meaning=_KNOWN),
    *(
        Column(name, col.PERCENTAGE, name, short=short, of="known", meaning=meaning)
        for name, short, meaning in (
            ("kept", "kept", "still written and still picked"),
            (
                "mc_only",
                "mc_only",
                "still picked, no longer written (the rest: the reverse)",
            ),
            ("produced_only", "", ""),
            ("lost", "lost", "neither written nor picked, which does not mean erased"),
        )
    ),
    Column("recovery_n", col.COUNT, csv_only=True),
    *(
        Column(
            f"{probe}_recoverability",
            col.PERCENTAGE,
            f"in any {probe}",
            short=probe,
            meaning=meaning,
        )
        for probe, meaning in (
            ("beam", "% with the answer in any beam of a beam search"),
            ("sample", "% with the answer in any random sample"),
        )
    ),
    Column("failures", col.COUNT, csv_only=True),
    Column("beam_recovered", col.PERCENTAGE, csv_only=True),
    Column("sample_recovered", col.PERCENTAGE, of="failures"),
    Column(
        "mc_only_median_rank",
        col.RANK,
        "median rank of mc_only",
        short="rank",
        meaning=_RANK,
    ),
    Column(
        "mc_only_median_aligned_rank",
        col.RANK,
        "median aligned rank of mc_only",
        short="aligned",
        meaning=_ALIGNED,
    ),
    Column("delta_pr", col.RATIO, "Delta_PR"),
)

SUMMED = ("accuracy", "fates", "recovery", "rank", "pr_gap", "hard_distractors")

# Column of the headline -> table, column, and what its row equals beside checkpoint,
# task and all languages.
_OPEN, _CHOICE = (
    {"format": "open", "probe": "greedy"},
    {"format": "open", "probe": "choice"},
)
_MC_ONLY = {"group": "mc_only", "side": "own"}
_CELLS: Mapping[str, tuple[str, str, Mapping[str, str]]] = {
    "n": ("accuracy", "n", _OPEN),
    "open_accuracy": ("accuracy", "accuracy", _OPEN),
    "choice_accuracy": ("accuracy", "accuracy", _CHOICE),
    "hard_accuracy": ("hard_distractors", "hard_accuracy", {}),
    "re_run": ("fates", "re_run", {}),
    "known": ("fates", "n", {}),
    **{fate: ("fates", f"{fate}_rate", {}) for fate in FATES},
    **{
        f"{probe}_{name}": (
            "recovery",
            column,
            {"probe": probe, "population": population},
        )
        for probe in ("beam", "sample")
        for name, column, population in (
            ("n", "n", "all_items"),
            ("recoverability", "rate", "all_items"),
            ("failures", "n", "greedy_failures"),
            ("recovered", "rate", "greedy_failures"),
        )
    },
    "mc_only_median_rank": ("rank", "rank_median", _MC_ONLY),
    "mc_only_median_aligned_rank": ("rank", "aligned_rank_median", _MC_ONLY),
    "delta_pr": ("pr_gap", "delta_pr", {}),
}


def headline_of(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The headline from the computed tables that SUMMED names, languages pooled.

    `open_base` and `open_paired` are both accuracies on the `open_n_paired` items
    measured in both. `known` counts the items that the base both produced and
    recognised, null if none was measured in both; fates are shares of it.
    Recoverability is over all items with beams or samples, `*_recovered` over the
    checkpoint's own greedy failures.
    """
    whole = {name: tables[name][tables[name]["language"] == ALL] for name in SUMMED}
    own = {
        name: dict(iter(table.groupby(["task", "checkpoint"], sort=False)))
        for name, table in whole.items()
    }
    rows: list[Row] = []
    for key, accuracy in own["accuracy"].items():
        here = {name: found.get(key) for name, found in own.items()}
        row = {
            name: _cell(here[table], column, equal)
            for name, (table, column, equal) in _CELLS.items()
        }
        row |= {name: accuracy[name].iloc[0] for name in ("task", "checkpoint", "base")}
        for name, probe in zip(_OPEN_CHOICE, (_OPEN, _CHOICE), strict=True):
            before, drop = (
                _cell(accuracy, column, probe) for column in ("dense_accuracy", "drop")
            )
            if before is not None and drop is not None:
                row |= {
                    f"{name}_base": before,
                    f"{name}_paired": float(before) - float(drop),
                }
                row[f"{name}_n_paired"] = _cell(accuracy, "n_paired", probe)
        row["re_run"] = bool(row["re_run"])
        if not _cell(here["fates"], "items", {}):
            row["known"] = None
        counts = [
            (row.pop(f"{probe}_n"), row.pop(f"{probe}_failures"))
            for probe in ("beam", "sample")
        ]
        row["recovery_n"], row["failures"] = (
            sample or beam or None for beam, sample in zip(*counts, strict=True)
        )
        rows.append(row)
    return typed_frame(COLUMNS, rows)


def _cell(table: pd.DataFrame | None, column: str, equal: Mapping[str, str]) -> Any:
    """The value in the first row that equals `equal`; None without a row or a value."""
    values = (
        []
        if table is None
        else rows_where(table, equal)[column].head(1).dropna().tolist()
    )
    return values[0] if values else None


_NAMED = 5  # checkpoints that a sentence names


def headline_sentence(headline: pd.DataFrame) -> str:
    """The finding: the checkpoint that lost most open answers relative to choices, in
    numbers.

    Both sides of an arrow are over the items measured in both. A re-run is the headline
    only without other checkpoints.
    """
    fated = headline[headline["mc_only"].notna()]
    if fated.empty and headline["known"].notna().any():
        return (
            "The dense model both produced and recognised none of the items: no answer"
            " has a fate."
        )
    if fated.empty and headline["base"].notna().any():
        return (
            "No checkpoint was measured beside its base with greedy and choice: no"
            " answer has a fate."
        )
    if fated.empty:
        return (
            "No checkpoint here has a base with greedy and choice records: evaluate a"
            " dense and a pruned one together."
        )
    pruned = fated[~fated["re_run"].astype(bool)]
    widest = (fated if pruned.empty else pruned).sort_values(
        ["delta_pr", "mc_only"], ascending=False, kind="stable"
    )
    row = widest.iloc[0]
    dense = "the dense model" if fated["base"].nunique() == 1 else str(row["base"])
    where = f" on {row['task']}" if headline["task"].nunique() > 1 else ""
    answers = "1 answer" if row["known"] == 1 else f"{row['known']:,} answers"
    if pruned.empty:
        changed = _part(1 - row["kept"], row["known"])
        its = "its" if changed == "1" else "their"
        return (
            f"{row['checkpoint']}{where} has the weights of its base: of {answers} that"
            f" {dense} produced and recognised, {changed} changed {its} fate, which is"
            " the noise of the measurement."
        )
    sentence = (
        f"{row['checkpoint']}{where}: open accuracy {_change(row, 'open')}, choice"
        f" {_change(row, 'choice')}. Of {answers} that {dense} produced and recognised,"
        f" {_fate(row)}"
    )
    if pd.notna(row["sample_recovered"]):
        found, failures = (
            _part(row["sample_recovered"], row["failures"]),
            row["failures"],
        )
        missed = "1 answer" if failures == 1 else f"{failures} answers"
        few = f"; of {missed} that greedy decoding misses, sampling finds {found}"
        sentence += (
            few
            if failures < FEW
            else f"; sampling finds {found} of the answers that greedy decoding misses"
        )
    return sentence + "."


def screened_sentence(screening: pd.DataFrame) -> str:
    """Which checkpoints stopped early, from the table `screening`; empty if none
    did."""
    out = screening[screening["asked"] < screening["items"]]
    if out.empty:
        return ""
    several = screening["task"].nunique() > 1
    told = [
        f"{row['checkpoint']}{' on ' + row['task'] if several else ''} ({row['asked']:,} of"
        f" {row['items']:,})"
        for row in out.head(_NAMED).to_dict("records")
    ]
    more = f" and {len(out) - _NAMED:,} more" if len(out) > _NAMED else ""
    return f"Decided early, on some of the items: {', '.join(told)}{more}."


def _change(row: pd.Series, probe: str) -> str:
    n = row[f"{probe}_n_paired"]
    before, after = (_part(row[f"{probe}_{end}"], n) for end in ("base", "paired"))
    return f"{before} → {after} of {n}" if n < FEW else f"{before} → {after}"


def _fate(row: pd.Series) -> str:
    if row["kept"] == 1:
        return "every one is still said and recognised"
    told = []
    for fate in ("mc_only", "produced_only", "lost"):
        part = _part(row[fate], row["known"])
        told.append(
            "none is"
            if row[fate] == 0
            else f"{part} is"
            if part == "1"
            else f"{part} are"
        )
    silent, reverse, lost = told
    what = f"{silent} still recognised but no longer said, and {lost} lost"
    if row["produced_only"] > max(row["mc_only"], row["lost"]):
        what += f"; {reverse} still said but no longer recognised"
    return what


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
