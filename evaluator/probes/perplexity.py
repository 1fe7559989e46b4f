"""Token-level perplexity of a text, on the engine: the metric that hides what the other probes show.

The text is tokenised whole and cut into windows that do not overlap; the last one may be short, nothing is dropped.
Every token is predicted from the tokens before it in its window. The first token of a window has no such tokens: it is
predicted from BOS where the tokenizer puts one before a text, and otherwise not at all.

A window is scored in pieces: `Score` requests whose prompt is all of the window before the piece. The engine's prefix
cache holds the window once, so the cost is one pass over it and one decode step per token, many pieces at a time; and
no response grows with the window.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from evaluator.asking.questions import Question, Window
from evaluator.engine.base import Request, Response, Score
from evaluator.errors import InputError
from evaluator.probes.item import Decode, ItemPlan
from evaluator.probes.recording import Recorder, Stamp
from evaluator.records import Item, Record

PIECE = 64  # tokens of one request
LANGUAGE = "text"


def windows_of(text: str, tokenizer: Any, window: int, positions: int) -> list[Window]:
    """The windows of a text: `window` tokens each, or as many as fit `positions` beside the BOS; the last has the rest.

    Raises InputError for a text that gives no token.
    """
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    if not ids:
        raise InputError("the text gives no token")
    before = _bos(tokenizer)
    size = min(window, positions - len(before))
    return [
        Window(number=number, token_ids=array("i", [*before, *ids[start : start + size]]))
        for number, start in enumerate(range(0, len(ids), size))
    ]


def window_question(task: str, window: Window) -> Question:
    """The window as the driver knows it: a question without a text."""
    item_id = f"window-{window.number:06d}"
    item = Item(task=task, language=LANGUAGE, item_id=item_id, context="", question="", answers=(), cluster=item_id)
    return Question(item=item, candidates={}, window=window)


def _bos(tokenizer: Any) -> list[int]:
    """The BOS, if the tokenizer puts it before a text."""
    bos = tokenizer.bos_token_id
    with_special: list[int] = tokenizer("a", verbose=False)["input_ids"]
    bare: list[int] = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    return [bos] if bos is not None and with_special[:1] == [bos] and bare[:1] != [bos] else []


class WindowProbe:
    """The perplexity probe of one window on one checkpoint. `serial` makes its request ids unique in the stream."""

    def __init__(self, plan: ItemPlan, run_seed: int, serial: int) -> None:
        assert plan.question.window is not None
        self.plan = plan
        self._window = plan.question.window
        self._run_seed = run_seed
        self._prefix = f"{serial}/window"
        self._waiting: set[str] = set()
        self._responses: dict[int, Response] = {}  # by the position of a piece's first token

    @property
    def done(self) -> bool:
        return not self._waiting

    def start(self) -> list[Request]:
        """Every piece, the last one first: its prompt is all of the others', which then find it in the cache."""
        ids = tuple(self._window.token_ids)
        requests: list[Request] = [
            Score(
                request_id=f"{self._prefix}/{start}",
                prompt_ids=ids[:start],
                continuation_ids=ids[start : start + PIECE],
            )
            for start in reversed(range(1, len(ids), PIECE))
        ]
        self._waiting = {request.request_id for request in requests}
        return requests

    def receive(self, response: Response) -> list[Request]:
        """Take one response; nothing follows from it."""
        self._waiting.discard(response.request_id)
        self._responses[int(response.request_id.rpartition("/")[2])] = response
        return []

    def records(self, stamp: Stamp, decode: Decode) -> list[Record]:
        """The window's record. To be called once, when `done`."""
        recorder = Recorder(stamp, self.plan.question.item, self._run_seed)
        pieces: Sequence[Response] = [self._responses[start] for start in sorted(self._responses)]
        failed = next((piece for piece in pieces if piece.status != "ok"), None)
        columns: dict[str, Any] = {"index": self._window.number, "prompt_tokens": len(self._window.token_ids) - 1}
        if failed is not None:
            return [recorder.record("perplexity", "open", status="engine_error", text=failed.error, **columns)]
        if not pieces:
            why = self.plan.question.why_not("perplexity")
            return [recorder.record("perplexity", "open", status="excluded", text=why, **columns)]
        logprob = sum(value for piece in pieces for value in piece.logprobs)
        cached = [piece.cached_tokens for piece in pieces if piece.cached_tokens is not None]
        return [
            recorder.record(
                "perplexity", "open", logprob=logprob, cached_tokens=sum(cached) if cached else None, **columns
            )
        ]
