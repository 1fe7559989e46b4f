"""Units of work in a run and their results: plain records, without Ray or an engine.

A task is cut into shards. An engine finishes a shard's items in any order;
`ShardCollector` puts them together again.

Some probes read the answers of the checkpoint's base. When an engine begins shards that
need them, the driver reads one task's answers from the base's records and sends them
along. So memory holds only the answers of tasks in evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from evaluator.asking.thoughts import Thought
from evaluator.checkpoints.info import CheckpointInfo
from evaluator.core.errors import Json
from evaluator.core.records import IDENTITY, PRUNING, EngineStats, Item, Origin, Record
from evaluator.engine.config import EngineConfig
from evaluator.probes import PROBES
from evaluator.probes.config import EvalConfig
from evaluator.probes.item import BaseAnswer, References
from evaluator.store.records import BASE_FAILED, NONE, Answered, Drawn
from evaluator.store.run_json import Failure
from launch.run.decide.nodes import Placement
from launch.run.events import Part, Span

if TYPE_CHECKING:
    import pyarrow as pa

    from launch.sweep.prepared_tasks import PreparedTask

Key = tuple[str, str]  # language, item id
Lacking = dict[frozenset[Drawn], set[Key]]  # items by what they lack

# The texts of excluded records: why a checkpoint has no answer of its base.
NO_BASE = (
    "a compressed checkpoint whose base is not part of this run: name it with --base"
)
OTHER_TOKENIZER = "its base has another tokenizer"
NOT_ASKED = "its base has no greedy answer to the open prompt in this run"


_ANSWER = 32  # tokens of a short answer
_PARTS = 500  # of a checkpoint's task in a call: each costs every later start 5 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Some questions of a task: the unit that is written, retried and moved."""

    name: str
    questions: tuple[int, ...]  # positions in the task's list
    task: str = ""  # in an engine's hand

    @property
    def span(self) -> Span:
        return self.questions[0], self.questions[-1]


