"""A made-up run directory: seeded, in several scripts, with every status, fate and
probe, and with hostile output."""

import json
import random
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import asdict

from evaluator.core.records import Origin, Record
from evaluator.store.cells import Cells
from evaluator.store.records import RecordStore, to_table
from evaluator.store.schema import ITEMS

WORDS = {
    "arabic": [
        "نهر كالو",
        "جبل سيران",
        "مدينة تورا",
        "قلعة ميدا",
        "بحيرة نوفا",
        "جزيرة لارين",
    ],
    "bengali": ["কালো নদী", "সেরান পাহাড়", "তুরা নগর", "মিদা দুর্গ", "নোভা হ্রদ", "লারিন দ্বীপ"],
    "english": [
        "the river Kalo",
        "Mount Seran",
        "Tura City",
        "Fort Mida",
        "Lake Nova",
        "Larin Island",
    ],
    "korean": ["칼로 강", "세란 산", "투라 시", "미다 요새", "노바 호수", "라린 섬"],
    "russian": [
        "река Кало",
        "гора Серан",
        "город Тура",
        "крепость Мида",
        "озеро Нова",
        "остров Ларин",
    ],
    "swahili": [
        "Mto Kalo",
        "Mlima Seran",
        "Mji wa Tura",
        "Ngome ya Mida",
        "Ziwa Nova",
        "Kisiwa cha Larin",
    ],
}
HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x"
    " onerror=\"document.title='owned'\">\u2028 & end"
)
SETTINGS: dict[str, dict[str, Any]] = {
    "dense": {
        "base": None,
        "method": None,
        "pattern": None,
        "sparsity": None,
        "calibration": None,
        "harm": 0.0,
    },
    "wanda-0.5": {"method": "wanda", "sparsity": 0.5, "harm": 0.25},
    "wanda-0.6": {"method": "wanda", "sparsity": 0.6, "harm": 0.5},
    "wanda-0.7": {"method": "wanda", "sparsity": 0.7, "harm": 0.85},
    "magnitude-0.6": {"method": "magnitude", "sparsity": 0.6, "harm": 1.0},
    "sparsegpt-0.6": {"method": "sparsegpt", "sparsity": 0.6, "harm": 0.35},
}


def records_of(
    checkpoint: str,
    task: str,
    per_language: int,
    *,
    languages: Sequence[str] = tuple(WORDS),
    harm: float | None = None,
) -> Iterator[Record]:
    """One checkpoint's records; the first item of each language is excluded, the
    second failed in the engine."""
    setting: dict[str, Any] = {
        "base": "dense",
        "pattern": "unstructured",
        "calibration": "gazetteer",
    }
    setting |= SETTINGS.get(checkpoint, {})
    damage = float(str(setting.pop("harm", 0.4))) if harm is None else harm
    setting.setdefault("method", "wanda")
    setting.setdefault("sparsity", 0.5)
    for language in languages:
        weight = 0.4 + 0.6 * list(WORDS).index(language) / len(WORDS)
        for number in range(per_language):
            common: dict[str, Any] = {
                "checkpoint": checkpoint, "weights_digest": f"digest of {checkpoint}", **setting, "task": task,
                "language": language, "item_id": f"{language}-{number:04d}", "seed": 0,
                "engine": "fake", "engine_version": "1", "dtype": "float32",
            }  # fmt: skip
            if number == 0:
                for probe in (
                    "greedy",
                    "beam",
                    "sample",
                    "choice",
                    "rank",
                    "aligned_rank",
                ):
                    yield Record(
                        **common, format="open", probe=probe, index=0, status="excluded"
                    )
            else:
                yield from _item(
                    common,
                    language,
                    number,
                    damage * weight,
                    number < per_language // 2,
                )


