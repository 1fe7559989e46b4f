"""Figures of the tables that compare formats, options, seeds, calibrations, languages and texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import pandas as pd

from evaluator.report import theme
from evaluator.report.rows import MEAN, Numbers, Rows

_GRADERS = ("greedy", "choice", "beam", "sample", "shown", "lost")  # colours of graders, containment first

Series = tuple[str, str, str, Mapping[str, str]]  # column, colour, label, which rows


def _linked(panel: Any, rows: Rows, title: str, series: Sequence[Series], *, rates: bool = False) -> None:
    """Linked dots, one for every series that has values; `rates` are shown from 0 to 100 %."""
    shown = [each for each in series if any(v is not None for v in rows.values(each[0], **dict(each[3])))]
    theme.link(panel, *(rows.values(column, **dict(which)) for column, _, _, which in shown))
    for column, colour, label, which in shown:
        if f"{column}_low" in rows.frame:
            rows.dots(panel, column, colour, label, **dict(which))
        else:
            theme.dots(panel, rows.values(column, **dict(which)), colour, label)
    if rates:
        theme.percent_axis(panel, -0.02, 1.04)
    else:
        theme.change_axis(panel, percent=True)
    panel.set_title(title)


def _rates(frame: pd.DataFrame, title: str, series: Sequence[Series]) -> Any:
    rows = Rows(frame)
    made, (panel,) = theme.figure(len(rows), (1.0,))
    theme.label_rows(panel, rows.labels)
    _linked(panel, rows, title, series, rates=True)
    theme.legend(panel)
    return made


def candidates(frame: pd.DataFrame) -> Any:
    return _rates(
        frame,
        "Open accuracy by what is listed as candidates",
        [
            ("accuracy", "greedy", "none", {"format": "open"}),
            ("accuracy", "lost", "distractors only", {"format": "distractors_only"}),
            ("accuracy", "negative", "unrelated", {"format": "unrelated"}),
            ("accuracy", "shown", "gold among them", {"format": "shown"}),
        ],
    )


def hard_distractors(frame: pd.DataFrame) -> Any:
    rows = Rows(frame)
    with_fates = frame["known"].fillna(0).gt(0).any()
    made, panels = theme.figure(len(rows), [1.0] * (1 + with_fates))
    theme.label_rows(panels[0], rows.labels)
    titles = {"accuracy": "Choice accuracy", "dissociation": "Recognised, no longer said"}
    for panel, (column, title) in zip(panels, titles.items(), strict=False):
        series: list[Series] = [
            (f"standard_{column}", "choice", "standard distractors", {}),
            (f"hard_{column}", "lost", "hard distractors", {}),
        ]
        _linked(panel, rows, title, series, rates=column == "accuracy")
    theme.legend(panels[0])
    return made


def recovery_seeds(frame: pd.DataFrame) -> Any:
    return _rates(
        frame,
        "Recovered by samples among greedy failures, over the run seeds",
        [("lowest", "beam", "lowest", {}), ("mean", "greedy", "mean", {}), ("highest", "sample", "highest", {})],
    )


def one_shot(frame: pd.DataFrame) -> Any:
    """The gap pooled at the left, and by language the gap without and with the example."""
    rows = Rows(frame)
    made, (left, *right) = theme.figure(len(rows), (1.15, 1.0, 1.0))
    theme.label_rows(left, rows.labels)
    series: list[Series] = [("zero_shot_gap", "greedy", "0-shot", {}), ("one_shot_gap", "kept", "1-shot", {})]
    _linked(left, rows, "Gap to the dense model", series)
    for panel, (column, colour, label, _) in zip(right, series, strict=True):

        def paint(value: float, colour: str = colour) -> tuple[str, float, str]:
            return f"{100 * value:.0f}".replace("-", "\N{MINUS SIGN}"), 2 * abs(value), colour

        rows.heat(panel, column, f"{label} gap by language, points", paint)
    theme.legend(left)
    return made


def calibration(frame: pd.DataFrame) -> Any:
    rows = Rows(frame)
    kinds = frame.drop_duplicates(["task", "checkpoint"])["kind"].tolist()
    rows.labels = [f"{label} ({kind.replace('_', ' ')})" for label, kind in zip(rows.labels, kinds, strict=True)]
    made, (left, right) = theme.figure(len(rows), (1.15, 1.0))
    theme.label_rows(left, rows.labels)
    series: list[Series] = [("open_accuracy", "greedy", "open", {}), ("choice_accuracy", "choice", "choice", {})]
    _linked(left, rows, "Accuracy", series, rates=True)
    rows.dots(right, "choice_minus_open", "mc_only", "pooled", shift=-0.12)
    rows.dots(right, "choice_minus_open", "mc_only", "mean over languages", language=MEAN, shift=0.12, hollow=True)
    theme.change_axis(right, percent=True)
    right.set_title("Gap: choice minus open")
    theme.legend(left)
    theme.legend(right)
    return made


_MOST_PANELS = 4


def fertility(frame: pd.DataFrame) -> Any:
    """Open drop over fertility, a dot per language; a panel for each of the checkpoints with the largest drops."""
    frame = frame[frame["open_drop"].notna() & frame["fertility"].notna() & (frame["language"] != MEAN)]
    if frame.empty:
        return None
    drops = frame.groupby(["task", "checkpoint"], sort=False)["open_drop"].mean()
    chosen = drops.sort_values(ascending=False, kind="stable").index[:_MOST_PANELS]
    made, panels = theme.figure(7, [1.0] * len(chosen))
    bottom, top = min(0.0, frame["open_drop"].min()) - 0.03, frame["open_drop"].max() + 0.05
    for panel, (task, checkpoint) in zip(panels, chosen, strict=True):
        part = frame[(frame["task"] == task) & (frame["checkpoint"] == checkpoint)]
        for unit, hollow in (("word", False), ("character", True)):
            mine = part[part["unit"] == unit]
            face = theme.COLOURS["paper" if hollow else "greedy"]
            edge = theme.COLOURS["greedy"]
            label = f"per {unit}"
            panel.scatter(mine["fertility"], mine["open_drop"], s=30, facecolor=face, edgecolor=edge, label=label)
        theme.name_points(panel, part["fertility"].tolist(), part["open_drop"].tolist(), part["language"].tolist())
        panel.set_ylim(bottom, top)
        panel.yaxis.set_major_formatter(theme.as_percent)
        panel.grid(axis="y", color=theme.COLOURS["grid"], linewidth=0.7)
        panel.set_xlabel("tokens per word or character")
        panel.margins(x=0.15)
        panel.set_title(checkpoint if frame["task"].nunique() == 1 else f"{checkpoint} · {task}")
    panels[0].set_ylabel("open drop")
    if (frame["unit"] == "character").any():
        theme.legend(panels[0])
    return made


def perplexity(frame: pd.DataFrame) -> Any:
    frame = frame[frame["perplexity"].notna() & (frame["language"] != MEAN)]
    if frame.empty:
        return None
    rows = Rows(frame)
    made, (left, right) = theme.figure(len(rows), (1.0, 1.0))
    theme.label_rows(left, rows.labels)
    rows.dots(left, "perplexity", "rank", "perplexity")
    perplexity_panel(left, [None] * len(rows), rows.values("perplexity"))
    left.set_title("Perplexity")
    rows.dots(right, "perplexity_ratio", "lost", "relative to the base")
    right.axvline(1.0, color=theme.COLOURS["muted"], linewidth=1)
    theme.label_values(right, rows.values("perplexity_ratio"), text=lambda value: f"{value:.2f}")
    right.set_title("Relative to the base")
    return made


def matching(frame: pd.DataFrame) -> Any:
    """Of greedy open answers, or of what was judged instead: accuracy by grader at the left; at the right Scott's pi of
    every two graders that have one."""
    first = frame.loc[frame["n"] > 0, ["format", "probe"]].drop_duplicates().head(1)
    frame = frame.merge(first, on=["format", "probe"])
    if frame.empty:
        return None
    rows = Rows(frame)
    agreed = frame[frame["against"].notna() & frame["scott_pi"].notna()]
    made, panels = theme.figure(len(rows), (1.0, 1.0) if len(agreed) else (1.0,))
    theme.label_rows(panels[0], rows.labels)
    graders = frame.loc[frame["against"].isna(), "grader"].drop_duplicates().tolist()
    accuracies = Rows(frame[frame["against"].isna()])
    for number, (grader, colour) in enumerate(zip(graders, cycle(_GRADERS))):
        shift = 0.36 * (number / (len(graders) - 1) - 0.5)  # containment and at least one matcher
        accuracies.dots(panels[0], "accuracy", colour, grader, grader=grader, shift=shift)
    theme.percent_axis(panels[0], -0.02, 1.04)
    panels[0].set_title("Accuracy by grader")
    theme.legend(panels[0], columns=2)
    if len(agreed):
        pairs = agreed[["grader", "against"]].drop_duplicates().itertuples(index=False, name=None)
        for (grader, against), colour in zip(pairs, cycle(_GRADERS)):
            label = f"{grader} and {against}"
            rows.dots(panels[1], "scott_pi", colour, label, grader=grader, against=against)
        theme.change_axis(panels[1])
        panels[1].set_title("Scott's pi")
        theme.legend(panels[1], columns=1)
    return made


def perplexity_panel(panel: Any, dense: Numbers, own: Numbers) -> None:
    """The base's and the checkpoint's own perplexity in each row."""
    theme.link(panel, dense, own)
    theme.dots(panel, dense, "muted", "base", hollow=True)
    theme.dots(panel, own, "rank", "perplexity")
    theme.factor_axis(panel, [value for value in (*dense, *own) if value is not None])
    theme.label_values(panel, own, text=lambda value: f"{value:.3g}")
