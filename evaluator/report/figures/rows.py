"""A table as figures see it: its checkpoints as rows, and lookups that give one value per row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from evaluator.metrics.columns import rounded
from evaluator.metrics.inputs import ALL, MEAN, rows_where
from evaluator.report.figures import theme

Numbers = list[float | None]
Paint = Callable[[float], tuple[str, float, str]]  # value -> text, strength 0..1, colour


class Rows:
    """The checkpoints of a table in display order, and lookups that give one value per checkpoint."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame
        self.keys = list(frame[["task", "checkpoint"]].drop_duplicates().itertuples(index=False, name=None))
        tasks = frame["task"].nunique()
        self.labels = [checkpoint if tasks == 1 else f"{checkpoint} · {task}" for task, checkpoint in self.keys]
        self.languages = sorted(set(frame["language"]) - {ALL, MEAN})

    def __len__(self) -> int:
        return len(self.keys)

    def values(self, column: str, language: str = ALL, **equal: str) -> Numbers:
        rows = rows_where(self.frame, {"language": language, **equal})
        found = dict(zip(zip(rows["task"], rows["checkpoint"], strict=True), rows[column], strict=True))
        picked = [found.get(key) for key in self.keys]
        return [None if value is None or pd.isna(value) else float(value) for value in picked]

    def dots(self, panel: Any, column: str, colour: str, label: str, *, language: str = ALL, **equal: Any) -> Numbers:
        """Dots with whiskers from `column`, `column_low` and `column_high`; returns the values."""
        style = {name: equal.pop(name) for name in ("shift", "hollow") if name in equal}
        values, low, high = (self.values(f"{column}{end}", language, **equal) for end in ("", "_low", "_high"))
        theme.dots(panel, values, colour, label, whiskers=list(zip(low, high, strict=True)), **style)
        return values

    def heat(self, panel: Any, column: str, title: str, paint: Paint, **equal: str) -> None:
        cells = {}
        for language in self.languages:
            for row, value in enumerate(self.values(column, language, **equal)):
                if value is not None:
                    cells[row, language] = paint(value)
        theme.heat(panel, self.languages, cells)
        panel.set_title(title)


def share(colour: str) -> Paint:
    """A heat map's cell of a rate, as a whole percentage."""
    return lambda value: (rounded(100 * value), value, colour)
