"""Table `length`: do answers become longer, and do they still end? (arXiv 2606.25519
finds that both suffer.)

It counts the tokens of the greedy answers to the open prompt, EOS included, on the
items measured in both checkpoints. `ratio` is mean over mean; its interval uses that
no answer is longer than the limit. `at_limit` is the share of answers that reached
the limit of new tokens without an EOS. Records do not name the EOS token. But the
last token of an answer that is shorter than the limit is one. An answer as long as
the limit was cut off, unless it ends in one of these. Without a shorter answer, all
were if they end in different tokens, and else that is unknown. The limit is that of
run.json, or else the length of the pair's longest answer.

Three outcomes are no short answer, and an answer has one of them at most:

- `loop`: it repeats itself, cut or not: at least half of its runs of 8 words, or of
  characters where its words are few, stand in it before (`evaluator.core.text.loops`).
- `cut`: it reached the limit without an EOS, and does not loop.
- `long`: it ended by itself, does not loop, and is over LONG times as long as the
  base's.

An answer that was posed again (`recheck_cut`) is one beyond the limit. `rechecked` counts
these, and the columns behind it what became of them; `at_limit` and `cut` are then of
the limit with which they were posed again."""

from collections.abc import Callable, Iterator
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
    WHY,
    Row,
)
from evaluator.metrics.comparable import settings_of
from evaluator.metrics.cuts import Cut
from evaluator.metrics.inputs import Inputs, Subject
from evaluator.metrics.intervals import Floats
from evaluator.metrics.items import BASE, Array, Flags, Items, sides_of
from evaluator.metrics.measures import Average, Count, Lengthening, Of, Share, as_floats
from evaluator.metrics.table import Dots, Series, Table

LONG = 2
_UNKNOWN = "every answer is as long as the limit and ends in the same token"


@dataclass(frozen=True)
class _Limit:
    """The limit of a pair's answers, and the tokens that end shorter ones."""

    limit: int  # 0: unknown
    most: float
    ends: Array

    @classmethod
    def of(cls, inputs: Inputs, subject: Subject) -> "_Limit":
        settings = settings_of(inputs.run, subject.checkpoint, subject.task)
        limit = settings.get("max_new_tokens") or 0
        items = inputs.of(subject).measured("greedy", both=True)
        items = items.take(_has_tokens(items))
        lengths = np.concatenate(sides_of(items, "answer_tokens"))
        lasts = np.concatenate(sides_of(items, "last_token"))
        most = limit or lengths.max(initial=0)
        longest = settings.get("recheck_limit") or lengths.max(initial=0)
        ended = (lengths < most) | ((lengths > most) & (lengths < longest))
        ends = np.unique(lasts[ended])
        if not len(ends) and len(np.unique(lasts)) > 1:
            ends = np.array([np.nan])  # none of them
        return cls(limit, most, ends)

    def rechecked(self, items: Items) -> Floats:
        return as_floats(items["answer_tokens"] > self.most)

    def rechecked_base(self, items: Items) -> Floats:
        return self.rechecked(items.of_base)

    def rechecked_of(self, outcome: Callable[[Items], Floats]) -> Of:
        return lambda items: self.rechecked(items) * outcome(items)

    def cut(self, items: Items, side: str = "") -> Floats:
        """Which answers the limit cut off; NaN: unknown."""
        if not len(self.ends):
            return np.full(len(items), np.nan)
        lengths, lasts = items[f"{side}answer_tokens"], items[f"{side}last_token"]
        return as_floats((lengths >= self.most) & ~np.isin(lasts, self.ends))

    def cut_base(self, items: Items) -> Floats:
        return self.cut(items, BASE)

    def cut_more(self, items: Items) -> Floats:
        return self.cut(items) - self.cut_base(items)

    def cut_alone(self, items: Items) -> Floats:
        return self.cut(items) * (1 - _loops(items))

    def long(self, items: Items) -> Floats:
        base, own = sides_of(items, "answer_tokens")
        return (own > LONG * base) * (1 - self.cut(items)) * (1 - _loops(items))


