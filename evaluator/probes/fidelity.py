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
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from evaluator.asking.questions import NOT_OPEN, NOTHING_PREDICTED, Question
from evaluator.core.records import Columns, TokenIds
from evaluator.core.reducing import KEY, pack, where_measured
from evaluator.engine.base import Reference, Response, Score
from evaluator.probes.base import Cost, ItemProbe, Steps, TextProbe
from evaluator.probes.item import ItemRun, References, failed, failure_of
from evaluator.tasks.loading import gold_option

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.probes.item import Settings

PIECE = 64  # tokens of one request
# Why it is not defined: the text of an excluded record.
NO_DIVERGENCES = "the engine compared no distributions"

_GOLD = 9  # tokens of a gold answer, for the cost
ANSWERS = ("greedy", "gold")  # of the `fidelity` records with index 0 and 1
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
_DIVERGENCES = _COLUMNS[:5]
_SUMMED = (*_DIVERGENCES, "delta_p", "delta_p_squared", "delta_nll")


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
        references, base = item.references, item.base
        keep = references.keep
        why = references.missing or (None if base is None else base.missing)
        if "open" not in item.config.formats:
            why, keep = NOT_OPEN, ""
        if why is not None and not keep:
            return [item.record(self.name, status="excluded", text=why)]
        # it is a base and has one
        in_the_middle = keep not in ("", references.compare)
        greedy = None
        if base is None or in_the_middle:
            (greedy,) = yield from item.answered([item.greedy()])
        own_ids = greedy.token_ids if greedy and greedy.status == "ok" else None
        passages: list[Passage] = []
        if why is None:
            answer = own_ids if base is None else base.token_ids
            places = replace(references, keep="" if in_the_middle else keep)
            passages = _passages(item, answer, places)
        if in_the_middle:
            passages += _passages(item, own_ids, replace(references, compare=""))
        measured = yield from _measured(passages)
        if why is not None:  # kept for others, but there is nothing to compare with
            return [item.record(self.name, status="excluded", text=why)]
        compared = {}
        for passage, columns in zip(passages, measured, strict=True):
            if passage.places.compare:
                columns["token_ids"] = passage.continuation_ids
                columns["prompt_tokens"] = len(passage.prompt_ids)
                compared[passage.name[-1]] = columns
        no_answer = failed(greedy.error) if greedy else {}
        return [
            item.record(
                self.name,
                index=index,
                is_gold=name == "gold",
                **compared.get(name, no_answer),
            )
            for index, name in enumerate(ANSWERS)
        ]

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
        joined[greedy] = joined[greedy].where(joined[gold].notna())
        return where_measured(joined, records, self.name, greedy)


def _passages(
    item: ItemRun, greedy: TokenIds | None, places: References
) -> list[Passage]:
    """The gold answer, and a greedy answer, EOS included, unless it is None."""
    gold = item.score(gold_option(item.item))
    answers = {"gold": (gold.prompt_ids, gold.continuation_ids)}
    if greedy is not None:
        answers["greedy"] = (item.prompts["open"].token_ids, greedy)
    return [
        Passage(
            name=(item.item.language, item.item.item_id, answer),
            request_id=item.request_id("fidelity", answer),
            prompt_ids=before,
            continuation_ids=ids,
            places=places,
            top=item.config.fidelity_top,
        )
        for answer, (before, ids) in answers.items()
    ]


