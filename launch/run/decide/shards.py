"""Tasks are cut into shards, and what comes back in any order is put together again, shard by shard. Pure."""

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
    """The questions that have no records yet, cut into shards of at most `size`, named by what they hold."""
    left = [position for position, question in enumerate(task.questions) if _key(question.item) not in finished]
    cuts = [tuple(left[start : start + size]) for start in range(0, len(left), size)]
    return tuple(map(shard_of, cuts))


def shard_of(questions: tuple[int, ...]) -> Shard:
    """Some questions as a shard. A part is named after its first question, which is in no other."""
    return Shard(name=f"{questions[0]:06d}-{len(questions)}", questions=questions)


def halved(shard: Shard) -> tuple[Shard, Shard]:
    """A shard of at least two questions as two."""
    middle = len(shard.questions) // 2
    return shard_of(shard.questions[:middle]), shard_of(shard.questions[middle:])


def begun(shards: Sequence[Shard], items: int) -> tuple[Shard, ...]:
    """Of the unfinished shards of an engine that had so many items in flight those that it may have been busy with.

    Shards are begun in order; where slow items kept many of them open, the first ones are those.
    """
    found: list[Shard] = []
    for shard in shards:
        if sum(len(each.questions) for each in found) >= items + len(shard.questions):
            break
        found.append(shard)
    return tuple(found)


@dataclass(slots=True)
class _Begun:
    """A shard of which some items are being asked."""

    shard: Shard
    order: Sequence[_Key]  # its items, as in the shard
    records: dict[_Key, Sequence[Record]]  # of the items that are done


class ShardCollector:
    """Gathers the records of items that finish in any order until a shard is complete."""

    def __init__(self) -> None:
        self._begun: dict[_Key, _Begun] = {}  # by item that is not done

    def begin(self, shard: Shard, items: Sequence[Item]) -> None:
        """Expect the records of `items`, those of the shard's questions in their order."""
        begun = _Begun(shard, [_key(item) for item in items], {})
        self._begun |= dict.fromkeys(begun.order, begun)

    def add(self, item: Item, records: Sequence[Record]) -> tuple[Shard, list[Record]] | None:
        """Keep the records of one item; the shard with all of its records, in order, if that was its last item."""
        begun = self._begun.pop(_key(item))
        begun.records[_key(item)] = records
        if len(begun.records) < len(begun.order):
            return None
        return begun.shard, [record for key in begun.order for record in begun.records[key]]


def _key(item: Item) -> _Key:
    return item.language, item.item_id
