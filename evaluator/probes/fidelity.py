"""Fidelity: how far a checkpoint's next-token distributions are from its base's,
position by position.

Base and checkpoint read the same tokens. At each token, the two distributions over the
whole vocabulary are compared (`evaluator.engine.base.Divergence`). `fidelity` reads two
answers after the open prompt: the base's greedy answer with its end, and the gold
answer. `text_fidelity` reads the windows of a text. The base keeps its distributions in
the run directory. Without a base in the run the probes are not defined: `excluded`. The
Kullback-Leibler divergences follow llama.cpp's perplexity tool; the expected acceptance
rate is speculative decoding's (Leviathan et al., 2023).

A passage is a prompt and the tokens after it. The base computes every passage twice: it
keeps its distributions, then compares itself with these in another batch, with more of
the passage in the cache. The result is the floor of the measurement: smaller
divergences are noise. Every other checkpoint compares once, with the same requests. The
engine gets a passage in pieces, so that neither a file nor the rows in memory grow with
its length.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.asking.questions import NOTHING_PREDICTED, Question
from evaluator.core.reducing import KEY, pack, where_measured
from evaluator.engine.base import Divergence, Reference, Response, Score
from evaluator.probes.base import Cost, ItemProbe, Steps, TextProbe
from evaluator.probes.item import ItemRun, References, failed, total_cached
from evaluator.tasks.loading import gold_option

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.probes.item import Settings

# Why it is not defined: the text of an excluded record.
NOT_OPEN = (
    "it needs the base's greedy answer to the open prompt, and the format open is not"
    " asked"
)
NO_PLACE = "there is no run directory in which the base could keep its distributions"

_GOLD = 9  # tokens of a gold answer, for the cost
ANSWERS = ("greedy", "gold")  # of the `fidelity` records with index 0 and 1
_SUMMED = (
    "kld",
    "kld_reverse",
    "acceptance",
    "same_top",
    "top_agreement",
    "delta_p",
    "delta_p_squared",
    "delta_nll",
)


def columns_of(prefix: str) -> dict[str, str]:
    """The outcome columns of one passage: its positions, sums over them, and what
    percentiles are made of."""
    summed = {f"{prefix}_{name}": "Float64" for name in _SUMMED}
    return {f"{prefix}_positions": "Int64", **summed, f"{prefix}_packed": "string"}


class Fidelity(ItemProbe):
    """Along the base's greedy answer and along the gold answer, both after the open
    prompt."""

    name = "fidelity"
    help = (
        "how far the distributions are from the base's, along the base's greedy answer"
        " and the gold answer"
    )
    evidence = "predicted"
    after_base = True
    references = True
    columns: Mapping[str, str] = columns_of("fidelity_greedy") | columns_of(
        "fidelity_gold"
    )

    def continuations(self, question: Question) -> tuple[str, ...]:
        return (gold_option(question.item),)

    def run(self, item: ItemRun) -> Steps:
        references, base = item.references or References(missing=NO_PLACE), item.base
        why = references.missing or (None if base is None else base.missing)
        if "open" not in item.config.formats:
            return [item.record(self.name, status="excluded", text=NOT_OPEN)]
        if why is not None and not references.keep:
            return [item.record(self.name, status="excluded", text=why)]
        twice = references.keep == references.compare
        greedy = None
        if base is None or (references.keep and not twice):
            (greedy,) = yield [item.greedy()]
        own_ids = greedy.token_ids if greedy and greedy.status == "ok" else None
        # by the answer, with "own " before it where it is kept for others alone
        passages: dict[str, Passage] = {}
        if why is None:
            answer = own_ids if base is None else base.token_ids
            keep = references.keep if twice else ""
            compared = References(compare=references.compare, keep=keep)
            passages |= _passages(item, "", answer, compared)
        if references.keep and not twice:
            kept = References(keep=references.keep)
            passages |= _passages(item, "own ", own_ids, kept)
        measured = yield from _measured(list(passages.values()))
        if why is not None:  # kept for others, but there is nothing to compare with
            return [item.record(self.name, status="excluded", text=why)]
        columns_of = dict(zip(passages, measured, strict=True))
        records = []
        for index, name in enumerate(ANSWERS):
            columns: dict[str, Any] = {"index": index, "is_gold": name == "gold"}
            if name in passages:
                columns["token_ids"] = passages[name].continuation_ids
                columns["prompt_tokens"] = len(passages[name].prompt_ids)
                columns |= columns_of[name]
            elif greedy is not None:
                columns |= failed(greedy.error)
            records.append(item.record(self.name, **columns))
        return records

    def cost(self, config: Settings) -> Cost:
        """Of a checkpoint with a base; the base asks everything twice."""
        if "open" not in config.formats:
            return Cost()
        tokens = config.max_new_tokens + _GOLD
        return Cost(
            requests=2, generated_tokens=2, prompt_tokens=tokens, compared=tokens
        )

    def reduce(self, records: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        items = records.groupby(list(KEY)).size().index
        parts = []
        for index, answer in enumerate(ANSWERS):
            own = records[records["index"] == index]
            parts.append(reduced(own, f"fidelity_{answer}").reindex(items))
        joined = pd.concat(parts, axis=1)
        greedy, gold = (f"fidelity_{answer}_positions" for answer in ANSWERS)
        decided = joined[greedy].notna() & joined[gold].notna()
        return where_measured(joined, records, self.name, greedy, decided)


def _passages(
    item: ItemRun, prefix: str, greedy: tuple[int, ...] | None, references: References
) -> dict[str, Passage]:
    """The passages of an item: the gold answer, and a greedy answer, EOS included,
    unless it is None."""
    gold = item.score(gold_option(item.item))
    answers = {"gold": (gold.prompt_ids, gold.continuation_ids)}
    if greedy is not None:
        answers["greedy"] = (item.prompts["open"].token_ids, greedy)
    return {
        prefix + answer: Passage(
            name=(item.item.language, item.item.item_id, answer),
            request_id=item.request_id("fidelity", prefix + answer),
            prompt_ids=before,
            continuation_ids=ids,
            references=references,
            top=item.config.fidelity_top,
        )
        for answer, (before, ids) in answers.items()
    }


class TextFidelity(TextProbe):
    """Along every token of a text but the first of each window."""

    name = "text_fidelity"
    help = "how far the distributions are from the base's, along a text"
    evidence = "predicted"
    after_base = True
    references = True
    columns: Mapping[str, str] = columns_of("text_fidelity")

    def run(self, item: ItemRun) -> Steps:
        """The tokens are the same for all checkpoints, so the kept passages are also
        the compared ones."""
        ids = tuple(item.window.token_ids)
        references = item.references or References(missing=NO_PLACE)
        if len(ids) < 2:
            references = References(missing=NOTHING_PREDICTED)
        kept = {"compared": references}
        if references.keep != references.compare:
            kept = {
                "compared": References(compare=references.compare),
                "own": References(keep=references.keep),
            }
        passages = [
            Passage(
                name=(item.item.item_id,),
                request_id=item.request_id(self.name, name),
                prompt_ids=ids[:1],
                continuation_ids=ids[1:],
                references=wanted,
                top=item.config.fidelity_top,
            )
            for name, wanted in kept.items()
            if wanted.compare or wanted.keep
        ]
        measured = yield from _measured(passages)
        columns: dict[str, Any] = {"index": item.window.number}
        if references.missing is not None:
            columns |= {"status": "excluded", "text": references.missing}
        else:
            columns |= {"prompt_tokens": len(ids) - 1, **measured[0]}
        return [item.record(self.name, **columns)]

    def cost(self, tokens: int, config: Settings) -> Cost:
        """Of a checkpoint with a base; the base asks everything twice."""
        pieces = -(-tokens // PIECE)
        items = -(-tokens // config.window)
        return Cost(
            items=items,
            requests=pieces,
            prompt_tokens=tokens,
            generated_tokens=pieces,
            compared=tokens,
        )

    def reduce(self, records: pd.DataFrame) -> pd.DataFrame:
        return where_measured(
            reduced(records, self.name), records, self.name, "text_fidelity_positions"
        )


def reduced(records: pd.DataFrame, prefix: str) -> pd.DataFrame:
    """The outcome columns of a passage, of the records that compare; at most one
    record of each item."""
    import numpy as np
    import pandas as pd

    rows, keys = [], []
    for record in records[records["kld"].notna()].to_dict(orient="records"):
        sums = {name: np.sum(record[name], dtype=np.float64) for name in _SUMMED[:5]}
        own = np.asarray(record["token_logprobs"], dtype=np.float64)
        base = np.asarray(record["base_token_logprobs"], dtype=np.float64)
        delta_p = np.exp(own) - np.exp(base)
        sums["delta_p"] = delta_p.sum()
        sums["delta_p_squared"] = (delta_p**2).sum()
        sums["delta_nll"] = (base - own).sum()
        packed = pack(record["kld"], record["same_top"], record["base_confidence"])
        keys.append(tuple(record[name] for name in KEY))
        rows.append({"positions": len(own), **sums, "packed": packed})
    if keys:
        index = pd.MultiIndex.from_tuples(keys, names=list(KEY))
    else:
        index = pd.MultiIndex.from_frame(records[list(KEY)][:0])
    frame = pd.DataFrame(rows, index=index, columns=["positions", *_SUMMED, "packed"])
    return frame.add_prefix(f"{prefix}_").astype(columns_of(prefix))


PIECE = 64  # tokens of one request
NO_DIVERGENCES = "the engine compared no distributions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A passage to compare, and the file of its base's distributions. `name`
    identifies it within the task."""

    name: tuple[str, ...]
    request_id: str  # what those of its requests begin with
    prompt_ids: tuple[int, ...]
    continuation_ids: tuple[int, ...]
    references: References  # an unwanted path is empty
    top: int  # Settings.fidelity_top

    def scores(self, *, keep: bool) -> list[Score]:
        """The requests for distributions, if there is a folder; the last first,
        whose prompt the others find cached."""
        folder = self.references.keep if keep else self.references.compare
        if not folder:
            return []
        continuation, verb = self.continuation_ids, "keep" if keep else "compare"
        requests = []
        for start in reversed(range(0, len(continuation), PIECE)):
            # Names of items may be anything, those of files may not.
            name = "\x1f".join((*self.name, str(start))).encode()
            file = f"{hashlib.blake2b(name, digest_size=16).hexdigest()}.safetensors"
            requests.append(
                Score(
                    request_id=f"{self.request_id}/{verb}/{start}",
                    prompt_ids=self.prompt_ids + continuation[:start],
                    continuation_ids=continuation[start : start + PIECE],
                    reference=Reference(
                        path=str(Path(folder) / file), keep=keep, top=self.top
                    ),
                )
            )
        return requests

    def columns(self, pieces: Sequence[Response]) -> dict[str, Any]:
        failures = [piece.error for piece in pieces if piece.status != "ok"]
        if failures:
            return failed(failures[0])
        divergences: list[Divergence] = []
        logprobs: list[float] = []
        for piece in pieces:
            divergences += piece.divergences
            logprobs += piece.logprobs
        if len(divergences) != len(self.continuation_ids):
            return failed(NO_DIVERGENCES)
        columns = {
            "logprob": sum(logprobs),
            "cached_tokens": total_cached(pieces),
            "token_logprobs": tuple(logprobs),
        }
        for place, name in enumerate(_COLUMNS):
            columns[name] = tuple([divergence[place] for divergence in divergences])
        return columns