class TextFidelity(TextProbe):
    """Along every token of a text but the first of each window."""

    name = "text_fidelity"
    help = "how far the distributions are from the base's, along a text"
    evidence = "predicted"
    after_base = True
    references = True
    columns: Mapping[str, str] = columns_of("text_fidelity")

    def run(self, item: ItemRun) -> Steps:
        ids = tuple(item.window.token_ids)
        references = item.references
        if len(ids) < 2:
            references = References(missing=NOTHING_PREDICTED)
        passage = Passage(
            name=(item.item.item_id,),
            request_id=item.request_id(self.name, "text"),
            prompt_ids=ids[:1],
            continuation_ids=ids[1:],
            places=references,
            top=item.config.fidelity_top,
        )
        (columns,) = yield from _measured([passage])
        columns["prompt_tokens"] = len(ids) - 1
        if references.missing is not None:
            columns = {"status": "excluded", "text": references.missing}
        return [item.record(self.name, index=item.window.number, **columns)]

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
        sums = {name: np.sum(record[name], dtype=np.float64) for name in _DIVERGENCES}
        own = np.asarray(record["token_logprobs"], dtype=np.float64)
        base = np.asarray(record["base_token_logprobs"], dtype=np.float64)
        delta_p = np.exp(own) - np.exp(base)
        sums["delta_p"] = delta_p.sum()
        sums["delta_p_squared"] = (delta_p**2).sum()
        sums["delta_nll"] = (base - own).sum()
        packed = pack(record["kld"], record["same_top"], record["base_confidence"])
        keys.append([record[name] for name in KEY])
        rows.append({"positions": len(own), **sums, "packed": packed})
    index = pd.MultiIndex.from_frame(pd.DataFrame(keys, columns=list(KEY)))
    frame = pd.DataFrame(rows, index=index, columns=["positions", *_SUMMED, "packed"])
    return frame.add_prefix(f"{prefix}_").astype(columns_of(prefix))


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A passage to compare, and the places of distributions. `name` identifies it
    within the task."""

    name: tuple[str, ...]
    request_id: str  # what those of its requests begin with
    prompt_ids: TokenIds
    continuation_ids: TokenIds
    places: References
    top: int  # Settings.fidelity_top

    def scores(self, *, keep: bool) -> list[Score]:
        """The requests for distributions, if there is a folder; the last first,
        whose prompt the others find cached."""
        folder, verb = self.places.compare, "compare"
        if keep:
            folder, verb = self.places.keep, "keep"
        if not folder:
            return []
        requests = []
        for start in reversed(range(0, len(self.continuation_ids), PIECE)):
            # Names of items may be anything, those of files may not.
            name = "\x1f".join((*self.name, str(start))).encode()
            file = f"{hashlib.blake2b(name, digest_size=16).hexdigest()}.safetensors"
            path = str(Path(folder) / file)
            requests.append(
                Score(
                    request_id=f"{self.request_id}/{verb}/{start}",
                    prompt_ids=self.prompt_ids + self.continuation_ids[:start],
                    continuation_ids=self.continuation_ids[start : start + PIECE],
                    reference=Reference(
                        path=path, keep=keep, top=self.top, base=self.places.base
                    ),
                )
            )
        return requests

    def columns(self, pieces: Sequence[Response]) -> Columns:
        if failure := failure_of(pieces):
            return failure
        divergences = list(chain.from_iterable(piece.divergences for piece in pieces))
        logprobs = tuple(chain.from_iterable(piece.logprobs for piece in pieces))
        if not divergences or len(divergences) != len(self.continuation_ids):
            return failed(NO_DIVERGENCES)
        return {
            "logprob": sum(logprobs),
            "token_logprobs": logprobs,
            **dict(zip(_COLUMNS, zip(*divergences, strict=True), strict=True)),
        }


def _measured(
    passages: Sequence[Passage],
) -> Generator[Sequence[Score], Sequence[Response], list[Columns]]:
    """Keep the distributions of passages, then compare with what is kept. Returns
    the columns of each passage."""
    kept = yield from _answered([passage.scores(keep=True) for passage in passages])
    failures, requests = [], []
    for passage, pieces in zip(passages, kept, strict=True):
        with_itself = passage.places.keep == passage.places.compare
        failure = failure_of(pieces) if with_itself else {}
        failures.append(failure)
        requests.append([] if failure else passage.scores(keep=False))
    compared = yield from _answered(requests)
    measured = map(Passage.columns, passages, compared)
    return [
        failure or columns for failure, columns in zip(failures, measured, strict=True)
    ]


def _answered(
    requests: Sequence[Sequence[Score]],
) -> Generator[Sequence[Score], Sequence[Response], list[list[Response]]]:
    """The responses of each passage, in the order of its pieces."""
    together = list(chain.from_iterable(requests))
    responses = iter((yield together) if together else ())
    return [list(islice(responses, len(own)))[::-1] for own in requests]
