"""A table's frame as the strings that the page shows: a value and its interval share a cell, empty columns go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

_COUNTS = {
    *("n", "items", "excluded", "engine_error", "truncated", "n_paired", "hits", "languages", "tries", "seeds"),
    *("kept", "mc_only", "produced_only", "lost", "n_min", "n_max", "known", "recovery_n", "failures"),
    *("unpaired", "tokens", "units", "unjudged", "yes", "asked"),
}
_TEXT = {"task", "checkpoint", "base", "method", "pattern", "calibration", "language", "format", "probe", "reason"}
_TEXT |= {"group", "side", "population", "rung", "kind", "unit", "zero_shot_format", "perplexity_task"}
_TEXT |= {"grader", "against", "status"}
_PLAIN = {"rank_median": 1, "rank_q1": 1, "rank_q3": 1, "margin_median": 2, "token_f1": 3, "mc_only_median_rank": 1}
_PLAIN |= {"fertility": 2, "perplexity": 2, "perplexity_dense": 2, "perplexity_ratio": 3}
_RATIOS = {
    "d_open",
    "d_choice",
    "delta_pr",
    "normalised_drop",
    "open_normalised_drop",
    "sparsity",
    "floor",
    "scott_pi",
    "choice_floor",
}
_MINUS = "\N{MINUS SIGN}"
MISSING = "\N{EN DASH}"


@dataclass(frozen=True)
class Cell:
    text: str
    interval: str = ""
    number: bool = True


@dataclass(frozen=True)
class Grid:
    """Column names and rows of cells; `pooled` rows first, the rows of single languages apart."""

    columns: tuple[str, ...]
    pooled: tuple[tuple[Cell, ...], ...]
    by_language: tuple[tuple[Cell, ...], ...]


def grid(frame: pd.DataFrame, *, counts_as_rates: bool = False) -> Grid:
    """The whole table. `counts_as_rates`: the fate columns hold shares (the headline), not counts."""
    names = [str(name) for name in frame]
    intervals = [name[:-4] for name in names if name.endswith("_low") and f"{name[:-4]}_high" in names]
    hidden = {f"{name}{end}" for name in intervals for end in ("_low", "_high")}
    columns = [name for name in names if name not in hidden and frame[name].notna().any()]
    columns += [name for name in intervals if name not in names and frame[f"{name}_low"].notna().any()]
    if frame["task"].nunique() == 1 and len(columns) > 1:
        columns.remove("task")
    records = ({str(name): value for name, value in row.items()} for row in frame.to_dict(orient="records"))
    rows = [tuple(_cell(name, row, name in intervals, counts_as_rates) for name in columns) for row in records]
    if "language" not in frame:
        return Grid(tuple(columns), tuple(rows), ())
    pooled = frame["language"].isin(["all", "mean"]).tolist()
    return Grid(
        tuple(columns),
        tuple(row for row, keep in zip(rows, pooled, strict=True) if keep),
        tuple(row for row, keep in zip(rows, pooled, strict=True) if not keep),
    )


def reference_grid(paper: pd.DataFrame) -> Grid:
    """The paper's numbers beside ours; each is shown as its own quantity is."""
    rows = []
    for row in paper.to_dict(orient="records"):
        quantity = str(row["quantity"])
        interval = ""
        if not pd.isna(row["ours_low"]):
            interval = " to ".join(shown(quantity, row[f"ours_{end}"]).removesuffix(" %") for end in ("low", "high"))
        words = [str(row["checkpoint"]), str(row["language"]), str(row["cell"]), title_of(quantity)]
        rows.append(
            (
                *(Cell(word, number=False) for word in words),
                Cell(shown(quantity, row["paper"])),
                Cell(shown(quantity, row["ours"]), interval),
                Cell(shown("n", row["n"])),
                Cell(str(row["source"]), number=False),
            )
        )
    columns = ("checkpoint", "language", "cell", "quantity", "paper", "ours", "n", "source")
    keep = [at for at in range(len(columns)) if any(row[at].text for row in rows)]
    return Grid(tuple(columns[at] for at in keep), tuple(tuple(row[at] for at in keep) for row in rows), ())


def shown(name: str, value: object, *, counts_as_rates: bool = False) -> str:
    """One value of column `name` for people; a dash where it is null."""
    if value is None or pd.isna(value):  # type: ignore[call-overload]
        return MISSING
    if name in _TEXT:
        return str(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    number = float(str(value))
    if name in _COUNTS and not (counts_as_rates and name in ("kept", "mc_only", "produced_only", "lost")):
        return f"{int(number):,}"
    if name.endswith("_p"):
        return f"{number:.3f}" if number >= 0.001 else f"{number:.0e}"
    if name in _PLAIN:
        return f"{number:.{_PLAIN[name]}f}".replace("-", _MINUS)
    if name in _RATIOS:
        return f"{number:.3g}".replace("-", _MINUS) if name in ("sparsity", "floor") else _signed(number)
    return f"{100 * number:.1f} %".replace("-", _MINUS)


def titles(columns: Sequence[str]) -> list[str]:
    return [title_of(name) for name in columns]


def title_of(name: str) -> str:
    """A column's name as a heading."""
    return _TITLES.get(name) or name.replace("_", " ")


_TITLES = {
    "delta_pr": "Δ PR",
    "d_open": "d open",
    "mcnemar_p": "McNemar p",
    "holm_p": "Holm p",
    "mc_only": "mc_only",
    "produced_only": "produced_only",
    "mc_only_rate": "mc_only rate",
    "produced_only_rate": "produced_only rate",
    "mc_only_corrected": "mc_only, chance-corrected",
    "mc_only_median_rank": "median rank of mc_only",
    "dissociation_boot": "dissociation, bootstrap",
    "n_paired": "n paired",
    "choice_minus_open": "choice − open",
    "noise_floor": "noise floor (re-run)",
    "cell": "which",
}


def _cell(name: str, row: dict[str, object], has_interval: bool, counts_as_rates: bool) -> Cell:
    text = shown(name, row.get(name), counts_as_rates=counts_as_rates)
    interval = ""
    if has_interval and not pd.isna(row[f"{name}_low"]):  # type: ignore[call-overload]
        low, high = (shown(name, row[f"{name}{end}"]).removesuffix(" %") for end in ("_low", "_high"))
        interval = f"{low} to {high}"
    return Cell(text, interval, name not in _TEXT)


def _signed(number: float) -> str:
    return f"{number:+.3f}".replace("-", _MINUS)
