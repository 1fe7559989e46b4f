"""Checks once for every combination that an engine's fast way to score agrees with
its slow one.

Forced scores and prompt log-probabilities are the same numbers, computed in two ways
by an engine. Kernels and their errors differ between builds, devices, dtypes and
runners. So the first engine of a combination scores a few short continuations both
ways before it serves. Both ways rank with the same kernel, so ranks are compared
with a count over whole distributions and with a planted table
(`vllm/worker.py`). Pure except for `Memory`, a folder with a file for each
combination that has passed. `vllm/engine.py` runs it."""

import contextlib
import hashlib
import json
import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from operator import sub
from pathlib import Path
from typing import Literal

from evaluator.engine.base import NOT_NUMBERS, Response, Score

# Allowed differences in nats: for one token, and for the mean over tokens. Products of
# float32 on a GPU may keep ten bits of the mantissa. Those of float32 were measured on
# CPUs; the others are estimates, and none was tried on a GPU.
#
# In half precision, the hidden states are rounded, whatever the logits are. On CPUs, in
# bfloat16, we measured:
# - vLLM's V2 runner: the two ways are equal to six digits, so CPU results predict
#   little about a GPU.
# - transformers, a prompt at once and token by token: 0.08 / 0.0013 (bundled model),
#   0.17 / 0.0086 (16 random layers), with logits in float32.
# Twice as many layers round twice as often. Random tokens of a small vocabulary are
# likelier than those of a large one. Both call for room: three times the largest
# distance, and six times the mean. Logits in bfloat16 are rounded as well: of size 16
# and more, they have a resolution of 1/8. On CPUs that added 0.01 at most; a GPU sums
# in other orders.
Precision = Literal["float32", "float32 on a GPU", "half, float32 logits", "half"]
TOLERANCES: Mapping[Precision, tuple[float, float]] = {
    "float32": (1e-3, 2e-4),
    "float32 on a GPU": (2e-2, 2e-3),
    "half, float32 logits": (0.5, 0.05),
    "half": (0.75, 0.1),
}
Responses = Sequence[Response]
_ROUNDING = 1e-2  # nats by which a log-probability may lie above 0
# lengths in tokens: within a cache block, and after the first and the second end of one
_PROMPTS = (1, 17, 33)
_CONTINUATIONS = (1, 5)  # a single token, and several


def precision(dtype: str, logits: str, *, on_gpu: bool) -> Precision:
    """The tolerances for a model's dtype and its logits' dtype."""
    if dtype != "float32":
        return "half, float32 logits" if logits == "float32" else "half"
    return "float32 on a GPU" if on_gpu else "float32"


def questions(vocabulary: int, positions: int) -> list[Score]:
    """A few continuations of short prompts; fewer if the engine's context is too
    short for all."""
    draw = random.Random(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(vocabulary) for _ in range(count))

    requests = []
    for length in _PROMPTS:
        prompt = tokens(length)
        for count in _CONTINUATIONS:
            request = Score(
                request_id=f"self-check-{length}.{count}",
                prompt_ids=prompt,
                continuation_ids=tokens(count),
            )
            # Prompt log-probabilities need room for one token more.
            if length + count < positions:
                requests.append(request)
    return requests