class _OfCut(Share):
    """A share that needs to know which answers were cut."""

    def __call__(self, items: Items) -> Row:
        row = super().__call__(items)
        return row or ({f"{self.name}{WHY}": _UNKNOWN} if len(items) else row)


def _loops(items: Items, side: str = "") -> Floats:
    return np.nan_to_num(items[f"{side}answer_loops"])


def _right(items: Items) -> Floats:
    return as_floats(items["produced"])


def unended(inputs: Inputs, subject: Subject) -> str:
    """How many of the answers that the base says and the checkpoint does not are cut or
    loop, thoughts too, while the base's are not; before it, if most of the base's are cut.
    Empty: neither."""
    items = inputs.of(subject).measured("greedy", both=True)
    limit = _Limit.of(inputs, subject)
    lost = items.take((items["base_produced"] == 1) & (items["produced"] == 0))
    loop, cut = (
        np.nan_to_num(lost[f"thought_{name}"]) > 0 for name in ("loops", "cut")
    )
    loop = (loop & cut) | ((_loops(lost) > 0) & (_loops(lost, BASE) == 0))
    cut = (cut | (limit.cut(lost) > limit.cut_base(lost))) & ~loop
    told, full = [], int(np.nansum(limit.cut_base(items)))
    if 2 * full > len(items):
        told.append(
            f"{full:,} of {len(items):,} answers of the base are cut at a limit"
            " (max_new_tokens, --recheck-cut)"
        )
    if (cut | loop).any():
        told.append(
            f"of {len(lost):,} answers that only the base says, {int(cut.sum()):,} are"
            f" cut at a limit and {int(loop.sum()):,} loop, unlike the base's"
        )
    return "; ".join(told)


def filled_limits(inputs: Inputs) -> Iterator[str]:
    """A line for each checkpoint, dense ones too, of which answers that were posed again
    are as long as their limit."""
    for subject in inputs.checkpoints:
        name, task = subject.checkpoint, subject.task
        if limit := settings_of(inputs.run, name, task).get("recheck_limit"):
            items = inputs.of(subject).measured("greedy")
            if full := int((items["answer_tokens"] >= limit).sum()):
                yield (
                    f"{name} on {task}: {full:,} of {len(items):,} answers fill the"
                    f" rechecked limit of {limit} tokens"
                )


def _has_tokens(items: Items) -> Flags:
    return items.has("base_answer_tokens") & items.has("answer_tokens")


def _rows(inputs: Inputs) -> Iterator[Row]:
    for subject in inputs.compared:
        answers = _Limit.of(inputs, subject)
        cut = Cut(
            probes=("greedy",),
            both=True,
            where=_has_tokens,
            nothing="no greedy answer with its tokens in both checkpoints",
            measures=(
                Average("base_tokens", "base_answer_tokens"),
                Average("tokens", "answer_tokens"),
                Lengthening("ratio", "answer_tokens", answers.limit),
                _OfCut("base_at_limit", answers.cut_base),
                _OfCut("at_limit", answers.cut),
                _OfCut("more_at_limit", answers.cut_more, low=-1.0),
                Share("base_loop", lambda items: _loops(items, BASE)),
                Share("loop", _loops),
                _OfCut("cut", answers.cut_alone),
                _OfCut("long", answers.long),
                Count("base_rechecked", answers.rechecked_base),
                Count("rechecked", answers.rechecked),
                Count("rechecked_right", answers.rechecked_of(_right)),
                Count("rechecked_cut", answers.rechecked_of(answers.cut_alone)),
                Count("rechecked_loop", answers.rechecked_of(_loops)),
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
        " has lost more than an accuracy shows. Loop: half of an answer's runs of eight"
        " words (of a few long ones: characters) repeat earlier ones. Cut: at the limit,"
        " and no loop. Long: it ended, and is over twice as long as the base's."
        " Rechecked: cut answers that were posed again with a higher limit"
        " (--recheck-cut), and what they became."
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
        *PERCENTAGE.estimates("base_loop", "loop", "cut", "long"),
        *COUNT("base_rechecked", "rechecked", "rechecked_right", "rechecked_cut"),
        *COUNT("rechecked_loop"),
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
