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
from dataclasses import dataclass

import numpy as np

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
from evaluator.metrics.comparable import settings_of
from evaluator.metrics.cuts import Cut
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.intervals import Floats
from evaluator.metrics.items import BASE, Array, Flags, Items, sides_of
from evaluator.metrics.measures import Average, Lengthening, Share, as_floats
from evaluator.metrics.table import Dots, Series, Table


@dataclass(frozen=True)
class _Limit:
    """The limit of a pair's answers, and the tokens that end shorter ones."""

    most: float
    ends: Array

    @classmethod
    def of(cls, items: Items, limit: int) -> "_Limit":
        """`limit`: 0 is unknown."""
        lengths = np.concatenate(sides_of(items, "answer_tokens"))
        lasts = np.concatenate(sides_of(items, "last_token"))
        most = limit or lengths.max(initial=0)
        return cls(most, np.unique(lasts[lengths < most]))

    def cut(self, items: Items, side: str = "") -> Floats:
        """Which answers the limit cut off."""
        lengths, lasts = items[f"{side}answer_tokens"], items[f"{side}last_token"]
        return as_floats((lengths >= self.most) & ~np.isin(lasts, self.ends))

    def cut_base(self, items: Items) -> Floats:
        return self.cut(items, BASE)

    def cut_more(self, items: Items) -> Floats:
        return self.cut(items) - self.cut_base(items)


def _has_tokens(items: Items) -> Flags:
    return items.has("base_answer_tokens") & items.has("answer_tokens")


def _rows(inputs: Inputs) -> Iterator[Row]:
    for subject in inputs.compared:
        settings = settings_of(inputs.run, subject.checkpoint, subject.task)
        limit = settings.get("max_new_tokens") or 0
        both = inputs.of(subject).measured("greedy", both=True)
        answers = _Limit.of(both.take(_has_tokens(both)), limit)
        cut = Cut(
            probes=("greedy",),
            both=True,
            where=_has_tokens,
            nothing="no greedy answer with its tokens in both checkpoints",
            measures=(
                Average("base_tokens", "base_answer_tokens"),
                Average("tokens", "answer_tokens"),
                Lengthening("ratio", "answer_tokens", limit),
                Share("base_at_limit", answers.cut_base),
                Share("at_limit", answers.cut),
                Share("more_at_limit", answers.cut_more, low=-1.0),
            ),
        )
        yield from cut.rows(inputs, subject, "open")


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
