"""The answers of a checkpoint's base, on their way from the base's records to the probes that read them.

When an engine begins shards that need them, the driver reads one task's answers and sends them with the shards. So
memory holds only the answers of tasks in evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evaluator.core.records import Item
from evaluator.probes.base import BaseAnswer, ItemPlan

if TYPE_CHECKING:
    import pyarrow as pa

    from evaluator.probes.planning import Plan

# The texts of excluded records: why a checkpoint has no answer of its base.
NO_BASE = "a compressed checkpoint whose base is not part of this run: name it with --base"
OTHER_TOKENIZER = "its base has another tokenizer"
_NOT_ASKED = "its base has no greedy answer to the open prompt in this run"
_FAILED = "the engine failed on its base's greedy answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSource:
    """The source of the base's answers: the records of checkpoint `name`, or why there are none."""

    name: str | None = None
    missing: str | None = None


class BaseAnswers:
    """The greedy answers of one base to the open prompts of one task."""

    def __init__(self, source: BaseSource, table: pa.Table | None) -> None:
        """`table`: the result of `RecordStore.greedy_answers`; None if the source names no checkpoint."""
        self._missing = source.missing
        self._table = table
        keys = [] if table is None else zip(table["language"].to_pylist(), table["item_id"].to_pylist(), strict=True)
        self._rows = {key: row for row, key in enumerate(keys)}

    def beside(self, plan: Plan) -> Plan:
        """A plan with the base's answer to its item."""
        return replace(plan, base=self.of(plan.question.item)) if isinstance(plan, ItemPlan) else plan

    def of(self, item: Item) -> BaseAnswer:
        if self._missing is not None:
            return BaseAnswer(missing=self._missing)
        row = self._rows.get((item.language, item.item_id))
        if row is None or self._table is None:
            return BaseAnswer(missing=_NOT_ASKED)
        status, ids = self._table["status"][row].as_py(), self._table["token_ids"][row].as_py()
        if ids is None:
            return BaseAnswer(missing=_FAILED if status == "engine_error" else _NOT_ASKED)
        return BaseAnswer(token_ids=tuple(ids))