def disagreement(
    fast: Responses,
    slow: Responses,
    whole: Responses,
    allowed: tuple[float, float],
    requests: Sequence[Score],
) -> str | None:
    """How the responses of the two ways differ, in words; None if they agree.

    A request that neither way can answer proves nothing: a collapsed model has no
    log-probabilities at all. `whole` are the slow way's answers with whole
    distributions."""
    fast_by_id = {response.request_id: response for response in fast}
    slow_by_id = {response.request_id: response for response in slow}
    distances: list[float] = []
    for request in requests:
        ours = fast_by_id.get(request.request_id)
        theirs = slow_by_id.get(request.request_id)
        if ours is None or theirs is None:
            return "a score was not answered"
        if ours.status != theirs.status:
            return f"a score is answered by one way only ({ours.error or theirs.error})"
        if ours.status != "ok":
            continue
        counts = {
            len(ours.logprobs),
            len(theirs.logprobs),
            len(ours.ranks),
            len(request.continuation_ids),
        }
        if len(counts) > 1 or ours.token_ids != request.continuation_ids:
            return "forced scores are of other tokens than those asked for"
        distances += map(abs, map(sub, ours.logprobs, theirs.logprobs))
    largest, mean = max(distances, default=0.0), sum(distances) / max(1, len(distances))
    if largest <= allowed[0] and mean <= allowed[1]:
        rank = misranked(fast, whole, allowed[0])
        return None if rank is None else f"forced scores have {rank}"
    return (
        "forced scores differ from prompt log-probabilities by up to"
        f" {largest:.2g} nats per token (mean {mean:.2g}; allowed are"
        f" {allowed[0]:g} and {allowed[1]:g})"
    )


def nonsense(
    slow: Sequence[Response],
    whole: Sequence[Response],
    allowed: tuple[float, float],
    planted: Sequence[str],
) -> str | None:
    """Why the slow way cannot be right, or None; `whole`: distributions, `planted`:
    wrong ranks in a planted table."""
    if planted:
        return f"of planted tokens, {planted[0]}"
    found = (
        impossible([*slow, *whole])
        or misranked(whole, whole, 0.0)
        or misranked(slow, whole, allowed[0])
    )
    return None if found is None else f"its prompt log-probabilities hold {found}"


def impossible(answers: Sequence[Response]) -> str | None:
    """An impossible log-probability or rank, such as uninitialised memory gives, in
    words; else None."""
    for answer in answers:
        if any(value > _ROUNDING for value in answer.logprobs):
            return f"a log-probability of {max(answer.logprobs):.2g} nats"
        if answer.status != "ok" and answer.error != NOT_NUMBERS:
            return answer.error
    return None


def misranked(
    answers: Sequence[Response], whole: Sequence[Response], allowed: float
) -> str | None:
    """A rank, in words, that the whole distribution at its position rules out; None if
    there is none.

    Each log-probability may be off by these nats. Equal values in `whole` can come from
    different logits, as the subtraction rounds, and the engine ranks the logits. So a
    rank may be any of those that its equals have.
    """
    tables = {each.request_id: each for each in whole if each.status == "ok"}
    for answer in answers:
        table = tables.get(answer.request_id)
        if table is None:
            continue
        for rank, own, row in zip(
            answer.ranks, table.logprobs, table.top_logprobs, strict=bool(answer.ranks)
        ):
            first = 1 + sum(value > own + 2 * allowed for value in row)
            last = sum(value >= own - 2 * allowed for value in row)
            if not first <= rank <= last:
                return (
                    f"a rank of {rank} where whole distributions have {first} to {last}"
                )
    return None


class Memory:
    """The combinations that have passed, in the folder `name` of the user's cache.
    One that cannot be written is no error: then every engine checks itself."""

    def __init__(self, name: str = "self-check") -> None:
        try:
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        except RuntimeError:  # a user without a name or a home, as in some containers
            cache = Path(os.devnull)
        self.folder = cache / "resurface" / name

    def text(self, combination: Mapping[str, str]) -> str | None:
        """The text that is kept with a combination that has passed; None if it has
        not."""
        try:
            return self._file(combination).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    def add(self, combination: Mapping[str, str], text: str | None = None) -> None:
        """Remember that a combination has passed, and `text` (by default the
        combination itself, for people to read); the file appears whole or not at
        all."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.folder, prefix=".writing-", delete=False
            ) as file:
                file.write(text or json.dumps(dict(combination), indent=2) + "\n")
            Path(file.name).replace(self._file(combination))

    def _file(self, combination: Mapping[str, str]) -> Path:
        text = json.dumps(dict(combination), sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def code_digest(folder: Path) -> str:
    """A digest of the Python sources of a folder and those below: what passed was
    this code, too."""
    content = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        content.update(
            file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes()
        )
    return content.hexdigest()[:16]
