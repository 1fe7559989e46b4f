"""The choice probes: is the gold answer the likeliest of a few options? Recognition,
as multiple choice measures it.

Options are scored after the open prompt, which does not list the options. An
option's score is its log-likelihood, summed over its tokens, in nats. `choice` draws
its distractors from the language's answers; `hard_choice` takes the ones most like
the gold answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from evaluator.asking.questions import NO_DISTRACTOR, Question
from evaluator.core.reducing import KEY, pack_shares, where_measured
from evaluator.probes.base import Cost, ItemProbe, Steps
from evaluator.probes.item import scored
from evaluator.tasks.answer_types import answer_type

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from evaluator.probes.item import ItemRun, Settings
    from evaluator.tasks.distractors import Options


class Choice(ItemProbe):
    """The gold answer among distractors; one record for each option, in the item's
    own order."""

    name = "choice"
    help = "whether the gold answer is likelier than the wrong options"
    evidence = "recognised"
    view = "options"
    title = "choice: log-likelihood of each option"
    options: Literal["drawn", "hard"] = "drawn"
    columns: Mapping[str, str] = {
        "options": "Int64",
        # The gold option's summed score is strictly the highest; the same with
        # length-normalised scores (secondary).
        "recognised": "boolean",
        "recognised_per_token": "boolean",
        "recognised_per_byte": "boolean",
        # The gold option's score minus the best other one's, in nats; the number of the
        # option that scored highest.
        "choice_margin": "Float64",
        "picked": "Int64",
        # How many of the other options are of the gold option's kind
        # (`evaluator.tasks.answer_types`).
        "same_kind": "Int64",
        # Each option's share of the options' summed likelihoods, the gold one's first
        # (`evaluator.core.reducing`).
        "option_shares": "string",
        # Summed over all options, for fertility.
        "option_tokens": "Int64",
        "option_words": "Int64",
        "option_characters": "Int64",
        "options_digest": "Int64",  # equal options have equal ones, in any order
    }

    def options_of(self, question: Question) -> Options | None:
        return question.options

    def continuations(self, question: Question) -> tuple[str, ...]:
        options = self.options_of(question)
        return () if options is None else options.texts

    def fits(self, question: Question, config: Settings) -> bool:
        return self.options_of(question) is not None

    def why_not(self, item: ItemRun) -> str | None:
        why = super().why_not(item)
        if why is not None or self.options_of(item.question) is not None:
            return why
        return item.question.no_options if self.options == "drawn" else NO_DISTRACTOR

    def run(self, item: ItemRun) -> Steps:
        options = self.options_of(item.question)
        assert options is not None, "why_not comes before run"
        requests = [item.score(text) for text in options.texts]
        responses = yield requests
        columns = map(scored, requests, responses)
        return [
            item.record(
                self.name,
                index=number,
                is_gold=number == options.gold,
                option_text=text,
                **own,
            )
            for number, (text, own) in enumerate(
                zip(options.texts, columns, strict=True)
            )
        ]

    def cost(self, config: Settings) -> Cost:
        others = {f"{self.options} distractor {number}" for number in range(3)}
        return Cost(scored=frozenset({"gold", *others}))

    def reduce(self, records: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        won = _Winners(records)
        lengths = _sizes(records["token_ids"])
        texts = records["option_text"].map(
            lambda text: text if isinstance(text, str) else ""
        )
        kinds = list(map(answer_type, texts, records["language"]))
        hashes = pd.util.hash_array(texts.to_numpy(object)) % 2**31
        counts = {
            "options_digest": pd.Series(hashes, index=records.index),
            "option_tokens": lengths,
            "option_words": texts.map(lambda text: float(len(text.split()))),
            "option_characters": texts.map(
                lambda text: float(len("".join(text.split())))
            ),
        }
        reduced = pd.DataFrame(
            {
                "options": won.options,
                "recognised": won.by(won.score),
                "recognised_per_token": won.by(won.score / lengths),
                "recognised_per_byte": won.by(
                    won.score / _sizes(texts.map(str.encode))
                ),
                "choice_margin": won.margin(won.score),
                "picked": won.picked(records["index"]),
                "same_kind": won.like_gold(
                    pd.Series(kinds, index=records.index)
                ).astype("Int64"),
                "option_shares": won.shares(records["index"]),
            }
        )
        for name, count in counts.items():
            reduced[name] = won.total(count).round().astype("Int64")
        return where_measured(reduced, records, self.name, "recognised", won.decided)


class HardChoice(Choice):
    """`choice` with the distractors most like the gold answer."""

    name = "hard_choice"
    help = "choice with the wrong options that are most like the gold answer"
    title = "choice among hard distractors"
    options = "hard"
    columns: Mapping[str, str] = {"hard_recognised": "boolean"}

    def options_of(self, question: Question) -> Options | None:
        return question.hard_options

    def reduce(self, records: pd.DataFrame) -> pd.DataFrame:
        return _recognised(records, self.name, "hard_recognised")


class AlignedChoice(Choice):
    """`choice` after the base's thought."""

    name = "aligned_choice"
    help = "choice after the base's thought; needs thinking"
    title = "choice after the base's thought"
    after_base = needs_thinking = True
    columns: Mapping[str, str] = {"aligned_recognised": "boolean"}

    def reduce(self, records: pd.DataFrame) -> pd.DataFrame:
        return _recognised(records, self.name, "aligned_recognised")


