"""Token-level perplexity of a text: the metric that hides the losses that other probes show.

The text is tokenised whole and cut into windows that do not overlap. The last window may be short; no token is dropped.
Every token is predicted from the earlier tokens of its window. The first token of a window is predicted from BOS, if
the tokenizer puts one before a text, and otherwise not at all.

A window is scored in pieces: `Score` requests whose prompt is all of the window before the piece. The engine's prefix
cache holds the window once. So the cost is one pass over the window and one decode step per token, many pieces at a
time, and no response grows with the window.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evaluator.asking.questions import NOTHING_PREDICTED, Window
from evaluator.core.errors import InputError
from evaluator.core.records import Record
from evaluator.engine.base import Request, Score
from evaluator.probes.base import Cost, Inquiry, Reading, TextProbe
from evaluator.probes.recording import Recorder, failed

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.probes.base import Settings

PIECE = 64  # tokens of one request


class Perplexity(TextProbe):
    """One record for each window: the log-probabilities of its tokens, summed, in nats."""

    name = "perplexity"
    help = "how well a text is predicted, token by token"
    evidence = "predicted"
    # Nats of a window, and its tokens that were predicted.
    columns: Mapping[str, str] = {"nll": "Float64", "predicted_tokens": "Int64"}

    def ask(self, reading: Reading) -> Inquiry:
        return _Pieces(reading.window, reading.request_id(self.name, "pieces"))

    def cost(self, tokens: int, config: Settings) -> Cost:
        return Cost(
            items=-(-tokens // config.window),
            requests=-(-tokens // PIECE),
            prompt_tokens=tokens,
            generated_tokens=tokens,
        )

    def reduce(self, asked: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        from evaluator.probes.reducing import KEY, where_measured

        windows = asked.astype({"logprob": "Float64", "prompt_tokens": "Int64"}).groupby(list(KEY))
        tokens = windows["prompt_tokens"].first()
        reduced = pd.DataFrame({"nll": -windows["logprob"].first(), "predicted_tokens": tokens})
        return where_measured(reduced, asked, self.name, "nll", tokens.fillna(0) > 0)


def windows_of(task: str, text: str, tokenizer: Any, size: int, positions: int) -> list[Window]:
    """The windows of a text: `size` tokens each, or as many as fit `positions` beside the BOS; the last has the rest.

    Raises InputError for a text that gives no token.
    """
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    if not ids:
        raise InputError("the text gives no token")
    before = _bos(tokenizer)
    size = min(size, positions - len(before))
    return [
        Window.of(task, number, array("i", [*before, *ids[start : start + size]]))
        for number, start in enumerate(range(0, len(ids), size))
    ]


def _bos(tokenizer: Any) -> list[int]:
    """The BOS, if the tokenizer puts it before a text."""
    bos = tokenizer.bos_token_id
    with_special: list[int] = tokenizer("a", verbose=False)["input_ids"]
    bare: list[int] = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    return [bos] if bos is not None and with_special[:1] == [bos] and bare[:1] != [bos] else []


class _Pieces(Inquiry):
    """The pieces of one window."""

    def __init__(self, window: Window, prefix: str) -> None:
        super().__init__()
        self._window = window
        self._prefix = prefix

    def start(self) -> list[Request]:
        """Every piece, the last one first: its prompt is all of the others', which then find it in the cache."""
        ids = tuple(self._window.token_ids)
        return [
            Score(
                request_id=f"{self._prefix}/{start}",
                prompt_ids=ids[:start],
                continuation_ids=ids[start : start + PIECE],
            )
            for start in reversed(self._starts())
        ]

    def _starts(self) -> range:
        """Where the pieces begin: the window's first token is not predicted."""
        return range(1, len(self._window.token_ids), PIECE)

    def records(self, recorder: Recorder) -> list[Record]:
        pieces = [self.responses[f"{self._prefix}/{start}"] for start in self._starts()]
        columns: dict[str, Any] = {"index": self._window.number, "prompt_tokens": len(self._window.token_ids) - 1}
        error = next((piece for piece in pieces if piece.status != "ok"), None)
        if error is not None:
            columns |= failed(error.error)
        elif not pieces:
            columns |= {"status": "excluded", "text": NOTHING_PREDICTED}
        else:
            cached = [piece.cached_tokens for piece in pieces if piece.cached_tokens is not None]
            columns["logprob"] = sum(value for piece in pieces for value in piece.logprobs)
            columns["cached_tokens"] = sum(cached) if cached else None
        return [recorder.record("perplexity", **columns)]
