"""Made-up records: what engines would have answered, ready before a run begins, and
cut into shards while it goes on. Each item has a few ways of being answered, from
unharmed to lost. Which of them a checkpoint shows depends on its name, on how much
its compression harms and on the item alone: so that any number of engines, in any
order, after any number of deaths, answer alike."""

import random
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from evaluator.asking.questions import Question
from evaluator.core.records import Origin, Record
from evaluator.store.records import to_table

_WAYS = 6
_NOBODY: dict[str, Any] = {
    **dict.fromkeys(Origin.__struct_fields__),
    "checkpoint": "",
    "weights_digest": "",
}
_NOBODY |= {"engine": "fake", "engine_version": "0", "dtype": "float32"}
_NOBODY |= {"format": "open", "seed": 0, "status": "ok", "truncated": False}


class Answers:
    """Every way of answering every question. Questions of one text are answered alike:
    their records are made once, and get each item's own id."""

    def __init__(self, questions: Sequence[Question]) -> None:
        records: list[Record] = []
        self._where: list[list[range]] = []  # by question and way: rows
        self._names = [question.item.item_id for question in questions]
        others = [question.item.answers[0] for question in questions]
        known: dict[tuple[str, str], list[range]] = {}  # by language and question
        for question in questions:
            text = question.item.language, question.item.question
            if text not in known:
                known[text] = []
                for way in range(_WAYS):
                    first = len(records)
                    records += _records(question, way, others)
                    known[text].append(range(first, len(records)))
            self._where.append(known[text])
        self._table = to_table(records)

    def table(self, origin: Origin, positions: Sequence[int]) -> pa.Table:
        """The records of some questions on one checkpoint, as an engine's process
        sends them."""
        harm = 0.0 if origin.base is None else 0.2 + 0.8 * (origin.sparsity or 0.0)
        seed = zlib.crc32(origin.checkpoint.encode())
        rows: list[int] = []
        names: list[str] = []
        for position in positions:
            chance = zlib.crc32(position.to_bytes(4, "little"), seed) / 2**32
            own = self._where[position][min(_WAYS - 1, int(chance * harm * _WAYS))]
            rows += own
            names += [self._names[position]] * len(own)
        table = self._table.take(pa.array(rows))
        at = table.schema.get_field_index("item_id")
        table = table.set_column(at, table.schema.field(at), pa.array(names))
        for name in Origin.__struct_fields__:
            at = table.schema.get_field_index(name)
            kind = table.schema.field(at)
            value = pa.scalar(getattr(origin, name), kind.type)
            table = table.set_column(at, kind, pa.repeat(value, len(rows)))
        return table


def _records(question: Question, way: int, others: Sequence[str]) -> Iterator[Record]:
    """One item's records, of the probes that are asked by default."""
    item = question.item
    rng = random.Random(f"{item.language} {item.item_id} {way}")
    words = item.context.split()
    common = _NOBODY | {
        "task": item.task,
        "language": item.language,
        "item_id": item.item_id,
    }
    kept = rng.random() > way / _WAYS  # the answer still comes first

    def generated(probe: str, index: int, hit: bool) -> Record:
        text = (
            f"{item.answers[0] if hit else rng.choice(others)}."
            f" {' '.join(rng.choices(words, k=4))}"
        )
        ids = tuple(rng.randrange(8, 32_000) for _ in range(len(text) // 4))
        graded: dict[str, Any] = {
            "contains": hit,
            "exact_match": False,
            "token_f1": 0.4 * hit,
        }
        more: dict[str, Any] = (
            {} if probe == "sample" else {"logprob": -rng.expovariate(0.2)}
        )
        return Record(
            **common,
            probe=probe,
            index=index,
            text=text,
            token_ids=ids,
            **graded,
            **more,
            prompt_tokens=140,
        )

    yield generated("greedy", 0, kept)
    if question.deep:
        for index in range(5):
            yield generated("beam", index, rng.random() < 0.8 - 0.1 * way)
        for index in range(10):
            yield generated("sample", index, rng.random() < 0.6 - 0.1 * way)
    options = question.options
    for index, text in enumerate(() if options is None else options.texts):
        gold = options is not None and index == options.gold
        score = -2.0 - rng.random() - (0.3 * way if gold else 1.5)
        ids = tuple(range(9, 9 + max(1, len(text) // 4)))
        scored: dict[str, Any] = {
            "is_gold": gold,
            "option_text": text,
            "token_ids": ids,
            "logprob": score,
        }
        yield Record(**common, probe="choice", index=index, prompt_tokens=140, **scored)
    rank = 1 if kept else 2 + int(rng.expovariate(0.1))
    margin = 0.0 if kept else -rng.expovariate(0.5)
    yield Record(
        **common, probe="rank", index=0, rank=rank, margin=margin, prompt_tokens=140
    )
    lead: dict[str, Any] = {
        "text": "",
        "option_text": item.answers[0],
        "token_ids": (9, 10),
        "logprob": margin - 1.0,
    }
    yield Record(
        **common,
        probe="aligned_rank",
        index=0,
        rank=rank,
        margin=margin,
        prompt_tokens=141,
        **lead,
    )
