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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.asking.questions import NOTHING_PREDICTED, Question
from evaluator.engine.base import Reference, Response, Score
from evaluator.probes.base import Cost, ItemProbe, Steps, TextProbe
from evaluator.probes.item import ItemRun, References, failed
from evaluator.probes.reducing import KEY, pack, where_measured
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
        own, said = None, None if base is None else base.token_ids
        if base is None or (references.keep and not twice):
            (own,) = yield [item.greedy()]
        own_said = own.token_ids if own is not None and own.status == "ok" else None
        # by the answer, with "own " before it where it is kept for others alone
        passages: dict[str, Passage] = {}
        if why is None:
            keep = references.keep if twice else ""
            answer = own_said if base is None else said
            passages |= _passages(
                item, "", answer, References(compare=references.compare, keep=keep)
            )
        if references.keep and not twice:
            passages |= _passages(
                item, "own ", own_said, References(keep=references.keep)
            )
        measured = dict(
            zip(passages, (yield from _measured([*passages.values()])), strict=True)
        )
        if why is not None:  # kept for others, but there is nothing to compare with
            return [item.record(self.name, status="excluded", text=why)]
        records = []
        for index, name in enumerate(ANSWERS):
            columns: dict[str, Any] = {"index": index, "is_gold": name == "gold"}
            if name in passages:
                passage = passages[name]
                columns |= {
                    "token_ids": passage.continuation_ids,
                    "prompt_tokens": len(passage.prompt_ids),
                }
                columns |= measured[name]
            elif own is not None:
                columns |= failed(own.error)
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

    def reduce(self, asked: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        index = asked.groupby(list(KEY)).size().index
        parts = [
            reduced(asked[asked["index"] == number], f"fidelity_{answer}").reindex(
                index
            )
            for number, answer in enumerate(ANSWERS)
        ]
        joined = pd.concat(parts, axis=1)
        decided = (
            joined[[f"fidelity_{answer}_positions" for answer in ANSWERS]]
            .notna()
            .all(axis=1)
        )
        return where_measured(
            joined, asked, self.name, "fidelity_greedy_positions", decided
        )


def _passages(
    item: ItemRun, prefix: str, said: tuple[int, ...] | None, references: References
) -> dict[str, Passage]:
    """The passages of an item: the gold answer, and a greedy answer, EOS included,
    unless it is None."""
    gold, prompt_ids = (
        item.score(gold_option(item.item)),
        item.prompts["open"].token_ids,
    )
    answers = {"gold": (gold.prompt_ids, gold.continuation_ids)}
    if said is not None:
        answers["greedy"] = (prompt_ids, said)
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
        references, ids = (
            item.references or References(missing=NO_PLACE),
            tuple(item.window.token_ids),
        )
        if len(ids) < 2:
            references = References(missing=NOTHING_PREDICTED)
        each = [references]
        if references.keep != references.compare:
            each = [
                References(compare=references.compare),
                References(keep=references.keep),
            ]
        passages = [
            Passage(
                name=(item.item.item_id,),
                request_id=item.request_id(
                    self.name, "compared" if wanted.compare else "own"
                ),
                prompt_ids=ids[:1],
                continuation_ids=ids[1:],
                references=wanted,
                top=item.config.fidelity_top,
            )
            for wanted in each
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

    def reduce(self, asked: pd.DataFrame) -> pd.DataFrame:
        return where_measured(
            reduced(asked, self.name), asked, self.name, "text_fidelity_positions"
        )


def reduced(asked: pd.DataFrame, prefix: str) -> pd.DataFrame:
    """One row for each record that was measured: `columns_of(prefix)`, by KEY. At
    most one record of each item."""
    import numpy as np
    import pandas as pd

    rows, keys = [], []
    for record in asked[asked["kld"].notna()].to_dict(orient="records"):
        own, base = (
            np.asarray(record[name], dtype=np.float64)
            for name in ("token_logprobs", "base_token_logprobs")
        )
        delta_p = np.exp(own) - np.exp(base)
        sums = {
            name: np.asarray(record[name], dtype=np.float64).sum()
            for name in _SUMMED[:5]
        }
        sums |= {
            "delta_p": delta_p.sum(),
            "delta_p_squared": (delta_p**2).sum(),
            "delta_nll": (base - own).sum(),
        }
        packed = pack(record["kld"], record["same_top"], record["base_confidence"])
        keys.append(tuple(record[name] for name in KEY))
        rows.append({"positions": len(own), **sums, "packed": packed})
    index = (
        pd.MultiIndex.from_tuples(keys, names=list(KEY))
        if keys
        else pd.MultiIndex.from_frame(asked[list(KEY)][:0])
    )
    found = pd.DataFrame(rows, index=index, columns=["positions", *_SUMMED, "packed"])
    types = columns_of(prefix)
    return found.rename(
        columns={name: f"{prefix}_{name}" for name in found.columns}
    ).astype(types)


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
        folder, continuation = (
            self.references.keep if keep else self.references.compare,
            self.continuation_ids,
        )
        if not folder:
            return []
        requests = []
        for start in reversed(range(0, len(continuation), PIECE)):
            # Names of items may be anything, those of files may not.
            file = hashlib.blake2b(
                "\x1f".join((*self.name, str(start))).encode(), digest_size=16
            ).hexdigest()
            requests.append(
                Score(
                    request_id=(
                        f"{self.request_id}/{'keep' if keep else 'compare'}/{start}"
                    ),
                    prompt_ids=self.prompt_ids + continuation[:start],
                    continuation_ids=continuation[start : start + PIECE],
                    reference=Reference(
                        path=str(Path(folder) / f"{file}.safetensors"),
                        keep=keep,
                        top=self.top,
                    ),
                )
            )
        return requests

    def columns(self, pieces: Sequence[Response]) -> dict[str, Any]:
        failure = next((piece for piece in pieces if piece.status != "ok"), None)
        if failure is not None:
            return failed(failure.error)
        found = [each for piece in pieces for each in piece.divergences]
        if len(found) != len(self.continuation_ids):
            return failed(NO_DIVERGENCES)
        logprobs = tuple(value for piece in pieces for value in piece.logprobs)
        cached = [
            piece.cached_tokens for piece in pieces if piece.cached_tokens is not None
        ]
        return {
            "logprob": sum(logprobs),
            "cached_tokens": sum(cached) if cached else None,
            "kld": tuple(each.kld for each in found),
            "kld_reverse": tuple(each.kld_reverse for each in found),
            "acceptance": tuple(each.acceptance for each in found),
            "same_top": tuple(each.same_top for each in found),
            "top_agreement": tuple(each.agreement for each in found),
            "token_logprobs": logprobs,
            "base_token_logprobs": tuple(each.reference_logprob for each in found),
            "base_confidence": tuple(each.reference_top for each in found),
        }


def _measured(
    passages: Sequence[Passage],
) -> Generator[Sequence[Score], Sequence[Response], list[dict[str, Any]]]:
    """Keep the distributions of passages, then compare with what is kept. Returns
    the columns of each passage."""
    kept = yield from _answered(passages, keep=True)
    failures = [
        next((piece for piece in pieces if piece.status != "ok"), None)
        for pieces in kept
    ]
    sound = [
        passage
        for passage, failure in zip(passages, failures, strict=True)
        if failure is None
    ]
    compared = iter((yield from _answered(sound, keep=False)))
    return [
        passage.columns(next(compared)) if failure is None else failed(failure.error)
        for passage, failure in zip(passages, failures, strict=True)
    ]


def _answered(
    passages: Sequence[Passage], *, keep: bool
) -> Generator[Sequence[Score], Sequence[Response], list[list[Response]]]:
    """The responses of each passage, in the order of its pieces."""
    requests = [passage.scores(keep=keep) for passage in passages]
    together = [request for each in requests for request in each]
    responses = iter((yield together) if together else ())
    return [[next(responses) for _ in each][::-1] for each in requests]
