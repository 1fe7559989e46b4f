"""A passage: tokens after other tokens, at each of which a checkpoint's distribution is compared with its base's.

The base computes every passage twice: it keeps its distributions, and then compares itself with them. The second time
the passage is computed in another batch, with more of it in the cache: what that gives is the floor below which no
divergence means anything. Every other checkpoint compares once, by the same requests. A passage goes to the engine in
pieces, so that neither a file nor the rows in memory grow with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.engine.base import Reference, Response, Score
from evaluator.probes.base import References
from evaluator.probes.recording import failed

PIECE = 64  # tokens of one request
NO_DIVERGENCES = "the engine compared no distributions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """What is compared, and where its base's distributions are kept. `name` identifies it within the task."""

    name: tuple[str, ...]
    request_id: str  # what those of its requests begin with
    prompt_ids: tuple[int, ...]
    continuation_ids: tuple[int, ...]
    references: References  # what is not wanted is empty
    top: int  # Settings.fidelity_top

    @property
    def starts(self) -> range:
        """Where the pieces begin in the continuation."""
        return range(0, len(self.continuation_ids), PIECE)

    def compare_id(self, start: int) -> str:
        return f"{self.request_id}/compare/{start}"

    def start(self) -> list[Score]:
        """The first requests, the last piece first: its prompt is all of the others', which find it in the cache."""
        keep = bool(self.references.keep)
        return [self._score(start, keep=keep) for start in reversed(self.starts)]

    def follow(self, response: Response) -> list[Score]:
        """What follows from a response: once a piece's distributions are kept, they are compared with."""
        begin, _, start = response.request_id.rpartition("/")
        kept = begin == f"{self.request_id}/keep" and response.status == "ok" and bool(self.references.compare)
        return [self._score(int(start), keep=False)] if kept else []

    def _score(self, start: int, *, keep: bool) -> Score:
        continuation = self.continuation_ids
        # Names of items may be anything, those of files may not.
        file = hashlib.blake2b("\x1f".join((*self.name, str(start))).encode(), digest_size=16).hexdigest()
        folder = self.references.keep if keep else self.references.compare
        path = str(Path(folder) / f"{file}.safetensors")
        return Score(
            request_id=f"{self.request_id}/keep/{start}" if keep else self.compare_id(start),
            prompt_ids=self.prompt_ids + continuation[:start],
            continuation_ids=continuation[start : start + PIECE],
            reference=Reference(path=path, keep=keep, top=self.top),
        )

    def columns(self, responses: dict[str, Response]) -> dict[str, Any]:
        """The columns of its record."""
        pieces: list[Response] = []
        for start in self.starts:
            kept = responses.get(f"{self.request_id}/keep/{start}")
            pieces.append(kept if kept is not None and kept.status != "ok" else responses[self.compare_id(start)])
        error = next((piece.error for piece in pieces if piece.status != "ok"), None)
        if error is not None:
            return failed(error)
        found = [each for piece in pieces for each in piece.divergences]
        if len(found) != len(self.continuation_ids):
            return failed(NO_DIVERGENCES)
        logprobs = tuple(value for piece in pieces for value in piece.logprobs)
        return {
            "logprob": sum(logprobs),
            "cached_tokens": _sum([piece.cached_tokens for piece in pieces]),
            "kld": tuple(each.kld for each in found),
            "kld_reverse": tuple(each.kld_reverse for each in found),
            "acceptance": tuple(each.acceptance for each in found),
            "same_top": tuple(each.same_top for each in found),
            "top_agreement": tuple(each.agreement for each in found),
            "token_logprobs": logprobs,
            "base_token_logprobs": tuple(each.reference_logprob for each in found),
            "base_confidence": tuple(each.reference_top for each in found),
        }


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
