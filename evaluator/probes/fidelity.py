"""Fidelity: how far a checkpoint's next-token distributions are from its base's, position by position.

Base and checkpoint read the same tokens. At each token, the two distributions over the whole vocabulary are compared
(`evaluator.engine.base.Divergence`). `fidelity` reads two answers after the open prompt: the base's greedy answer with
its end, and the gold answer. `text_fidelity` reads the windows of a text. The base keeps its distributions in the run
directory.

The Kullback-Leibler divergences follow llama.cpp's perplexity tool. The expected acceptance rate is speculative
decoding's (Leviathan et al., 2023). Without a base in the run the probes are not defined: `excluded`.

A passage is a prompt and the tokens after it. The base computes every passage twice: it keeps its distributions, then
compares itself with these. The second time the batch differs, and more of the passage is in the cache. The result is
the floor of the measurement: smaller divergences are noise. Every other checkpoint compares once, with the same
requests. The engine gets a passage in pieces, so that neither a file nor the rows in memory grow with its length.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.asking.questions import NOTHING_PREDICTED, Question
from evaluator.core.records import Record
from evaluator.engine.base import Cancel, Reference, Request, Response, Score
from evaluator.probes.base import Asking, Cost, Excluded, Inquiry, ItemProbe, Reading, References, TextProbe
from evaluator.probes.packing import pack
from evaluator.probes.recording import Recorder, failed
from evaluator.tasks.loading import gold_option

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.probes.base import Settings


# Why it is not defined: the text of an excluded record.
NOT_OPEN = "it needs the base's greedy answer to the open prompt, and the format open is not asked"
NO_PLACE = "there is no run directory in which the base could keep its distributions"

_GOLD = 9  # tokens of a gold answer, for the cost
ANSWERS = ("greedy", "gold")  # of the `fidelity` records with index 0 and 1
_SUMMED = ("kld", "kld_reverse", "acceptance", "same_top", "top_agreement", "delta_p", "delta_p_squared", "delta_nll")


def columns_of(prefix: str) -> dict[str, str]:
    """The outcome columns of one passage: its positions, sums over them, and what percentiles are made of."""
    summed = {f"{prefix}_{name}": "Float64" for name in _SUMMED}
    return {f"{prefix}_positions": "Int64", **summed, f"{prefix}_packed": "string"}


class Fidelity(ItemProbe):
    """Along the base's greedy answer and along the gold answer, both after the open prompt."""

    name = "fidelity"
    help = "how far the distributions are from the base's, along the base's greedy answer and the gold answer"
    evidence = "predicted"
    after_base = True
    references = True
    columns: Mapping[str, str] = columns_of("fidelity_greedy") | columns_of("fidelity_gold")

    def continuations(self, question: Question) -> tuple[str, ...]:
        return (gold_option(question.item),)

    def ask(self, asking: Asking) -> Inquiry:
        references = asking.plan.references or References(missing=NO_PLACE)
        why = references.missing or (asking.base.missing if asking.base is not None else None)
        if "open" not in asking.config.formats:
            return Excluded(self, NOT_OPEN, asking.prompt())
        if why is not None and not references.keep:
            return Excluded(self, why, asking.prompt())
        return _Answers(asking, references, why)

    def cost(self, config: Settings) -> Cost:
        """Of a checkpoint with a base; the base asks everything twice."""
        if "open" not in config.formats:
            return Cost()
        tokens = config.max_new_tokens + _GOLD
        return Cost(requests=2, generated_tokens=2, prompt_tokens=tokens, compared=tokens)

    def reduce(self, asked: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        from evaluator.probes.reducing import KEY, where_measured

        index = asked.groupby(list(KEY)).size().index
        parts = [
            reduced(asked[asked["index"] == number], f"fidelity_{answer}").reindex(index)
            for number, answer in enumerate(ANSWERS)
        ]
        joined = pd.concat(parts, axis=1)
        decided = joined[[f"fidelity_{answer}_positions" for answer in ANSWERS]].notna().all(axis=1)
        return where_measured(joined, asked, self.name, "fidelity_greedy_positions", decided)


class _Answers(Inquiry):
    """The passages of one item. `why`: they are kept for others, but cannot be compared with the base's."""

    def __init__(self, asking: Asking, references: References, why: str | None) -> None:
        super().__init__()
        self._asking = asking
        self._why = why
        self._base = asking.base  # what its base answered
        self._compared: dict[str, Passage] = {}
        self._kept: dict[str, Passage] = {}  # for others alone
        own = references.keep == references.compare
        self._to_compare = None if why else References(compare=references.compare, keep=references.keep if own else "")
        self._to_keep = References(keep=references.keep) if references.keep and not own else None

    def start(self) -> Sequence[Request]:
        gold = self._asking.scored(gold_option(self._asking.plan.question.item))
        requests = self._begin("gold", gold.prompt_ids, gold.continuation_ids, self._to_compare, self._compared)
        requests += self._begin("gold", gold.prompt_ids, gold.continuation_ids, self._to_keep, self._kept)
        if self._base is not None:
            requests += self._along(self._base.token_ids, self._to_compare, self._compared)
        if self._base is None or self._to_keep is not None:
            return [self._asking.greedy("open"), *requests]
        return requests

    def _along(
        self, said: tuple[int, ...], references: References | None, passages: dict[str, Passage]
    ) -> list[Request]:
        """The requests along a greedy answer, EOS included."""
        return self._begin("greedy", self._asking.prompt().token_ids, said, references, passages)

    def _begin(
        self,
        answer: str,
        prompt_ids: tuple[int, ...],
        continuation_ids: tuple[int, ...],
        references: References | None,
        passages: dict[str, Passage],
    ) -> list[Request]:
        if references is None:
            return []
        item = self._asking.plan.question.item
        passages[answer] = Passage(
            name=(item.language, item.item_id, answer),
            request_id=self._asking.request_id("fidelity", answer if references.compare else f"own {answer}"),
            prompt_ids=prompt_ids,
            continuation_ids=continuation_ids,
            references=references,
            top=self._asking.config.fidelity_top,
        )
        return [*passages[answer].start()]

    def receive(self, response: Response) -> Sequence[Request | Cancel]:
        super().receive(response)
        if not response.final:
            return ()
        if response.request_id == self._asking.greedy_id("open"):
            if response.status != "ok":
                return ()
            if self._base is None:
                return self._along(response.token_ids, self._to_compare, self._compared)
            return self._along(response.token_ids, self._to_keep, self._kept)
        return [request for passage in self._compared.values() for request in passage.follow(response)]

    def records(self, recorder: Recorder) -> list[Record]:
        prompt = self._asking.prompt()
        if self._why is not None:
            return [recorder.record("fidelity", "open", prompt, status="excluded", text=self._why)]
        return [recorder.record("fidelity", "open", prompt, **self._columns(answer)) for answer in ANSWERS]

    def _columns(self, answer: str) -> dict[str, Any]:
        columns: dict[str, Any] = {"index": ANSWERS.index(answer), "is_gold": answer == "gold"}
        passage = self._compared.get(answer)
        if passage is None:
            return columns | failed(self.responses[self._asking.greedy_id("open")].error)
        columns |= {"token_ids": passage.continuation_ids, "prompt_tokens": len(passage.prompt_ids)}
        return columns | passage.columns(self.responses)


class TextFidelity(TextProbe):
    """Along every token of a text but the first of each window."""

    name = "text_fidelity"
    help = "how far the distributions are from the base's, along a text"
    evidence = "predicted"
    after_base = True
    references = True
    columns: Mapping[str, str] = columns_of("text_fidelity")

    def ask(self, reading: Reading) -> Inquiry:
        references = reading.references or References(missing=NO_PLACE)
        if len(reading.window.token_ids) < 2:
            references = References(missing=NOTHING_PREDICTED)
        return _Window(reading, references)

    def cost(self, tokens: int, config: Settings) -> Cost:
        """Of a checkpoint with a base; the base asks everything twice."""
        pieces = -(-tokens // PIECE)
        items = -(-tokens // config.window)
        return Cost(items=items, requests=pieces, prompt_tokens=tokens, generated_tokens=pieces, compared=tokens)

    def reduce(self, asked: pd.DataFrame) -> pd.DataFrame:
        from evaluator.probes.reducing import where_measured

        return where_measured(reduced(asked, self.name), asked, self.name, "text_fidelity_positions")


class _Window(Inquiry):
    """One window. Its tokens are the same for all checkpoints, so the kept passages are also the compared ones."""

    def __init__(self, reading: Reading, references: References) -> None:
        super().__init__()
        self._window = reading.window
        self._missing = references.missing
        ids = tuple(reading.window.token_ids)
        each = [references]
        if references.keep != references.compare:
            each = [References(compare=references.compare), References(keep=references.keep)]
        self._passages = [
            Passage(
                name=(reading.window.item.item_id,),
                request_id=reading.request_id("text_fidelity", "compared" if wanted.compare else "own"),
                prompt_ids=ids[:1],
                continuation_ids=ids[1:],
                references=wanted,
                top=reading.config.fidelity_top,
            )
            for wanted in each
            if wanted.compare or wanted.keep
        ]

    def start(self) -> Sequence[Request]:
        return [request for passage in self._passages for request in passage.start()]

    def receive(self, response: Response) -> Sequence[Request | Cancel]:
        super().receive(response)
        return [request for passage in self._passages for request in passage.follow(response)]

    def records(self, recorder: Recorder) -> list[Record]:
        columns: dict[str, Any] = {"index": self._window.number}
        if self._missing is not None:
            columns |= {"status": "excluded", "text": self._missing}
        else:
            columns["prompt_tokens"] = len(self._window.token_ids) - 1
            columns |= self._passages[0].columns(self.responses)
        return [recorder.record("text_fidelity", **columns)]


def reduced(asked: pd.DataFrame, prefix: str) -> pd.DataFrame:
    """One row for each record that was measured: `columns_of(prefix)`, by KEY. At most one record of each item."""
    import numpy as np
    import pandas as pd

    from evaluator.probes.reducing import KEY

    rows, keys = [], []
    for record in asked[asked["kld"].notna()].to_dict(orient="records"):
        own, base = (np.asarray(record[name], dtype=np.float64) for name in ("token_logprobs", "base_token_logprobs"))
        delta_p = np.exp(own) - np.exp(base)
        sums = {name: np.asarray(record[name], dtype=np.float64).sum() for name in _SUMMED[:5]}
        sums |= {"delta_p": delta_p.sum(), "delta_p_squared": (delta_p**2).sum(), "delta_nll": (base - own).sum()}
        packed = pack(record["kld"], record["same_top"], record["base_confidence"])
        keys.append(tuple(record[name] for name in KEY))
        rows.append({"positions": len(own), **sums, "packed": packed})
    index = pd.MultiIndex.from_tuples(keys, names=list(KEY)) if keys else pd.MultiIndex.from_frame(asked[list(KEY)][:0])
    found = pd.DataFrame(rows, index=index, columns=["positions", *_SUMMED, "packed"])
    types = columns_of(prefix)
    return found.rename(columns={name: f"{prefix}_{name}" for name in found.columns}).astype(types)


PIECE = 64  # tokens of one request
NO_DIVERGENCES = "the engine compared no distributions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A passage to compare, and the file of its base's distributions. `name` identifies it within the task."""

    name: tuple[str, ...]
    request_id: str  # what those of its requests begin with
    prompt_ids: tuple[int, ...]
    continuation_ids: tuple[int, ...]
    references: References  # an unwanted path is empty
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
