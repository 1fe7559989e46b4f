"""What several figures share: linked dots, accuracies in one panel, perplexity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from evaluator.report.figures import theme
from evaluator.report.figures.rows import Numbers, Rows

Series = tuple[str, str, str, Mapping[str, str]]  # column, colour, label, which rows


def linked(panel: Any, rows: Rows, title: str, series: Sequence[Series], *, rates: bool = False) -> None:
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
        theme.change_axis(panel, points=True)
    panel.set_title(title)


def rates(frame: pd.DataFrame, title: str, series: Sequence[Series]) -> Any:
    rows = Rows(frame)
    made, (panel,) = theme.figure(len(rows), (1.0,))
    theme.label_rows(panel, rows.labels)
    linked(panel, rows, title, series, rates=True)
    theme.legend(panel)
    return made


def perplexity_panel(panel: Any, dense: Numbers, own: Numbers) -> None:
    """The base's and the checkpoint's own perplexity in each row."""
    theme.link(panel, dense, own)
    theme.dots(panel, dense, "muted", "base", hollow=True)
    theme.dots(panel, own, "rank", "perplexity")
    theme.factor_axis(panel, [value for value in (*dense, *own) if value is not None])
    theme.label_values(panel, own, text=theme.as_amount)
