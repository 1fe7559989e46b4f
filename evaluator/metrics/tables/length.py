"""Table `length`: do answers become longer, and do they still end? (arXiv 2606.25519
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

from evaluator.metrics.columns import (
    AMOUNT,
    BY_LANGUAGE,
    COUNT,
    COUNTED,
    FACTOR,
    PERCENTAGE,
    POINTS,
    Row,
)
from evaluator.metrics.fates import paired_row, sides_of
from evaluator.metrics.inputs import Inputs, Part, settings_of
from evaluator.metrics.intervals import Ratio
from evaluator.metrics.measures import contexts_of, difference, of_mean, rate
from evaluator.metrics.table import Dots, Series, Table


def _rows(inputs: Inputs) -> Iterator[Row]:
    """One row per checkpoint with a base, pooled and by language."""
    for comparison in inputs.comparisons().values():
        if comparison.tells_of("greedy"):
            task, checkpoint = comparison.subject.key
            settings = settings_of(inputs.run, checkpoint, task)
            limit = settings.get("max_new_tokens") or 0
            items = _with_ends(comparison.measured("greedy"), limit)
            for part in comparison.parts(items):
                yield _row(part, limit)


def _row(part: Part, limit: int) -> Row:
    items = part.items
    nothing = "no greedy answer with its tokens in both checkpoints"
    row = paired_row(part, "greedy", nothing)
    if items.empty:
        return row
    dense, pruned = sides_of(items, "answer_tokens")
    most = max(limit, dense.max(), pruned.max())
    ratio = Ratio(pruned / most, dense / most, contexts_of(items))
    before, after = sides_of(items, "at_limit")
    return {
        **row,
        "base_tokens": float(dense.mean()),
        "tokens": float(pruned.mean()),
        **of_mean("ratio", ratio),
        **rate("base_at_limit", before, items),
        **rate("at_limit", after, items),
        **difference("more_at_limit", after - before, items),
    }


def _with_ends(items: pd.DataFrame, limit: int) -> pd.DataFrame:
    """The items whose answers have tokens, with `at_limit_dense` and
    `at_limit_pruned`; a `limit` of 0 is unknown."""
    known = items[["answer_tokens_dense", "answer_tokens_pruned"]].notna().all(axis=1)
    items = items[known]
    lengths = np.concatenate(sides_of(items, "answer_tokens"))
    lasts = np.concatenate(sides_of(items, "last_token"))
    most = limit or lengths.max(initial=0)
    ends = np.unique(lasts[lengths < most])
    limited = (lengths >= most) & ~np.isin(lasts, ends)
    dense, pruned = np.split(limited.astype(np.float64), 2)
    return items.assign(at_limit_dense=dense, at_limit_pruned=pruned)


_OF_BASE = "Tokens of an answer, in multiples of the base's"
_CUT = (
    Series("base_at_limit", "muted", "base", hollow=True),
    Series("at_limit", "lost", "checkpoint"),
)

TABLE = Table(
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
        *BY_LANGUAGE,
        *COUNTED,
        *COUNT("unpaired"),
        *AMOUNT("base_tokens", "tokens", stored="tokens"),
        *FACTOR.estimates("ratio"),
        *PERCENTAGE.estimates("base_at_limit", "at_limit"),
        *POINTS.estimates("more_at_limit"),
    ),
    compute=_rows,
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
