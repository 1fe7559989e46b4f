"""How a record is filled in: what every record of one checkpoint carries, and what every record of one item does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evaluator.core.records import Format, Item, Origin, Record
from evaluator.probes.grading import grade

if TYPE_CHECKING:
    from evaluator.asking.prompts import Continuation, Prompt
    from evaluator.checkpoints.info import CheckpointInfo
    from evaluator.engine.base import Engine, Response

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, kw_only=True)
class Stamp(Origin):
    """What every record of one checkpoint on one engine carries: columns of `Record` under their own names."""

    engine: str = ""
    engine_version: str = ""
    dtype: str = ""
    device: str | None = None

    @classmethod
    def of(cls, info: CheckpointInfo, base: str | None) -> Stamp:
        """The stamp of a checkpoint that is compared with `base`; `served_by` completes it."""
        return cls(
            checkpoint=info.name,
            weights_digest=info.weights_digest,
            base=base,
            method=info.method,
            pattern=info.pattern,
            sparsity=info.sparsity,
            calibration=info.calibration,
            requested_sparsity=info.requested_sparsity,
        )

    def served_by(self, engine: Engine) -> Stamp:
        """The stamp with the engine's columns."""
        return dataclasses.replace(self, engine=engine.name, engine_version=engine.version, dtype=engine.dtype)


class Recorder:
    """Makes the records of one item or window on one checkpoint."""

    def __init__(self, stamp: Stamp, item: Item, run_seed: int, decode: Decode, *, collapsed: bool = False) -> None:
        """`collapsed`: the item's log-probabilities came back, and all are NaN."""
        self.collapsed = collapsed
        self._item = item
        self._decode = decode
        self._graded: dict[tuple[int, ...], dict[str, Any]] = {}
        self._template: dict[str, Any] = {field.name: getattr(stamp, field.name) for field in dataclasses.fields(stamp)}
        self._template |= {"task": item.task, "language": item.language, "item_id": item.item_id}
        self._template |= {"index": 0, "seed": run_seed, "status": "ok"}

    def record(self, probe: str, format: Format = "open", prompt: Prompt | None = None, **columns: Any) -> Record:
        """A record of one probe. `prompt` gives its length and whether its context was cut.

        `columns` are the measured columns of `Record`. Defaults: index 0, the run's seed and status `ok`.
        """
        filled = {**self._template, "probe": probe, "format": format}
        if prompt is not None:
            filled["prompt_tokens"] = len(prompt.token_ids)
            filled["truncated"] = prompt.truncated
        filled |= columns
        if prompt is not None and prompt.truncated and filled["status"] == "ok":
            filled["status"] = "truncated"
        return Record(**filled)

    def graded(self, token_ids: tuple[int, ...]) -> dict[str, Any]:
        """The columns of a generated answer: its text, without thinking, is compared with the gold answers."""
        if token_ids not in self._graded:  # samples and beams often repeat one another
            text = self._decode(token_ids)
            found = grade(text, self._item.answers, self._item.language)
            self._graded[token_ids] = {
                "text": text,
                "token_ids": token_ids,
                "contains": found.contains,
                "exact_match": found.exact_match,
                "token_f1": found.token_f1,
            }
        return self._graded[token_ids]


def failed(error: str | None) -> dict[str, Any]:
    """The columns of a request that the engine could not answer."""
    return {"status": "engine_error", "text": error}


def scored(response: Response, continuation: Continuation) -> dict[str, Any]:
    """The columns of a scored answer; `logprob` is summed over its tokens, in nats."""
    if response.status != "ok":
        return failed(response.error)
    return {
        "token_ids": response.token_ids,
        "logprob": sum(response.logprobs),
        "prompt_tokens": len(continuation.prompt_ids),
        "cached_tokens": response.cached_tokens,
    }