# the columns of a Divergence's fields, in their order
_COLUMNS = (
    "kld",
    "kld_reverse",
    "acceptance",
    "same_top",
    "top_agreement",
    "base_token_logprobs",
    "base_confidence",
)


def _measured(
    passages: Sequence[Passage],
) -> Generator[Sequence[Score], Sequence[Response], list[dict[str, Any]]]:
    """Keep the distributions of passages, then compare with what is kept. Returns
    the columns of each passage."""
    kept = yield from _answered(passages, keep=True)
    columns: list[dict[str, Any]] = []
    sound = []
    for passage, pieces in zip(passages, kept, strict=True):
        failures = [piece.error for piece in pieces if piece.status != "ok"]
        columns.append(failed(failures[0]) if failures else {})
        if not failures:
            sound.append(passage)
    compared = yield from _answered(sound, keep=False)
    measured = map(Passage.columns, sound, compared)
    return [known or next(measured) for known in columns]


def _answered(
    passages: Sequence[Passage], *, keep: bool
) -> Generator[Sequence[Score], Sequence[Response], list[list[Response]]]:
    """The responses of each passage, in the order of its pieces."""
    by_passage = [passage.scores(keep=keep) for passage in passages]
    requests = list(chain.from_iterable(by_passage))
    responses = iter((yield requests) if requests else ())
    return [list(islice(responses, len(own)))[::-1] for own in by_passage]
