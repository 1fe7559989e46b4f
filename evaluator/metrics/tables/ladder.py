"""Table `ladder`: the drop of open, shown and choice on the items measured in all
evaluated rungs.

The rows also have the perplexity on the first task of text by name, because this
metric may hide the drop."""

from collections.abc import Iterator
from functools import reduce

import numpy as np

from evaluator.metrics.bootstrap import intervals, language_intervals
from evaluator.metrics.columns import (
    BY_LANGUAGE,
    COUNT,
    DROP,
    PERCENTAGE,
    RATIO,
    TEXT,
    WORDS,
    Row,
)
from evaluator.metrics.cuts import Cut
from evaluator.metrics.fates import CORRECT, headroom, normalised, over_headroom
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.items import ALL, Items, within
from evaluator.metrics.measures import Average, Measure, bounds, defined_in, drop
from evaluator.metrics.table import Dots, Holm, Lack, Series, Table, amount
from evaluator.metrics.tables.perplexity import PERPLEXITY, first_readings

# rung -> format, probe
RUNGS = {
    "open": ("open", "greedy"),
    "shown": ("shown", "greedy"),
    "choice": ("open", "choice"),
}


def _rows(inputs: Inputs) -> Iterator[Row]:
    readings = first_readings(inputs)
    for subject in inputs.compared:
        measured: dict[str, Items] = {}
        for rung, (format, probe) in RUNGS.items():
            both = inputs.of(subject, format).both
            if both.any_ran(probe):
                measured[rung] = both.measured(probe, both=True)
        if not measured:
            reason = inputs.alone(subject) or "no format was asked"
            yield subject.row | {"language": ALL, "n": 0, "reason": reason}
            continue
        common = reduce(np.intersect1d, [each["item"] for each in measured.values()])
        for rung in measured:
            format, probe = RUNGS[rung]
            cut = Cut(
                keys={"rung": rung},
                probes=(probe,),
                both=True,
                where=within(common),
                measures=(
                    Average("dense", f"base_{CORRECT[probe]}"),
                    Average("pruned", CORRECT[probe]),
                    drop("drop", CORRECT[probe]),
                    _Normalised(probe),
                ),
                mean=True,
                pooled=True,
                nothing="no item is measured in every rung",
            )
            for row in cut.rows(inputs, subject, format):
                yield row | readings.get(subject.checkpoint, {})


class _Normalised(Measure):
    """The drop relative to its headroom, and the number of languages."""

    def __init__(self, probe: str) -> None:
        self._probe = probe

    def __call__(self, items: Items) -> Row:
        row: Row = {"languages": len(items.languages)}
        if not len(items):
            return row
        values, kinds = headroom(items, self._probe)
        base, own, floor = (float(each.mean()) for each in values)
        relative, reason = over_headroom(base - own, base, floor)
        row |= {
            "normalised_drop": relative,
            "reason": reason and f"{self._probe}: {reason}",
        }
        if relative is not None:
            row |= bounds(
                "normalised_drop", *intervals(normalised, values, items, kinds)
            )
        return row

    def over_languages(self, items: Items) -> Row:
        """Of the languages with a defined one."""
        defined, rows, why = defined_in(self, "normalised_drop", items)
        row: Row = {"reason": why}
        if rows:
            values, kinds = headroom(defined, self._probe)
            found = language_intervals(normalised, values, defined, kinds)
            row["normalised_drop"] = float(
                np.mean([each["normalised_drop"] for each in rows])
            )
            row |= bounds("normalised_drop", *found)
        return row


_PAINTS = {"open": "greedy", "shown": "shown", "choice": "choice"}
_PERPLEXITIES = (
    Series("perplexity_dense", "muted", "base", {"rung": "open"}, hollow=True),
    Series("perplexity", "rank", "perplexity", {"rung": "open"}),
)


def _by_rung(column: str) -> tuple[Series, ...]:
    return tuple(
        Series(column, colour, rung, {"rung": rung}) for rung, colour in _PAINTS.items()
    )


TABLE = Table(
    name="ladder",
    title="Does more support mean less damage?",
    reading=(
        "The drop from the dense model with nothing shown (open: said), with"
        " candidates listed in the prompt (shown), and with options only scored"
        " (choice: picked). The second panel divides each drop by its headroom."
        " Perplexity, if measured, is shown too: it may hardly move while answers go"
        " unsaid."
    ),
    needs=(
        "the probes greedy and choice, and the formats open and shown, on a checkpoint"
        " and its base"
    ),
    columns=(
        *BY_LANGUAGE,
        *TEXT("rung"),
        *COUNT("n", "excluded", "engine_error", "unpaired", "languages"),
        *PERCENTAGE("dense", "pruned"),
        *DROP,
        *RATIO.estimates("normalised_drop"),
        *WORDS("perplexity_task"),
        *PERPLEXITY("perplexity_dense", "perplexity"),
    ),
    compute=_rows,
    figure=(
        Dots("Drop in points", _by_rung("drop"), "points", linked=True),
        Dots(
            "Drop relative to headroom",
            _by_rung("normalised_drop"),
            "changes",
            linked=True,
        ),
        Dots(
            "Perplexity, {perplexity_task}",
            _PERPLEXITIES,
            "amounts",
            width=0.7,
            linked=True,
            text=amount,
        ),
    ),
    plotted=lambda frame: frame[frame["n"] > 0],
    corrections=(Holm(("task", "language", "rung")),),
    lacks=(
        Lack("rung", "the probe greedy (the rung open)", "open"),
        Lack("rung", "the format shown with the probe greedy", "shown"),
        Lack("rung", "the probe choice (its rung)", "choice"),
    ),
)