def _recognised(records: pd.DataFrame, probe: str, column: str) -> pd.DataFrame:
    import pandas as pd

    won = _Winners(records)
    reduced = pd.DataFrame({column: won.by(won.score)})
    return where_measured(reduced, records, probe, column, won.decided)


class _Winners:
    """Who wins the choices of some records."""

    def __init__(self, records: pd.DataFrame) -> None:
        # Grouping by an item's number takes a fifth of the time that grouping by six
        # columns takes.
        groups = records.groupby(list(KEY))
        self._item: pd.Series = groups.ngroup()
        sizes = groups.size()
        self._items: pd.Index = sizes.index
        self.score: pd.Series = records["logprob"].astype("float64")
        is_gold = records["is_gold"].astype("boolean").fillna(False)
        self._gold: np.ndarray = is_gold.astype(bool).to_numpy()
        self.options = sizes.astype("Int64")
        golds = is_gold.astype(int).groupby(self._item).sum().set_axis(self._items)
        # Without exactly one gold option and a rival there is nothing to win.
        self.decided = (golds == 1) & (self.options > 1)

    def by(self, score: pd.Series) -> pd.Series:
        """Whether the gold option's score is strictly the highest: a tie is wrong, a
        missing score is unknown."""
        return (self.margin(score) > 0).astype("boolean").where(self._complete(score))

    def margin(self, score: pd.Series) -> pd.Series:
        """The gold option's score minus the best other one's; NaN where a score is
        missing."""
        best_gold = score.where(self._gold).groupby(self._item).max()
        best_other = score.where(~self._gold).groupby(self._item).max()
        return self._named(best_gold - best_other).where(self._complete(score))

    def picked(self, number: pd.Series) -> pd.Series:
        """The number of the option with the highest summed score, the first of those
        that share it."""
        best = self.score == self.score.groupby(self._item).transform("max")
        picked = number.where(best).groupby(self._item).min().astype("Int64")
        return self._named(picked).where(self._complete(self.score))

    def like_gold(self, value: pd.Series) -> pd.Series:
        """How many of an item's other options have the value of its gold option."""
        gold = value.where(self._gold).groupby(self._item).transform("first")
        return self._named(((value == gold) & ~self._gold).groupby(self._item).sum())

    def total(self, count: pd.Series) -> pd.Series:
        """Summed over an item's options; NaN if no option has a value."""
        return self._named(count.groupby(self._item).sum(min_count=1))

    def shares(self, number: pd.Series) -> pd.Series:
        """The softmax of the summed scores, packed: the gold option first, the
        others in their order."""
        import numpy as np
        import pandas as pd

        best = self.score.groupby(self._item).transform("max")
        likelihood = (self.score - best).map(math.exp, na_action="ignore")
        share = (
            likelihood / likelihood.groupby(self._item).transform("sum")
        ).to_numpy()
        item = self._item.to_numpy()  # in the order of a reduced frame's rows
        order = np.lexsort((number.to_numpy(), ~self._gold, item))
        begins = np.flatnonzero(np.diff(item[order], prepend=-1))
        items = np.split(share[order], begins[1:])
        packed = [pack_shares(shares.tolist()) for shares in items]
        complete = self._complete(self.score)
        return pd.Series(packed, index=complete.index, dtype="string").where(complete)

    def _complete(self, score: pd.Series) -> pd.Series:
        return self._named(score.notna().groupby(self._item).all())

    def _named(self, of_items: pd.Series) -> pd.Series:
        """A value of each item, by its number, under KEY as a reduced frame has it."""
        return of_items.set_axis(self._items)


def _sizes(values: pd.Series) -> pd.Series:
    """The length of each list of ids or bytes; NaN for none, so that a division by
    it is undefined."""
    sizes = values.map(
        lambda value: 0 if value is None or isinstance(value, float) else len(value)
    )
    return sizes.astype("float64").where(sizes > 0)
