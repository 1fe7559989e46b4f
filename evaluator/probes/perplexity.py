"""Token-level perplexity of a text: the metric that hides the losses that other probes
show.

The text is tokenised whole and cut into windows that do not overlap. The last window
may be short; no token is dropped. Every token is predicted from the earlier tokens of
its window, the first one from BOS if the tokenizer puts one before a text, and
otherwise not at all.

A window is scored in pieces: `Score` requests whose prompt is all of the window before
the piece. The engine's prefix cache holds the window once. So the cost is one pass over
the window and one decode step per token.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from evaluator.asking.prompts import opening_of
from evaluator.asking.questions import NOTHING_PREDICTED, Window
from evaluator.core.errors import InputError
from evaluator.core.reducing import first_of, where_measured
from evaluator.engine.base import Score
from evaluator.probes.base import Cost, Steps, TextProbe
from evaluator.probes.item import failure_of

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.probes.item import ItemRun, Settings

PIECE = 64  # tokens of one request


class Perplexity(TextProbe):
    """One record for each window: the log-probabilities of its tokens, summed, in
    nats."""

    name = "perplexity"
    help = "how well a text is predicted, token by token"
    evidence = "predicted"
    # Nats of a window, and its tokens that were predicted.
    columns: Mapping[str, str] = {"nll": "Float64", "predicted_tokens": "Int64"}

    def run(self, item: ItemRun) -> Steps:
        """The last piece goes first: its prompt is all of the others', which then
        find it in the cache."""
        ids = tuple(item.window.token_ids)
        pieces = yield [
            Score(
                request_id=item.request_id(self.name, f"pieces/{start}"),
                prompt_ids=ids[:start],
                continuation_ids=ids[start : start + PIECE],
            )
            # the window's first token is not predicted
            for start in reversed(range(1, len(ids), PIECE))
        ]
        pieces = pieces[::-1]
        columns = failure_of(pieces)
        if not pieces:
            columns = {"status": "excluded", "text": NOTHING_PREDICTED}
        elif not columns:
            logprobs = chain.from_iterable(piece.logprobs for piece in pieces)
            columns = {"logprob": sum(logprobs)}
        return [
            item.record(
                self.name,
                index=item.window.number,
                prompt_tokens=len(ids) - 1,
                **columns,
            )
        ]

    def cost(self, tokens: int, config: Settings) -> Cost:
        return Cost(
            items=-(-tokens // config.window),
            requests=-(-tokens // PIECE),
            prompt_tokens=tokens,
            generated_tokens=tokens,
        )

    def reduce(self, records: pd.DataFrame) -> pd.DataFrame:
        columns = {
            "nll": records["logprob"],
            "predicted_tokens": records["prompt_tokens"],
        }
        first = first_of(records, columns, self.columns)
        predicted = first["predicted_tokens"].fillna(0) > 0
        first["nll"] = -first["nll"].where(predicted)
        return where_measured(first, records, self.name, "nll")


def windows_of(
    task: str, text: str, tokenizer: Any, size: int, positions: int
) -> list[Window]:
    """Windows of `size` tokens, or what fits `positions` with the BOS. Raises
    InputError for a text without a token."""
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)[
        "input_ids"
    ]
    if not ids:
        raise InputError("the text gives no token")
    bos = tokenizer.bos_token_id
    whole = tokenizer("a", verbose=False)["input_ids"]
    bare = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    begins = bos is not None and whole[:1] == [bos] and bare[:1] != [bos]
    before = opening_of(tokenizer) + ([bos] if begins else [])
    size = min(size, positions - len(before))
    return [
        Window.of(task, number, array("i", [*before, *ids[start : start + size]]))
        for number, start in enumerate(range(0, len(ids), size))
    ]
