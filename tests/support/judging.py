"""Judges without an engine's process."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from evaluator.asking.prompts import Prompter
from evaluator.core.files import parquet_bytes
from evaluator.core.records import Record
from evaluator.judging.matcher import Claim, JudgeConfig, posed
from evaluator.probes.stream import Evaluation
from evaluator.store.verdicts import Verdicts
from tests.support.fake import FakeEngine
from tests.support.stamps import STAMP


def judged(
    claims: Sequence[Claim], engine: FakeEngine, tokenizer: Any, tokens: int = 512
) -> list[Record]:
    """The judge's records, in the order of the claims."""
    chat = bool(tokenizer.chat_template)
    config = JudgeConfig.of(chat=chat, prompt_tokens=tokens, day=None)
    prompter = Prompter(
        tokenizer, chat=chat, prompt_tokens=tokens, one_shot_prompt_tokens=1
    )
    evaluation = Evaluation.of(
        posed(claims), config=config, prompter=prompter, columns=STAMP
    )
    records = {}
    for item, (record,) in evaluation.run(engine):
        records[item.item_id] = record
    return [records[str(number)] for number in range(len(claims))]


def answer(
    verdicts: Verdicts,
    odds: Callable[[Claim], float | None],
    claims: Sequence[Claim] | None = None,
) -> None:
    """Append one shard: `odds` of yes in nats for some claims or all, None where the
    engine failed."""
    rows = []
    for claim in verdicts.claims if claims is None else claims:
        value = odds(claim)
        rows.append(
            {
                "item_id": str(verdicts.claims.index(claim)),
                "logprob": value,
                "status": "engine_error" if value is None else "ok",
            }
        )
    verdicts.append("", parquet_bytes(pa.Table.from_pylist(rows)))
