"""Where a generated answer begins to say a gold answer, and where it has said it. Pure.

    tokens   It | 's|  the|  Ni|le|,|  in|  Egypt|.           gold answer "Nile"
    lead-in  It | 's|  the|           aligned answer   Ni|le

`ids` are an answer's token ids without EOS. A text *contains* a gold answer as in grading: both normalised, and without
spans of thinking.

    k = the smallest number such that the decoding of ids[:k] contains a gold answer
    j = the largest number below k such that the decoding of ids[j:k] contains one

The lead-in is ids[:j], the aligned answer ids[j:k]. Nothing is tokenised again: after the prompt and the lead-in, each
token of the aligned answer is the model's own choice. Spans of thinking are those of the whole answer, so that neither
a tag that k cuts in two nor a slice that begins after its tag shows a thought as if it were said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evaluator.core.text import normalise
from evaluator.probes.grading import gradable, thinking_spans


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
            # A slice may decode to fewer characters than its part of the whole (a leading space), or to more (a
            # character of which it has some bytes): its end is where the whole's is.
            text = _without(thoughts, text, len(decode(token_ids[:end])) - len(text))
        said = normalise(text)
        return any(answer in said for answer in wanted)

    if not contains(0, len(token_ids)):
        return None
    end = next(end for end in range(1, len(token_ids) + 1) if contains(0, end))
    start = next(start for start in reversed(range(end)) if contains(start, end))
    return Alignment(lead_in=token_ids[:start], answer=token_ids[start:end])


def _without(spans: Sequence[tuple[int, int]], text: str, place: int) -> str:
    """A text that stands at `place` of a whole, without the whole's `spans`."""
    kept, at = "", 0
    for first, last in spans:
        kept += text[at : max(at, first - place)]
        at = max(at, last - place)
    return kept + text[at:]