Shards = tuple[Shard, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSource:
    """The source of the base's answers: the records under a key, which the cell `name`,
    `task` makes, or why there are none."""

    name: str = ""
    task: str = ""
    key: str = ""
    path: str = ""  # the directory of its checkpoint
    missing: str | None = None


def origin_of(info: CheckpointInfo, base: str | None) -> Origin:
    """The first columns of a checkpoint's records, if it is compared with `base`."""
    named = {name: getattr(info, name) for name in (*PRUNING, *IDENTITY)}
    return Origin(checkpoint=info.name, base=base, **named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Shards of one task on one checkpoint. The board assigns them to an engine, and
    its process evaluates them."""

    checkpoint: CheckpointInfo
    task: str
    task_key: str  # identifies questions + config: the key for tokenised plans
    config: EvalConfig
    origin: Origin
    shards: Shards
    key: str = ""  # of its records
    kept: frozenset[Drawn] | None = None  # the records that are kept; None: all
    # The source of the greedy answers that its probes read; None: no probe reads any,
    # or it is its own base.
    base: BaseSource | None = None
    # the distributions of its base; None: no probe compares any
    references: References | None = None
    # the error of every request, without the engine; the records contain it
    refusal: str | None = None
    suspect: bool = False  # it may have killed an engine: all other work goes first
    # the engine on which every answer failed: another engine tries
    doubted_by: int | None = None

    @property
    def part(self) -> Part:
        return self.checkpoint.name, self.task

    @property
    def after(self) -> Part | None:
        """The part that must have all its records before this one begins."""
        if self.base is None or self.base.missing is not None:
            return None
        return self.base.name, self.base.task

    @property
    def items(self) -> int:
        return sum(len(shard.questions) for shard in self.shards)

    def keeps(self, record: Record) -> bool:
        drawn = record.probe, record.format, record.seed
        return self.kept is None or drawn in self.kept


def distance(
    candidate: CheckpointInfo, held: str | None, architecture: str | None
) -> int:
    """The effort for an engine to serve a checkpoint: 0 it holds it, 1 swapped in
    place, 2 neither."""
    # equal weights may have other configurations
    if candidate.engine_keys == (held, architecture):
        return 0
    return 1 if architecture in (None, candidate.engine_keys[1]) else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardResult:
    """A finished shard and the bytes of its records' file, in the order of its
    questions. The driver only writes."""

    shard: Shard
    part: bytes  # empty: nothing is kept
    failed: str | None  # the error, if every answer failed (`failed_throughout`)
    stats: EngineStats  # of the engine then


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    config: EngineConfig
    log_path: Path  # receives its stdout and stderr
    place: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    node: str  # the host's name
    node_id: str  # Ray's
    device: str  # its GPUs, or else the processor
    pid: int = 0
    gpu: str = ""  # "node-a: 3": the numbers of its GPUs there; "": none

    @property
    def visible(self) -> str:
        """Its GPUs, as CUDA names them."""
        return self.gpu.partition(": ")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a finished run, for one line of output."""

    items: int  # evaluated by this call, over all checkpoints
    seconds: float  # spent evaluating and pruning, start of Ray included
    failures: tuple[Failure, ...] = ()  # work that the run gave up


def key_of(item: Item) -> Key:
    return item.language, item.item_id


def shards_of(task: PreparedTask, finished: Collection[Key], size: int) -> Shards:
    """The questions without records, cut into shards of `size` short answers, or of
    as many fewer long ones; of more where they would be more than _PARTS."""
    tokens = task.config.max_new_tokens + task.config.expected_thought
    left = [
        position
        for position, question in enumerate(task.questions)
        if key_of(question.item) not in finished
    ]
    size = max(1, size * _ANSWER // max(_ANSWER, tokens), math.ceil(len(left) / _PARTS))
    return tuple(
        shard_of(tuple(left[start : start + size]))
        for start in range(0, len(left), size)
    )


def shard_of(questions: tuple[int, ...]) -> Shard:
    """Some questions as a shard. Its name has its first question, which is in no
    other shard of its assignment."""
    return Shard(name=f"{questions[0]:06d}", questions=questions)


def halves_of(shard: Shard) -> Shards:
    """The halves of a shard; a single question stays whole."""
    middle = len(shard.questions) // 2
    parts = shard.questions[:middle], shard.questions[middle:]
    return tuple(shard_of(part) for part in parts if part)


def due(task: PreparedTask) -> Answered:
    """The records that a task is to have, by item."""
    probes = [
        (PROBES[name], PROBES[name].draws(task.config)) for name in task.config.probes
    ]
    known: dict[tuple[bool, ...], frozenset[Drawn]] = {}
    found: Answered = {}
    for question in task.questions:
        asked = tuple(probe.asks(question) for probe, _ in probes)
        if asked not in known:
            known[asked] = frozenset(
                (probe.name, *drawn)
                for (probe, draws), asks in zip(probes, asked, strict=True)
                for drawn in draws
                if asks
            )
        found[key_of(question.item)] = known[asked]
    return found


def alone(wanted: Answered) -> Answered:
    """Without the records of probes that read the base's answers."""
    return {
        item: frozenset(each for each in drawn if not PROBES[each[0]].after_base)
        for item, drawn in wanted.items()
    }


def compared(drawn: Iterable[Drawn]) -> set[Drawn]:
    """Those of probes that compare distributions."""
    return {each for each in drawn if PROBES[each[0]].references}


def count_whole(wanted: Answered, answered: Answered) -> int:
    """The items that lack no record."""
    return sum(drawn <= answered.get(key, NONE) for key, drawn in wanted.items())


def lacking(wanted: Answered, answered: Answered) -> Lacking:
    """The items of `answered` that lack some of the wanted records."""
    groups: Lacking = {}
    for key, drawn in wanted.items():
        if key in answered and not drawn <= answered[key]:
            groups.setdefault(drawn - answered[key], set()).add(key)
    return groups


def completing(config: EvalConfig, lacks: frozenset[Drawn]) -> Json:
    """The settings that ask for these records. Another probe goes along without records
    where all of these are blind."""
    probes = {probe for probe, *_ in lacks}
    names = [name for name in config.probes if name in probes]
    seeds = {seed for probe, _, seed in lacks if PROBES[probe].drawn}
    formats = {form for _, form, _ in lacks}
    if names != ["greedy"]:  # others may read the open prompt
        formats = {*config.formats}
    update: Json = {"formats": tuple(filter(formats.__contains__, config.formats))}
    if seeds:
        update["seeds"] = tuple(filter(seeds.__contains__, config.run_seeds))
    seeing = [name for name in config.probes if not PROBES[name].blind]
    if probes.isdisjoint(seeing):
        names += seeing[:1]
    return {"probes": tuple(names), **update}


def begun(shards: Sequence[Shard], items: int) -> Shards:
    """The unfinished shards, in order, that an engine with `items` in flight may
    have begun."""
    found: list[Shard] = []
    for shard in shards:
        if sum(len(each.questions) for each in found) >= items + len(shard.questions):
            break
        found.append(shard)
    return tuple(found)


class ShardCollector:
    """Gathers the records of items that finish in any order until a shard is
    complete."""

    def __init__(self) -> None:
        # By unfinished item, with its task: its shard, the keys of the shard's items in
        # order, and the records of the finished ones.
        self._begun: dict[
            tuple[str, Key], tuple[Shard, list[Key], dict[Key, Sequence[Record]]]
        ] = {}

    def begin(self, shard: Shard, items: Sequence[Item]) -> None:
        """Expect the records of `items`: those of the shard's questions, in the same
        order."""
        order = [key_of(item) for item in items]
        names = [(item.task, key_of(item)) for item in items]
        self._begun |= dict.fromkeys(names, (shard, order, {}))

    def add(
        self, item: Item, records: Sequence[Record]
    ) -> tuple[Shard, list[Record]] | None:
        """Store one item's records. If the item was its shard's last, returns the
        shard with all records, in order."""
        key = key_of(item)
        shard, order, finished = self._begun.pop((item.task, key))
        finished[key] = records
        if len(finished) < len(order):
            return None
        return shard, [record for each in order for record in finished[each]]


class BaseAnswers:
    """The greedy answers of one base to the open prompts of one task."""

    def __init__(self, source: BaseSource, table: pa.Table | None) -> None:
        """`table`: the result of `RecordStore.greedy_answers`; None if the source
        names no checkpoint."""
        self._missing = source.missing
        self._table = table

    @cached_property
    def _rows(self) -> dict[Key, int]:
        """Only where answers are read: the driver sends them to a hundred engines."""
        if self._table is None:
            return {}
        columns = (self._table[name].to_pylist() for name in ("language", "item_id"))
        return {key: row for row, key in enumerate(zip(*columns, strict=True))}

    def of(self, item: Item) -> BaseAnswer:
        if self._missing is not None:
            return BaseAnswer(missing=self._missing)
        row = self._rows.get(key_of(item))
        if row is None or self._table is None:
            return BaseAnswer(missing=NOT_ASKED)
        (answer,) = self._table.slice(row, 1).to_pylist()
        if answer["token_ids"] is None:
            failed = answer["status"] == "engine_error"
            return BaseAnswer(missing=BASE_FAILED if failed else NOT_ASKED)
        thought = None
        if answer["thought_ids"] is not None:
            ids = tuple(answer["thought_ids"])
            thought = Thought(state=answer["thought_state"], token_ids=ids, text="")
        return BaseAnswer(token_ids=tuple(answer["token_ids"]), thought=thought)
