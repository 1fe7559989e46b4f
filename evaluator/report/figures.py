"""One figure per table: a row per checkpoint, pooled over languages at the left, by language at the right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from evaluator.metrics.fates import FATES
from evaluator.report import comparisons, theme
from evaluator.report.rows import MEAN, Rows, share


def draw(name: str, frame: pd.DataFrame) -> str | None:
    """The figure of table `name` as inline SVG; None when the table has nothing to show or no figure."""
    if name not in _FIGURES or frame.empty:
        return None
    with theme.styled():
        made = _FIGURES[name](frame)
        if made is None:
            return None
        return theme.to_svg(made, f"figure-{name.replace('_', '-')}", f"Figure of table {name}")


def _accuracy(frame: pd.DataFrame) -> Any:
    rows = Rows(frame[frame["format"] == "open"])
    if not len(rows):
        return None
    made, (left, right) = theme.figure(len(rows), (1.15, 1))
    theme.label_rows(left, rows.labels)
    theme.link(left, rows.values("accuracy", probe="greedy"), rows.values("accuracy", probe="choice"))
    told = {"greedy": "open: says it", "choice": "choice: recognises it"}
    theme.percent_axis(left, -0.02, 1.04)
    theme.label_values(left, *[rows.dots(left, "accuracy", probe, told[probe], probe=probe) for probe in told])
    left.set_title("Accuracy, languages pooled")
    theme.legend(left)
    rows.heat(right, "accuracy", "Open accuracy by language, %", share("greedy"), probe="greedy")
    return made


def _fates(frame: pd.DataFrame) -> Any:
    frame = frame[frame.groupby(["task", "checkpoint"])["n"].transform("max") > 0]
    rows = Rows(frame)
    if not len(rows):
        return None
    made, (left, right) = theme.figure(len(rows), (1.35, 1))
    theme.label_rows(left, rows.labels)
    shares = {fate: rows.values(f"{fate}_rate") for fate in FATES}
    theme.stacked(left, shares, {fate: (fate, 1.0) for fate in FATES})
    for y, n in enumerate(rows.values("n")):
        left.text(1.012, y, f"n = {n or 0:.0f}", va="center", fontsize=7.8, color=theme.COLOURS["muted"])
    theme.percent_axis(left, 0, 1.0)
    left.set_title("What became of the answers that the dense model knew, %")
    theme.legend(left)
    rows.heat(right, "mc_only_rate", "mc_only by language, %", share("mc_only"))
    return made


def _recovery(frame: pd.DataFrame) -> Any:
    rows = Rows(frame)
    made, (left, right) = theme.figure(len(rows), (1.15, 1))
    theme.label_rows(left, rows.labels)
    for panel in (left, right):
        theme.percent_axis(panel, -0.02, 1.04)
    probes = {"greedy": "greedy says it", "beam": "in any beam", "sample": "in any sample"}
    theme.link(left, *(rows.values("rate", population="all_items", probe=probe) for probe in probes))
    everything = [
        rows.dots(left, "rate", probe, label, population="all_items", probe=probe) for probe, label in probes.items()
    ]
    theme.label_values(left, *everything)
    left.set_title("All items with beams and samples")
    theme.legend(left)
    for probe, shift in (("beam", -0.13), ("sample", 0.13)):
        rows.dots(right, "rate", probe, probes[probe], population="greedy_failures", probe=probe, shift=shift)
    for y, n in enumerate(rows.values("n", population="greedy_failures", probe="sample")):
        right.text(1.06, y, f"n = {n or 0:.0f}", va="center", fontsize=7.8, color=theme.COLOURS["muted"])
    right.set_title("Recovered among its own greedy failures")
    return made


_BANDS = {"rank_1": 1.0, "rank_2_5": 0.68, "rank_6_20": 0.4, "rank_over_20": 0.16}
_BAND_NAMES = {"rank_1": "rank 1", "rank_2_5": "2-5", "rank_6_20": "6-20", "rank_over_20": "over 20"}


def _rank(frame: pd.DataFrame) -> Any:
    own = frame[frame["side"] == "own"]
    groups = [("mc_only", "Recognised, no longer said (mc_only)"), ("all", "All items")]
    parts = [(group, title, Rows(own)) for group, title in groups if (own["group"] == group).any()]
    if not parts:
        return None
    rows = parts[0][2]
    made, panels = theme.figure(len(rows), [1.0] * len(parts))
    theme.label_rows(panels[0], rows.labels)
    for panel, (group, title, _) in zip(panels, parts, strict=True):
        shares = {_BAND_NAMES[band]: rows.values(band, group=group) for band in _BANDS}
        theme.stacked(panel, shares, {_BAND_NAMES[band]: ("rank", alpha) for band, alpha in _BANDS.items()})
        for y, median in enumerate(rows.values("rank_median", group=group)):
            text = "none" if median is None else f"median {median:g}"
            place = {"x": 1.012 if median is not None else 0.0, "y": y, "va": "center", "fontsize": 7.8}
            panel.text(s=text, color=theme.COLOURS["muted"], **place)
        theme.percent_axis(panel, 0, 1.0)
        panel.set_title(title)
    theme.legend(panels[0])
    return made


def _pr_gap(frame: pd.DataFrame) -> Any:
    rows = Rows(frame[frame.groupby(["task", "checkpoint"])["delta_pr"].transform("count") > 0])
    if not len(rows):
        return None
    made, (left, right) = theme.figure(len(rows), (1.0, 1.15))
    theme.label_rows(left, rows.labels)
    rows.dots(left, "delta_pr", "mc_only", "pooled over items", shift=-0.12)
    rows.dots(left, "delta_pr", "mc_only", "mean over languages", language=MEAN, shift=0.12, hollow=True)
    theme.change_axis(left)
    left.set_title("Delta_PR = d_open - d_choice")
    theme.legend(left)

    def paint(value: float) -> tuple[str, float, str]:
        text = f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")
        return text, abs(value), "mc_only" if value >= 0 else "negative"

    rows.heat(right, "delta_pr", "Delta_PR by language", paint)
    return made


def _ladder(frame: pd.DataFrame) -> Any:
    rows = Rows(frame[frame["n"] > 0])
    if not len(rows):
        return None
    read = rows.values("perplexity", rung="open")
    with_perplexity = any(value is not None for value in read)
    made, panels = theme.figure(len(rows), [1.0, 1.0] + [0.7] * with_perplexity)
    theme.label_rows(panels[0], rows.labels)
    rungs = [rung for rung in ("open", "shown", "choice") if (frame["rung"] == rung).any()]
    paints = {"open": "greedy", "shown": "shown", "choice": "choice"}
    for panel, column, title in (
        (panels[0], "drop", "Drop in points"),
        (panels[1], "normalised_drop", "Drop relative to headroom"),
    ):
        theme.link(panel, *(rows.values(column, rung=rung) for rung in rungs))
        for rung in rungs:
            rows.dots(panel, column, paints[rung], rung, rung=rung)
        theme.change_axis(panel, percent=column == "drop")
        panel.set_title(title)
    if with_perplexity:
        comparisons.perplexity_panel(panels[2], rows.values("perplexity_dense", rung="open"), read)
        panels[2].set_title(f"Perplexity, {frame['perplexity_task'].dropna().iloc[0]}")
    theme.legend(panels[0])
    return made


_FIGURES: Mapping[str, Callable[[pd.DataFrame], Any]] = {
    "accuracy": _accuracy,
    "fates": _fates,
    "ladder": _ladder,
    "recovery": _recovery,
    "rank": _rank,
    "pr_gap": _pr_gap,
    "candidates": comparisons.candidates,
    "hard_distractors": comparisons.hard_distractors,
    "recovery_seeds": comparisons.recovery_seeds,
    "one_shot": comparisons.one_shot,
    "calibration": comparisons.calibration,
    "fertility": comparisons.fertility,
    "perplexity": comparisons.perplexity,
    "matching": comparisons.matching,
}
