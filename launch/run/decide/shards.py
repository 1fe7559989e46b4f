"""Cuts tasks into shards, and collects their results, which arrive in any order, shard by shard. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evaluator.core.records import Item, Record
from launch.run.decide.assignments import Shard

if TYPE_CHECKING:
    from launch.sweep.tasks import PreparedTask

_Key = tuple[str, str]  # language, item id


def shards_of(task: PreparedTask, finished: Collection[_Key], size: int) -> tuple[Shard, ...]:
    """The questions without records, cut into shards of at most `size`."""
    left = [position for position, question in enumerate(task.questions) if _key(question.item) not in finished]
    cuts = [tuple(left[start : start + size]) for start in range(0, len(left), size)]
    return tuple(map(shard_of, cuts))


def shard_of(questions: tuple[int, ...]) -> Shard:
    """Some questions as a shard. Its name begins with its first question, which is in no other shard."""
    return Shard(name=f"{questions[0]:06d}-{len(questions)}", questions=questions)


def halved(shard: Shard) -> tuple[Shard, Shard]:
    """Split a shard of at least two questions in two."""
    middle = len(shard.questions) // 2
    return shard_of(shard.questions[:middle]), shard_of(shard.questions[middle:])


def begun(shards: Sequence[Shard], items: int) -> tuple[Shard, ...]:
    """The unfinished shards that an engine with `items` items in flight may have begun.

    An engine begins shards in order. If slow items kept many shards open, these are the first ones.
    """
    found: list[Shard] = []
    for shard in shards:
        if sum(len(each.questions) for each in found) >= items + len(shard.questions):
            break
        found.append(shard)
    return tuple(found)


@dataclass(slots=True)
class _Begun:
    """A shard with items in evaluation."""

    shard: Shard
    order: Sequence[_Key]  # its items, as in the shard
    records: dict[_Key, Sequence[Record]]  # of the finished items


class ShardCollector:
    """Gathers the records of items that finish in any order until a shard is complete."""

    def __init__(self) -> None:
        self._begun: dict[_Key, _Begun] = {}  # by unfinished item

    def begin(self, shard: Shard, items: Sequence[Item]) -> None:
        """Expect the records of `items`: those of the shard's questions, in the same order."""
        begun = _Begun(shard, [_key(item) for item in items], {})
        self._begun |= dict.fromkeys(begun.order, begun)

    def add(self, item: Item, records: Sequence[Record]) -> tuple[Shard, list[Record]] | None:
        """Store one item's records. If the item was its shard's last, returns the shard with all records, in order."""
        begun = self._begun.pop(_key(item))
        begun.records[_key(item)] = records
        if len(begun.records) < len(begun.order):
            return None
        return begun.shard, [record for key in begun.order for record in begun.records[key]]


def _key(item: Item) -> _Key:
    return item.language, item.item_id
