"""Fidelity: how far a checkpoint's next-token distributions are from its base's, position by position.

Base and checkpoint are made to say the same tokens, and at each of them the two distributions over the whole vocabulary
are compared (`evaluator.engine.base.Divergence`): the base's own greedy answer, its end included, and the gold answer
after the open prompt (probe `fidelity`), or the windows of a text (`text_fidelity`). The base keeps its distributions
in the run directory (`evaluator.probes.passages`). Its own records say how far it is from itself in another batch: the
floor of the measurement.

Kullback-Leibler divergences as in llama.cpp's perplexity tool; the expected acceptance rate is that of speculative
decoding (Leviathan et al., 2023). Without a base in the run the probes are not defined: `excluded`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evaluator.asking.questions import NOTHING_PREDICTED, Question
from evaluator.core.records import Record
from evaluator.engine.base import Cancel, Request, Response
from evaluator.probes.base import Asking, Cost, Excluded, Inquiry, ItemProbe, Reading, References, TextProbe
from evaluator.probes.packing import pack
from evaluator.probes.passages import PIECE, Passage
from evaluator.probes.recording import Recorder, failed
from evaluator.tasks.loading import gold_option

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.probes.settings import Settings

# Why it is not defined: the text of an excluded record.
NOT_OPEN = "it needs the base's greedy answer to the open prompt, and the format open is not asked"
NO_PLACE = "there is no run directory in which the base could keep its distributions"

_GOLD = 9  # tokens of a gold answer, for the cost
ANSWERS = ("greedy", "gold")  # what a `fidelity` record of index 0 and 1 is of
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
    """One window, whose tokens are the same for all: what is kept for others is what is compared."""

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
