"""The aligned rank: the answer's rank in the vocabulary at the position where the base wrote it.

A model that answers in sentences ("The river is the Nile.") does not begin with the answer, so the rank of the answer's
first token right after the prompt is misleading. The probe uses the *base's* greedy answer to the open prompt, if it
contains a gold answer. The base's words before that answer are the *lead-in*; its tokens for it are the *aligned
answer*. The probe measures the likelihood of the aligned answer after prompt and lead-in, for every checkpoint. The
base uses its own greedy answer, in the same stream. It chose every token of the aligned answer, so its aligned rank is
1, up to ties and rounding.

Without a base, or without a gold answer in the base's greedy answer, the probe is not defined: `excluded`.

The exact rule (`align`, pure):

    tokens   It | 's|  the|  Ni|le|,|  in|  Egypt|.           gold answer "Nile"
    lead-in  It | 's|  the|           aligned answer   Ni|le

`ids` are an answer's token ids without EOS. A text *contains* a gold answer as in grading: both normalised, and without
spans of thinking.

    k = the smallest number such that the decoding of ids[:k] contains a gold answer
    j = the largest number below k such that the decoding of ids[j:k] contains one

The lead-in is ids[:j], the aligned answer ids[j:k]. Nothing is tokenised again: after the prompt and the lead-in, each
token of the aligned answer is the model's own choice. The whole answer determines the spans of thinking. So a thought
never counts as the answer, even if k splits a tag or a slice begins after its tag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evaluator.asking.prompts import Continuation
from evaluator.core.records import Record
from evaluator.core.text import normalise
from evaluator.engine.base import Cancel, Request, Response, Score
from evaluator.probes.base import Asking, Cost, Excluded, Inquiry, ItemProbe
from evaluator.probes.grading import gradable, thinking_spans
from evaluator.probes.recording import Recorder, failed, scored

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.probes.base import Settings


# Why it is not defined: the text of an excluded record.
NOT_SAID = "the base's greedy answer contains no gold answer"
NOT_OPEN = "it needs the base's greedy answer to the open prompt, and the format open is not asked"


class AlignedRank(ItemProbe):
    """The rank of the aligned answer's first token, its margin, and the log-likelihood of the whole aligned answer."""

    name = "aligned_rank"
    help = "the rank of the answer's first token after the base's own lead-in"
    evidence = "reachable"
    view = "aligned"
    title = "first token of the answer, after the base's words before it"
    after_base = True
    # Of the aligned answer's first token; the margin in nats.
    columns: Mapping[str, str] = {"aligned_rank": "Int64", "aligned_margin": "Float64"}

    def ask(self, asking: Asking) -> Inquiry:
        base = asking.base
        why = NOT_OPEN if "open" not in asking.config.formats else None if base is None else base.missing
        return _Aligned(asking) if why is None else Excluded(self, why, asking.prompt())

    def cost(self, config: Settings) -> Cost:
        """The lead-in is at most as long as a greedy answer."""
        if "open" not in config.formats:
            return Cost()
        return Cost(scored=frozenset({"aligned answer"}), prompt_tokens=config.max_new_tokens)

    def reduce(self, asked: pd.DataFrame) -> pd.DataFrame:
        from evaluator.probes.reducing import KEY, where_measured

        typed = asked.astype({"rank": "Int64", "margin": "Float64"})
        first = typed.groupby(list(KEY))[["rank", "margin"]].first()
        named = first.rename(columns={"rank": "aligned_rank", "margin": "aligned_margin"})
        return where_measured(named, asked, self.name, "aligned_rank")


class _Aligned(Inquiry):
    def __init__(self, asking: Asking) -> None:
        super().__init__()
        self._asking = asking
        self._score_id = asking.request_id("aligned_rank", "answer")
        self._alignment: Alignment | None = None

    def start(self) -> Sequence[Request]:
        """The aligned answer's score; on the base the greedy request, which the other probes share."""
        base = self._asking.base
        return [self._asking.greedy("open")] if base is None else self._score(base.token_ids)

    def receive(self, response: Response) -> Sequence[Request | Cancel]:
        super().receive(response)
        mine = response.final and response.request_id == self._asking.greedy_id("open")
        return self._score(response.token_ids) if mine and response.status == "ok" else ()

    def _score(self, answered: tuple[int, ...]) -> list[Request]:
        """The score of the aligned answer in a greedy answer; no request where there is none."""
        asking = self._asking
        ended = answered[-1:] and answered[-1] in asking.eos_ids
        own = answered[:-1] if ended else answered
        self._alignment = align(own, asking.plan.question.item.answers, asking.decode)
        if self._alignment is None:
            return []
        placed = self._placed(self._alignment)
        return [
            Score(
                request_id=self._score_id,
                prompt_ids=placed.prompt_ids,
                continuation_ids=placed.continuation_ids,
            )
        ]

    def _placed(self, alignment: Alignment) -> Continuation:
        prompt_ids = self._asking.prompt().token_ids + alignment.lead_in
        return Continuation(prompt_ids=prompt_ids, continuation_ids=alignment.answer)

    def records(self, recorder: Recorder) -> list[Record]:
        return [recorder.record("aligned_rank", "open", self._asking.prompt(), **self._columns())]

    def _columns(self) -> dict[str, Any]:
        greedy = self.responses.get(self._asking.greedy_id("open"))
        if greedy is not None and greedy.status != "ok":
            return failed(greedy.error)
        if self._alignment is None:
            return {"status": "excluded", "text": NOT_SAID}
        response = self.responses[self._score_id]
        columns = scored(response, self._placed(self._alignment))
        if response.status == "ok":
            columns["rank"] = response.ranks[0]
            columns["margin"] = response.logprobs[0] - response.top_logprobs[0][0]
            columns["text"] = self._asking.decode(self._alignment.lead_in)
            columns["option_text"] = self._asking.decode(self._alignment.answer)
        return columns


@dataclass(frozen=True, slots=True)
class Alignment:
    """A generated answer, cut at the gold answer in it."""

    lead_in: tuple[int, ...]
    answer: tuple[int, ...]  # at least one token


def align(
    token_ids: tuple[int, ...], answers: Sequence[str], decode: Callable[[Sequence[int]], str]
) -> Alignment | None:
    """Cut an answer (ids without EOS) by the rule above; None where its text contains no gold answer."""
    wanted = gradable(answers)
    thoughts = thinking_spans(decode(token_ids))

    def contains(start: int, end: int) -> bool:
        text = decode(token_ids[start:end])
        if thoughts:
            # A slice may decode to fewer characters than its part of the whole (a leading space), or to more (part of
            # a character's bytes). So it takes its end from the whole.
            text = _without(thoughts, text, len(decode(token_ids[:end])) - len(text))
        said = normalise(text)
        return any(answer in said for answer in wanted)

    if not contains(0, len(token_ids)):
        return None
    end = next(end for end in range(1, len(token_ids) + 1) if contains(0, end))
    start = next(start for start in reversed(range(end)) if contains(start, end))
    return Alignment(lead_in=token_ids[:start], answer=token_ids[start:end])


def _without(spans: Sequence[tuple[int, int]], text: str, place: int) -> str:
    """The text at `place` of a whole, without the whole's `spans`."""
    kept, at = "", 0
    for first, last in spans:
        kept += text[at : max(at, first - place)]
        at = max(at, last - place)
    return kept + text[at:]
