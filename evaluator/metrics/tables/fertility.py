"""Tokens: how finely a language is cut, and how long answers are.

Table `fertility`: how finely the tokenizer cuts a language, beside what pruning
costs that language.

Fertility is tokens per word (between white space) of the options that the probe
`choice` scored, gold and distractors, over all items of the language; per character
for scripts without spaces between words. `unit` names which. Options are short, so
their fertility is higher than that of running text, in all languages alike. Row
`mean` is the unweighted mean over the languages of one unit.

Table `length`: do answers become longer, and do they still end? (arXiv 2606.25519
finds that both suffer.)

It counts the tokens of the greedy answers to the open prompt, EOS included, on the
items measured in both checkpoints. `ratio` is mean over mean; its interval uses that
no answer is longer than the limit. `at_limit` is the share of answers that reached
the limit of new tokens without an EOS. Records do not name the EOS token. But the
last token of an answer that is shorter than the limit is one. An answer as long as
the limit was cut off, unless it ends in one of these. The limit is that of run.json,
or else the length of the pair's longest answer."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

import evaluator.metrics.columns as col
from evaluator.core.text import without_spaces
from evaluator.metrics.columns import Column, Row
from evaluator.metrics.exclusions import joined_reasons, measured
from evaluator.metrics.fates import (
    CORRECT,
    floor_of,
    over_headroom,
    sides_of,
    why_unpaired,
)
from evaluator.metrics.inputs import (
    MEAN,
    SIDES,
    Comparison,
    Inputs,
    Subject,
    settings_of,
    slices,
)
from evaluator.metrics.intervals import Ratio
from evaluator.metrics.measures import (
    Unbounded,
    as_floats,
    bounds,
    difference,
    language_mean,
    of_mean,
    rate,
)
from evaluator.metrics.table import Dots, Lack, Scatter, Series, Table

_SUMMED = ("n", "excluded", "engine_error", "tokens", "units")


def _rows(inputs: Inputs) -> Iterator[Row]:
    """A mean for each unit and a row per language; drops if the checkpoint has a
    base."""
    comparisons = inputs.comparisons()
    for subject in inputs.checkpoints:
        items = inputs.outcomes_of(subject.checkpoint, subject.task)
        if not items["choice_status"].notna().any():
            continue
        comparison = comparisons.get(subject.key)
        by_unit: dict[str, list[tuple[Row, Unbounded | None]]] = {}
        for language in inputs.languages(subject.task):
            row, ratio = _fertility(
                inputs, subject, items[items["language"] == language], language
            )
            row |= _drops(inputs, comparison, language)
            by_unit.setdefault(row["unit"], []).append((row, ratio))
        for unit, found in by_unit.items():
            # The unweighted mean over the languages of one unit; counts are sums.
            ratios = [ratio for _, ratio in found if ratio is not None]
            of = f"{len(ratios)} of {len(found)} languages with tokens per {unit}"
            row = {
                **subject.row,
                "language": MEAN,
                "unit": unit,
                "reason": f"unweighted mean over {of}",
            }
            row |= {name: sum(each[name] for each, _ in found) for name in _SUMMED}
            if ratios:
                mean = Unbounded.mean(ratios)
                row |= {
                    "fertility": mean.value,
                    **bounds("fertility", mean.interval("log")),
                }
            row |= _drops(inputs, comparison, *(each["language"] for each, _ in found))
            normal = [
                drop
                for each, _ in found
                if (drop := each.get("open_normalised_drop")) is not None
            ]
            yield row | {
                "open_normalised_drop": sum(normal) / len(normal) if normal else None
            }
        rows = {row["language"]: row for found in by_unit.values() for row, _ in found}
        yield from (rows[language] for language in inputs.languages(subject.task))


def _fertility(
    inputs: Inputs, subject: Subject, items: pd.DataFrame, language: str
) -> tuple[Row, Unbounded | None]:
    done, counts = measured(items, "choice", nothing="no option was scored")
    done = done[done["option_tokens"].notna()]
    unit = "character" if without_spaces(language) else "word"
    tokens, units = int(done["option_tokens"].sum()), int(done[f"option_{unit}s"].sum())
    row: Row = {
        **subject.row,
        "language": language,
        **counts,
        "n": len(done),
        "tokens": tokens,
        "units": units,
    }
    row |= {"unit": unit, "fertility": tokens / units if units else None}
    if not units:
        return row, None
    cut, of = as_floats(done["option_tokens"]), as_floats(done[f"option_{unit}s"])
    ratio = Unbounded.ratio(cut, of, inputs.contexts_of(subject.task, done))
    return row | bounds("fertility", ratio.interval("log")), ratio


def _drops(inputs: Inputs, comparison: Comparison | None, *languages: str) -> Row:
    """The drops on the items that both probes measured in both checkpoints, as the
    mean over these languages."""
    if comparison is None:
        return {}
    both = comparison.measured("greedy", "choice")
    both = both[both["language"].isin(languages)]
    row: Row = {"n_paired": len(both)}
    if both.empty:
        return row
    (dense, said), (picked, still) = (
        sides_of(both, CORRECT[probe]) for probe in ("greedy", "choice")
    )
    contexts = inputs.contexts_of(comparison.subject.task, both)
    row |= language_mean("open_drop", dense - said, both, contexts, low=-1.0)
    row |= language_mean("choice_drop", picked - still, both, contexts, low=-1.0)
    floor = floor_of(both, "greedy", "_dense")
    row["open_normalised_drop"], _ = over_headroom(
        row["open_drop"], float(dense.mean()), floor
    )
    return row


_DRAWN = 4  # checkpoints
_AXES, _UNITS = (
    ("tokens per word or character", "open drop"),
    ("per word", "per character"),
)
_EACH = Scatter(
    "open drop",
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
    parts = [
        frame[(frame["task"] == task) & (frame["checkpoint"] == checkpoint)]
        for task, checkpoint in chosen
    ]
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
        *col.BY_LANGUAGE,
        *col.COUNT(*_SUMMED),
        Column("unit", col.TEXT),
        Column("fertility", col.AMOUNT, interval=True, stored="tokens per `unit`"),
        Column("n_paired", col.COUNT),
        Column("open_drop", col.POINTS, interval=True),
        Column("open_normalised_drop", col.RATIO),
        Column("choice_drop", col.POINTS, interval=True),
    ),
    compute=_rows,
    figure=(_EACH,),
    plotted=_largest_drops,
    lacks=(Lack("open_drop", "the probe greedy on a checkpoint and its base"),),
)


def _length_rows(inputs: Inputs) -> Iterator[Row]:
    """One row per checkpoint with a base, pooled and by language."""
    for comparison in inputs.comparisons().values():
        if not comparison.tells_of("greedy"):
            continue
        subject = comparison.subject
        limit = settings_of(inputs.run, subject.checkpoint, subject.task).get(
            "max_new_tokens"
        )
        limit = limit if isinstance(limit, int) else 0
        for language, items in slices(
            _with_ends(comparison.measured("greedy"), limit), comparison.languages
        ):
            why = why_unpaired(comparison, language, "greedy")
            row: Row = {
                **subject.row,
                "language": language,
                "n": len(items),
                "reason": why,
            }
            row |= comparison.counts(language, "greedy")
            if items.empty:
                none = (
                    comparison.reason
                    or "no greedy answer with its tokens in both checkpoints"
                )
                yield row | {"reason": joined_reasons(none, why)}
                continue
            contexts = inputs.contexts_of(subject.task, items)
            dense, pruned = sides_of(items, "answer_tokens")
            row |= {"base_tokens": float(dense.mean()), "tokens": float(pruned.mean())}
            most = max(limit, dense.max(), pruned.max())
            row |= of_mean("ratio", Ratio(pruned / most, dense / most, contexts))
            before, after = sides_of(items, "at_limit")
            row |= rate("base_at_limit", before, contexts) | rate(
                "at_limit", after, contexts
            )
            yield row | difference("more_at_limit", after - before, contexts)


def _with_ends(items: pd.DataFrame, limit: int) -> pd.DataFrame:
    """The items whose answers have tokens, with `at_limit_dense` and
    `at_limit_pruned`; a `limit` of 0 is unknown."""
    tokens = [f"answer_tokens_{side}" for side in SIDES]
    items = items[items[tokens].notna().all(axis=1)]
    lengths = np.concatenate([as_floats(items[name]) for name in tokens])
    lasts = np.concatenate([as_floats(items[f"last_token_{side}"]) for side in SIDES])
    most = limit or (lengths.max() if len(lengths) else 0)
    limited = (lengths >= most) & ~np.isin(lasts, np.unique(lasts[lengths < most]))
    dense, pruned = np.split(limited.astype(np.float64), 2)
    return items.assign(at_limit_dense=dense, at_limit_pruned=pruned)


_OF_BASE = "Tokens of an answer, in multiples of the base's"
_CUT = (
    Series("base_at_limit", "muted", "base", hollow=True),
    Series("at_limit", "lost", "checkpoint"),
)

LENGTH = Table(
    name="length",
    title="Do answers grow longer, and do they still end?",
    reading=(
        "Mean tokens of the greedy answers to the open prompt, EOS included, and their"
        " ratio to the base's. at limit: the share of answers without EOS, which"
        " reached the limit of new tokens. A model that continues where its base stops"
        " has lost more than an accuracy shows."
    ),
    needs="the probe greedy on a checkpoint and its base",
    columns=(
        *col.BY_LANGUAGE,
        *col.COUNT("n", "excluded", "engine_error", "unpaired"),
        *col.AMOUNT("base_tokens", "tokens", stored="tokens"),
        Column("ratio", col.FACTOR, interval=True),
        *col.PERCENTAGE("base_at_limit", "at_limit", interval=True),
        Column("more_at_limit", col.POINTS, interval=True),
    ),
    compute=_length_rows,
    figure=(
        Dots(
            _OF_BASE,
            (Series("ratio", "rank", "tokens"),),
            "amounts",
            width=1.15,
            line=1,
            text="{:.2f}".format,
        ),
        Dots("Answers cut off at the limit", _CUT, linked=True),
    ),
    plotted=lambda frame: frame[frame["ratio"].notna()],
)