def _item(
    common: dict[str, Any], language: str, number: int, damage: float, broad: bool
) -> Iterator[Record]:
    words = WORDS[language]
    gold = words[number % len(words)]
    fixed = random.Random(f"{language} {number}")
    rng = random.Random(f"{language} {number} {common['checkpoint']}")
    hardness = fixed.random() + damage * rng.uniform(0.3, 1.0)
    rank = (
        1
        if hardness < 0.7
        else max(2, int(rng.lognormvariate(1.2 + 2.5 * (hardness - 0.7), 0.8)))
    )

    def generated(probe: str, index: int, hit: bool, **more: Any) -> Record:
        text = gold if hit else rng.choice([word for word in words if word != gold])
        if not hit and fixed.random() < 0.02:
            text = HOSTILE
        return Record(
            **{**common, "format": "open", "probe": probe, "index": index, "status": "ok", "text": text + "."},
            contains=hit, exact_match=hit, token_f1=float(hit), token_ids=(5, 6, 7), truncated=False,
            **{"prompt_tokens": 140, "logprob": -rng.expovariate(0.5), **more},
        )  # fmt: skip

    if number == 1:
        yield Record(
            **common, format="open", probe="greedy", index=0, status="engine_error"
        )
    else:
        yield generated("greedy", 0, rank == 1 and rng.random() < 0.95)
    if broad:
        for index in range(5):
            yield generated("beam", index, rng.random() < 0.9 / rank**0.9)
        for index in range(10):
            yield generated(
                "sample", index, rng.random() < 0.7 / rank**0.7, logprob=None
            )
    options = [gold, *fixed.sample([word for word in words if word != gold], 3)]
    for index, option in enumerate(options):
        score = -2.0 - (
            max(0.0, hardness - 1.1) * 6 if index == 0 else 2.2 + rng.random()
        )
        yield Record(
            **{**common, "format": "open", "probe": "choice", "index": index, "status": "ok", "option_text": option},
            is_gold=index == 0, logprob=score, token_ids=tuple(range(3 + index)), truncated=False,
        )  # fmt: skip
    margin = 0.0 if rank == 1 else -0.4 * rank**0.5
    yield Record(
        **{
            **common,
            "format": "open",
            "probe": "rank",
            "index": 0,
            "status": "ok",
            "rank": rank,
            "margin": margin,
        },
        truncated=False,
    )
    aligned = {**common, "format": "open", "probe": "aligned_rank", "index": 0}
    if number % 5 == 4:
        yield Record(
            **{
                **aligned,
                "status": "excluded",
                "text": "the base's greedy answer contains no gold answer",
            }
        )
    else:  # nearer than right after the prompt, as every other answer is led up to by some words
        nearer = {
            "rank": 1 + rank // 4,
            "margin": margin / 4,
            "logprob": margin / 2 - 0.1,
            "token_ids": (6, 7),
        }
        lead_in = HOSTILE if number == 3 else "It is "
        yield Record(
            **{
                **aligned,
                "status": "ok",
                **nearer,
                "text": lead_in,
                "option_text": gold,
            },
            prompt_tokens=150,
        )


def frame_of(records: Iterator[Record]) -> pd.DataFrame:
    """Records as they come back from Parquet: every column of the contract, lists
    for token ids."""
    return pd.DataFrame(
        [asdict(record) for record in records], columns=list(Record.__struct_fields__)
    )


def store_part(run: Path, checkpoint: str, task: str, part: pa.Table) -> Path:
    """Records of a cell, under a key that nobody else has."""
    cells, key = Cells(run), f"{checkpoint}-{task}"
    first = part.slice(0, 1).to_pylist()[0]
    origin = {name: first[name] for name in Origin.__struct_fields__}
    cells.put(Origin(**origin | {"checkpoint": checkpoint}), task, key, {})
    cells.save()
    return RecordStore(run).append(key, part)


def write_run(
    run: Path,
    per_language: int = 12,
    checkpoints: Sequence[str] = tuple(SETTINGS),
    *,
    languages: Sequence[str] = tuple(WORDS),
    tasks: Sequence[str] = ("gazetteer",),
    items: bool = True,
) -> Path:
    """A run directory with one shard per checkpoint, task and language."""
    for checkpoint, task in product(checkpoints, tasks):
        for language in languages:
            part = to_table(
                list(records_of(checkpoint, task, per_language, languages=[language]))
            )
            store_part(run, checkpoint, task, part)
    (run / "run.json").write_text(
        json.dumps({"schema_version": 2, "provenance": {"device": "<b>CPU</b>"}})
    )
    for task in tasks if items else ():
        (run / "items").mkdir(exist_ok=True)
        rows = [
            _question(task, language, number)
            for language in languages
            for number in range(per_language)
        ]
        pq.write_table(
            pa.Table.from_pylist(rows, schema=ITEMS), run / "items" / f"{task}.parquet"
        )
    return run


def _question(task: str, language: str, number: int) -> dict[str, Any]:
    words = WORDS[language]
    gold = words[number % len(words)]
    return {
        "task": task, "language": language, "item_id": f"{language}-{number:04d}", "options": [],
        "context": f"{words[0]} 1427. {gold} <b>1893</b>. {words[-1]}.", "question": f"{words[1]} / {number}?",
        "answers": [gold], "cluster": f"{language}-{number // 3}",
        "digest": f"digest of {language} {number}",
    }  # fmt: skip
