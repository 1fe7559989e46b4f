"""The choice probes: is the gold answer the likeliest of a few options? Recognition,
as multiple choice measures it.

Options are scored after the open prompt, which does not list the options. An
option's score is its log-likelihood, summed over its tokens, in nats. `choice` draws
its distractors from the language's answers; `hard_choice` takes the ones most like
the gold answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from evaluator.asking.questions import NO_DISTRACTOR, Question
from evaluator.core.records import Columns
from evaluator.core.reducing import KEY, where_measured
from evaluator.probes.base import Cost, ItemProbe, Steps
from evaluator.probes.item import scored
from evaluator.tasks.answer_types import answer_type

if TYPE_CHECKING:
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
        # The same with ties to the first option, by summed and by score per character:
        # lm-eval's `acc` and `acc_norm`, where options are in the order of the data.
        "acc": "boolean",
        "acc_norm": "boolean",
        # The gold option's score minus the best other one's, in nats; the number of the
        # option that scored highest.
        "choice_margin": "Float64",
        "picked": "Int64",
        # How many of the other options are of the gold option's kind
        # (`evaluator.tasks.answer_types`).
        "same_kind": "Int64",
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

    def outcome(self, options: Sequence[Columns]) -> Columns:
        """The values of `columns` for the scored options of one item: the gold one
        first, then the others in their order."""
        scores = [option["logprob"] for option in options]
        texts = [option["option_text"] for option in options]
        lengths = [_length(option["token_ids"]) for option in options]
        words = [text.split() for text in texts]
        kinds = [answer_type(text, options[0]["language"]) for text in texts]
        order = sorted(options, key=itemgetter("index"))
        picked = max(order, key=itemgetter("logprob"))
        normed = max(
            order, key=lambda each: each["logprob"] / (len(each["option_text"]) or 1)
        )
        return {
            "options": len(options),
            "recognised": _gold_leads(scores),
            "recognised_per_token": _gold_leads(scores, lengths),
            "recognised_per_byte": _gold_leads(
                scores, [len(text.encode()) for text in texts]
            ),
            "acc": picked["is_gold"],
            "acc_norm": normed["is_gold"],
            "choice_margin": scores[0] - max(scores[1:]),
            "picked": picked["index"],
            "same_kind": kinds.count(kinds[0]) - 1,
            "option_tokens": sum(lengths) or None,
            "option_words": sum(map(len, words)),
            "option_characters": sum(len("".join(parts)) for parts in words),
            "options_digest": sum(option["hash"] for option in options),
        }

    def reduce(self, records: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        rows = []
        items = _options_by_item(records)
        for options in items.values():
            golds = [option["is_gold"] for option in options].count(True)
            scores = [option["logprob"] for option in options]
            # Without exactly one gold option and a rival there is nothing to win.
            decided = golds == 1 and len(options) > 1 and not math.isnan(sum(scores))
            rows.append(self.outcome(options) if decided else {})
        index = pd.MultiIndex.from_tuples(items, names=list(KEY))
        reduced = pd.DataFrame(rows, index, list(self.columns))
        value = next(name for name in self.columns if name.endswith("recognised"))
        return where_measured(
            reduced.astype(dict(self.columns)), records, self.name, value
        )


class HardChoice(Choice):
    """`choice` with the distractors most like the gold answer."""

    name = "hard_choice"
    help = "choice with the wrong options that are most like the gold answer"
    title = "choice among hard distractors"
    options = "hard"
    columns: Mapping[str, str] = {"hard_recognised": "boolean"}

    def options_of(self, question: Question) -> Options | None:
        return question.hard_options

    def outcome(self, options: Sequence[Columns]) -> Columns:
        return {"hard_recognised": _gold_leads([each["logprob"] for each in options])}


def _gold_leads(
    scores: Sequence[float], lengths: Sequence[int] | None = None
) -> bool | None:
    """Whether the gold option's score (by length) is strictly the highest: a tie is
    wrong, a missing length is unknown."""
    if lengths is None:
        return scores[0] > max(scores[1:])
    if 0 in lengths:
        return None
    pairs = zip(scores, lengths, strict=True)
    return _gold_leads([score / length for score, length in pairs])


def _length(ids: Any) -> int:
    return 0 if ids is None or isinstance(ids, float) else len(ids)


def _options_by_item(
    records: pd.DataFrame,
) -> dict[tuple[Any, ...], list[dict[Any, Any]]]:
    import pandas as pd

    is_gold = records["is_gold"].astype("boolean").fillna(False).astype(bool)
    scored = records[[*KEY, "index", "token_ids"]].assign(
        is_gold=is_gold,
        logprob=records["logprob"].astype("float64"),
        option_text=records["option_text"].fillna(""),
    )
    texts = scored["option_text"].to_numpy(dtype=object)
    scored["hash"] = (pd.util.hash_array(texts) % 2**31).astype("int64")
    ordered = scored.sort_values(
        ["is_gold", "index"], ascending=[False, True], kind="stable"
    )
    items: dict[tuple[Any, ...], list[dict[Any, Any]]] = {}
    for record in ordered.astype(object).to_dict(orient="records"):
        items.setdefault(tuple(record[name] for name in KEY), []).append(record)
    return items
