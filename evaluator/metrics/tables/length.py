"""Table `length`: do answers become longer, and do they still end? (arXiv 2606.25519 finds that both suffer.)

Tokens of the greedy answers to the open prompt, EOS included, on the items measured in both checkpoints. `ratio` is
mean over mean; its interval knows that no answer is longer than the limit. `at_limit` is the share of answers that
reached the limit of new tokens without an EOS.

Records do not say which token is EOS, but an answer ends by EOS or by the limit, and by nothing else: whatever an
answer that is shorter than the limit ends in is an EOS, and an answer as long as the limit was cut off unless it ends
in one of them. The limit is what run.json says, or else the length of the longest answer of the pair.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from evaluator.metrics.columns import (
    AMOUNT,
    COUNT,
    FACTOR,
    LANGUAGE,
    PERCENTAGE,
    POINTS,
    REASON,
    SUBJECT,
    Column,
    Row,
    columns_of,
)
from evaluator.metrics.comparability import settings_of
from evaluator.metrics.counting import joined_reasons
from evaluator.metrics.drops import sides_of, why_unpaired
from evaluator.metrics.figure import Dots, Figure, Series
from evaluator.metrics.inputs import SIDES, Comparison, Inputs, in_language, slices
from evaluator.metrics.means import Ratio
from evaluator.metrics.measures import as_floats, difference, of_mean, rate
from evaluator.metrics.table import Table


def _rows(inputs: Inputs) -> Iterator[Row]:
    """One row per checkpoint with a base, pooled and by language."""
    for comparison in inputs.comparisons().values():
        if not comparison.tells_of("greedy"):
            continue
        limit = _limit(inputs, comparison)
        here = _with_ends(comparison.measured("greedy"), limit)
        for language, _ in slices(comparison.outcomes, comparison.languages):
            yield _row(inputs, comparison, language, in_language(here, language), limit)


def _row(inputs: Inputs, comparison: Comparison, language: str, items: pd.DataFrame, limit: int | None) -> Row:
    row: Row = {**comparison.subject.row, "language": language, "n": len(items)}
    row |= comparison.counts(language, "greedy")
    why = why_unpaired(comparison, language, "greedy")
    if items.empty:
        none = comparison.reason or "no greedy answer with its tokens in both checkpoints"
        return row | {"reason": joined_reasons(none, why)}
    contexts = inputs.contexts_of(comparison.subject.task, items)
    dense, pruned = sides_of(items, "answer_tokens")
    row |= {"base_tokens": float(dense.mean()), "tokens": float(pruned.mean()), "reason": why}
    most = max(limit or 0, dense.max(), pruned.max())
    row |= of_mean("ratio", Ratio(pruned / most, dense / most, contexts))
    limited = sides_of(items, "at_limit")
    for name, values in zip(("base_at_limit", "at_limit"), limited, strict=True):
        row |= rate(name, values, contexts)
    return row | difference("more_at_limit", limited[1] - limited[0], contexts)


def _limit(inputs: Inputs, comparison: Comparison) -> int | None:
    settings = settings_of(inputs.run, comparison.subject.checkpoint, comparison.subject.task)
    limit = settings.get("max_new_tokens")
    return limit if isinstance(limit, int) else None


def _with_ends(items: pd.DataFrame, limit: int | None) -> pd.DataFrame:
    """The items whose answers have tokens, with `at_limit_dense` and `at_limit_pruned`."""
    tokens = [f"answer_tokens_{side}" for side in SIDES]
    items = items[items[tokens].notna().all(axis=1)]
    lengths = np.concatenate([as_floats(items[name]) for name in tokens])
    lasts = np.concatenate([as_floats(items[f"last_token_{side}"]) for side in SIDES])
    most = limit or (lengths.max() if len(lengths) else 0)
    ends = np.unique(lasts[lengths < most])
    limited = (lengths >= most) & ~np.isin(lasts, ends)
    dense, pruned = np.split(limited.astype(np.float64), 2)
    return items.assign(at_limit_dense=dense, at_limit_pruned=pruned)


TABLE = Table(
    name="length",
    title="Do answers grow longer, and do they still end?",
    reading=(
        "Mean tokens of the greedy answers to the open prompt, EOS included, and their ratio to the base's. at "
        "limit: the share of answers without EOS, which reached the limit of new tokens. A model that continues "
        "where its base stops has lost more than an accuracy shows."
    ),
    needs="the probe greedy on a checkpoint and its base",
    columns=(
        *SUBJECT,
        LANGUAGE,
        *columns_of(COUNT, "n", "excluded", "engine_error", "unpaired"),
        Column("base_tokens", AMOUNT),
        Column("tokens", AMOUNT),
        Column("ratio", FACTOR, interval=True),
        *columns_of(PERCENTAGE, "base_at_limit", "at_limit", interval=True),
        Column("more_at_limit", POINTS, interval=True),
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        (
            Dots(
                "Tokens of an answer, in multiples of the base's",
                (Series("ratio", "rank", "tokens"),),
                "amounts",
                width=1.15,
                line=1,
                text=lambda value: f"{value:.2f}",
            ),
            Dots(
                "Answers cut off at the limit",
                (
                    Series("base_at_limit", "muted", "base", hollow=True),
                    Series("at_limit", "lost", "checkpoint"),
                ),
                linked=True,
                legend=4,
            ),
        ),
        rows=lambda frame: frame[frame["ratio"].notna()],
    ),
)
