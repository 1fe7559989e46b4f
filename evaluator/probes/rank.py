"""Two ranks of the answer's first token in the vocabulary: after the open prompt, and
where the base wrote it.

A model that answers in sentences ("The river is the Nile.") does not begin with the
answer, so the probe `rank` alone is misleading. The probe `aligned_rank` uses the
*base's* greedy answer to the open prompt, if it contains a gold answer. The base's
words before that answer are the *lead-in*; its tokens for it are the *aligned answer*.
The probe measures the likelihood of the aligned answer after prompt and lead-in, for
every checkpoint. The base uses its own greedy answer, in the same stream: it chose
every token, so its aligned rank is 1, up to ties and rounding.

Without a base, or without a gold answer in the base's greedy answer, the probe is not
defined: `excluded`.

The exact rule (`align`, pure):

    tokens   It | 's|  the|  Ni|le|,|  in|  Egypt|.           gold answer "Nile"
    lead-in  It | 's|  the|           aligned answer   Ni|le

`ids` are an answer's token ids without EOS. A text *contains* a gold answer by the
run's rule of grading, and without spans of thinking. By the strict rule, the next token
may end that: `18`, `1863`.

    k = the smallest number such that the decodings of ids[:k] and of all longer ids[:m]
    contain a gold answer j = the largest number below k such that the decoding of
    ids[j:k] contains one

The lead-in is ids[:j], the aligned answer ids[j:k]; nothing is tokenised again. The
whole answer determines the spans of thinking. So a thought never counts as the answer,
even if k splits a tag or a slice begins after its tag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from evaluator.asking.questions import NOT_OPEN, Question
from evaluator.core.grading import contains, thinking_spans
from evaluator.core.records import TokenIds
from evaluator.core.reducing import first_of, where_measured
from evaluator.engine.base import Score
from evaluator.probes.base import Cost, ItemProbe, Steps
from evaluator.probes.item import failed, scored
from evaluator.tasks.loading import gold_option

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.probes.item import ItemRun, Settings

# why it is not defined: the text of an excluded record
NOT_SAID = "the base's greedy answer contains no gold answer"


class Rank(ItemProbe):
    """The rank of the first token (1: the most likely), and how far it is behind the
    top token, in nats."""

    name = "rank"
    help = "the rank of the gold answer's first token"
    evidence = "reachable"
    view = "rank"
    title = "first token of the gold answer"
    # Of the gold answer's first token; the margin in nats.
    columns: Mapping[str, str] = {"rank": "Int64", "margin": "Float64"}

    def continuations(self, question: Question) -> tuple[str, ...]:
        return (gold_option(question.item),)

    def run(self, item: ItemRun) -> Steps:
        request = item.score(gold_option(item.item), ranked=True)
        (response,) = yield [request]
        return [item.record(self.name, **scored(request, response, ranked=True))]

    def cost(self, config: Settings) -> Cost:
        return Cost(scored=frozenset({"gold"}))

    def reduce(self, records: pd.DataFrame) -> pd.DataFrame:
        return _reduced(records, self)


class AlignedRank(ItemProbe):
    """The rank of the aligned answer's first token, its margin, and the
    log-likelihood of the whole aligned answer."""

    name = "aligned_rank"
    help = (
        "the same rank after the base's lead-in: the words that the base writes before"
        " its answer"
    )
    evidence = "reachable"
    view = "aligned"
    title = "first token of the answer, after the base's words before it"
    after_base = True
    # Of the aligned answer's first token; the margin in nats.
    columns: Mapping[str, str] = {"aligned_rank": "Int64", "aligned_margin": "Float64"}

    def run(self, item: ItemRun) -> Steps:
        base = item.base
        why = None if base is None else base.missing
        if "open" not in item.config.formats:
            why = NOT_OPEN
        if why is not None:
            return [item.record(self.name, status="excluded", text=why)]
        answer_ids: TokenIds = ()
        if base is not None:
            answer_ids = base.token_ids
        elif not item.is_cut("open"):  # the request is that of the other probes
            (greedy,) = yield from item.answered([item.greedy()])
            if greedy.status != "ok":
                return [item.record(self.name, **failed(greedy.error))]
            answer_ids = greedy.token_ids
        if answer_ids and answer_ids[-1] in item.eos_ids:
            answer_ids = answer_ids[:-1]
        answers, language = item.item.answers, item.item.language

        def is_right(text: str) -> bool:
            return contains(text, answers, language, item.config.grading)

        aligned = align(answer_ids, is_right, item.decode)
        if aligned is None:
            return [item.record(self.name, status="excluded", text=NOT_SAID)]
        lead_in, answer = aligned
        request = Score(
            request_id=item.request_id(self.name, "answer"),
            prompt_ids=item.prompts["open"].token_ids + lead_in,
            continuation_ids=answer,
            ranked=True,
        )
        (response,) = yield [request]
        columns = scored(request, response, ranked=True)
        if response.status == "ok":
            columns["text"] = item.decode(lead_in)
            columns["option_text"] = item.decode(answer)
        return [item.record(self.name, **columns)]

    def cost(self, config: Settings) -> Cost:
        """The lead-in is at most as long as a greedy answer."""
        if "open" not in config.formats:
            return Cost()
        return Cost(
            scored=frozenset({"aligned answer"}), prompt_tokens=config.max_new_tokens
        )

    def reduce(self, records: pd.DataFrame) -> pd.DataFrame:
        return _reduced(records, self)


def _reduced(records: pd.DataFrame, probe: ItemProbe) -> pd.DataFrame:
    rank, margin = probe.columns
    columns = {rank: records["rank"], margin: records["margin"]}
    first = first_of(records, columns, probe.columns)
    return where_measured(first, records, probe.name, rank)


def align(
    token_ids: TokenIds,
    is_right: Callable[[str], bool],
    decode: Callable[[Sequence[int]], str],
) -> tuple[TokenIds, TokenIds] | None:
    """Cut ids without EOS, by the rule above, into lead-in and aligned answer; None
    without a gold answer.

    `is_right`: whether a text contains one."""
    thoughts = thinking_spans(decode(token_ids))

    def says(start: int, end: int) -> bool:
        text = decode(token_ids[start:end])
        if thoughts:
            # A slice may decode to fewer characters than its part of the whole (a
            # leading space), or to more (part of a character's bytes). So it takes its
            # end from the whole.
            text = _without(thoughts, text, len(decode(token_ids[:end])) - len(text))
        return is_right(text)

    if not says(0, len(token_ids)):
        return None
    end = len(token_ids)
    while says(0, end - 1):
        end -= 1
    start = end - 1
    while not says(start, end):
        start -= 1
    return token_ids[:start], token_ids[start:end]


def _without(spans: Sequence[tuple[int, int]], text: str, offset: int) -> str:
    """The text at `offset` of a whole, without the whole's `spans`."""
    kept, at = "", 0
    for first, last in spans:
        kept += text[at : max(at, first - offset)]
        at = max(at, last - offset)
    return kept + text[at:]
