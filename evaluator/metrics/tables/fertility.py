"""Table `fertility`: how finely the tokenizer cuts a language, beside what pruning
costs that language.

Fertility is tokens per word (between white space) of the options that the probe
`choice` scored, gold and distractors, over all items of the language; per character
for scripts without spaces between words. `unit` names which. Options are short, so
their fertility is higher than that of running text, in all languages alike. Row
`mean` is the unweighted mean over the languages of one unit."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from evaluator.core.records import is_group
from evaluator.core.text import without_spaces
from evaluator.metrics.columns import (
    AMOUNT,
    BY_LANGUAGE,
    COUNT,
    POINTS,
    RATIO,
    WORDS,
    Column,
    Row,
)
from evaluator.metrics.fates import over_headroom
from evaluator.metrics.inputs import Inputs, Part
from evaluator.metrics.items import ALL, MEAN, Items, joined_reasons
from evaluator.metrics.measures import Unbounded, drop
from evaluator.metrics.table import Lack, Scatter, Table

_SUMMED = ("n", "excluded", "engine_error", "tokens", "units")


def _rows(inputs: Inputs) -> Iterator[Row]:
    """A mean for each unit and a row per language; drops if the checkpoint has a
    base."""
    for subject in inputs.checkpoints:
        parts = [
            part
            for part in inputs.parts(subject, where=["choice_status"])
            if part.language != ALL and not is_group(part.language)
        ]
        rows: dict[str, list[Row]] = {}
        ratios: dict[str, list[Unbounded | None]] = {}
        by_language = []
        for part in parts:
            row, ratio = _fertility(part)
            if subject.base:
                row |= _drops(part.items)
            by_language.append(row)
            rows.setdefault(row["unit"], []).append(row)
            ratios.setdefault(row["unit"], []).append(ratio)
        for unit, of_unit in rows.items():
            mean = subject.row | {"language": MEAN, "unit": unit}
            mean |= _mean(of_unit, ratios[unit], unit)
            if subject.base:
                languages = [row["language"] for row in of_unit]
                items = inputs.of(subject)
                here = np.isin(items["language"].astype(str), languages)
                mean |= _drops(items.take(here))
            drops = [row.get("open_normalised_drop") for row in of_unit]
            known = [drop for drop in drops if drop is not None]
            mean["open_normalised_drop"] = sum(known) / len(known) if known else None
            yield mean
        yield from by_language


def _mean(rows: Sequence[Row], ratios: Sequence[Unbounded | None], unit: str) -> Row:
    """The unweighted mean over the languages of one unit; counts are sums."""
    defined = [ratio for ratio in ratios if ratio is not None]
    row: Row = {name: sum(each[name] for each in rows) for name in _SUMMED}
    row["reason"] = (
        f"unweighted mean over {len(defined)} of {len(rows)} languages with tokens per"
        f" {unit}"
    )
    return row | (Unbounded.mean(defined).row("fertility", "log") if defined else {})


def _fertility(part: Part) -> tuple[Row, Unbounded | None]:
    done = part.items.measured("choice")
    done = done.take(done.has("option_tokens"))
    unit = "character" if without_spaces(part.language) else "word"
    nothing = None if len(done) else "no option was scored"
    why = part.items.why_left_out("choice_status")
    row = part.row | {"n": len(done), **part.items.left_out("choice_status")}
    row |= {"unit": unit, "reason": joined_reasons(nothing, why)}
    tokens, units = done["option_tokens"], done[f"option_{unit}s"]
    row |= {"tokens": int(tokens.sum()), "units": int(units.sum())}
    if not row["units"]:
        return row, None
    ratio = Unbounded.ratio(tokens, units, done)
    return row | ratio.row("fertility", "log"), ratio


def _drops(items: Items) -> Row:
    """The drops on the items that both probes measured in both checkpoints, as the
    mean over their languages."""
    both = items.measured("greedy", "choice", both=True)
    row: Row = {"n_paired": len(both)}
    if not len(both):
        return row
    row |= drop("open_drop", "produced").over_languages(both)
    row |= drop("choice_drop", "recognised").over_languages(both)
    accuracy = float(both["base_produced"].mean())
    row["open_normalised_drop"], _ = over_headroom(row["open_drop"], accuracy, 0.0)
    return row


_DRAWN = 4  # checkpoints
_AXES, _UNITS = (
    ("tokens per word or character", "said drop"),
    ("per word", "per character"),
)
_EACH = Scatter(
    "said drop",
    "fertility",
    "open_drop",
    "greedy",
    "language",
    "hollow",
    *_AXES,
    "points",
    each=True,
    labels=_UNITS,
)


def _largest_drops(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame[
        frame["open_drop"].notna()
        & frame["fertility"].notna()
        & (frame["language"] != MEAN)
    ]
    drops = frame.groupby(["task", "checkpoint"], sort=False)["open_drop"].mean()
    chosen = drops.sort_values(ascending=False, kind="stable").index[:_DRAWN]
    keys = frame.set_index(["task", "checkpoint"]).index
    parts = [frame[keys == key] for key in chosen]
    shown: pd.DataFrame = pd.concat(parts or [frame])
    return shown.assign(hollow=shown["unit"] == "character")


TABLE = Table(
    name="fertility",
    title="Do finely cut languages lose more?",
    reading=(
        "Fertility is the number of tokens per word of the answer options (per"
        " character in scripts without spaces). The figure compares it with the drop of"
        " each language; every dot is a language."
    ),
    needs="the probe choice",
    columns=(
        *BY_LANGUAGE,
        *COUNT(*_SUMMED),
        *WORDS("unit"),
        Column("fertility", AMOUNT, interval=True, stored="tokens per `unit`"),
        *COUNT("n_paired"),
        *POINTS.estimates("open_drop", n="n_paired"),
        *RATIO("open_normalised_drop", n="n_paired"),
        *POINTS.estimates("choice_drop", n="n_paired"),
    ),
    compute=_rows,
    figure=(_EACH,),
    plotted=_largest_drops,
    lacks=(Lack("open_drop", "the probe greedy on a checkpoint and its base"),),
)
