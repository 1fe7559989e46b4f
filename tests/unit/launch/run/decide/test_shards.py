"""A task's shards: what is left is cut, what comes back is put together, and what
the base answered is found."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from evaluator.asking.thoughts import Thought
from evaluator.core.controls import PLAIN, name_of
from evaluator.core.records import Format, Item, Record
from evaluator.probes.item import BaseAnswer
from evaluator.store.records import RecordStore, to_table
from launch.run.decide.assignments import (
    NO_BASE,
    BaseAnswers,
    BaseSource,
    Shard,
    ShardCollector,
    begun,
    distance,
    shard_of,
    shards_of,
)
from tests.support.board import make_assignment
from tests.support.letters import letter_items
from tests.support.stamps import stamped


def _task(count: int, thought: int = 0) -> Any:
    keys = [(f"language{number % 3}", f"item{number}") for number in range(count)]
    items = [
        SimpleNamespace(task="t", language=language, item_id=item_id)
        for language, item_id in keys
    ]
    config = SimpleNamespace(max_new_tokens=32, expected_thought=thought)
    return SimpleNamespace(
        questions=[SimpleNamespace(item=item) for item in items], config=config
    )


def test_shards_of_long_answers():
    sizes = {
        thought: len(shards_of(_task(40, thought), (), 20)[0].questions)
        for thought in (0, 32, 288, 1000)
    }
    assert sizes == {0: 20, 32: 10, 288: 2, 1000: 1}
    task = _task(40)
    task.config.max_new_tokens = 8  # shorter than a short answer: no more of them
    assert [shard.name for shard in shards_of(task, (), 20)] == ["000000", "000020"]


def test_a_start_reads_at_most_500_parts_of_a_task():
    shards = shards_of(_task(200_000), (), 20)
    assert {len(shard.questions) for shard in shards} == {400}
    assert len(shards) == 500


def test_shards_that_may_have_begun():
    """The first has one item left, the items behind it fill the flight: of shards of
    2, 4 are items 1 to 4."""
    for items, size, count in ((4, 2, 3), (5, 3, 3)):
        shards = [
            shard_of(tuple(range(start, start + size)))
            for start in range(0, 5 * size, size)
        ]
        large = shard_of(tuple(range(100, 140)))
        assert begun([*shards, large], items) == tuple(shards[:count])


def test_distance_of_an_assignment():
    dense = make_assignment("dense", 1)
    held = dense.checkpoint.engine_keys
    keys = (
        held,
        ("other", "qwen3"),
        ("other", None),
        (None, None),
        ("other", "mistral"),
    )
    assert [distance(dense.checkpoint, *each) for each in keys] == [0, 1, 1, 1, 2]


def test_items_in_another_order_need_no_new_engine():
    """But one that has forgotten their prompts, by a swap: a checkpoint that cannot be
    swapped in starts another, as other controls do."""
    dense = make_assignment("dense", 1).checkpoint
    for each, order in ((dense, 1), (replace(dense, alone=True), 2)):
        controls = [each.with_cache(name_of("dense", name), "auto") for name in PLAIN]
        away = [distance(control, *each.engine_keys) for control in controls]
        assert away == [2, order, 2]


def test_collector_orders_items() -> None:
    """A shard is complete with its last item, whichever that is."""
    items = [question.item for question in _task(5).questions]
    first = Shard(name="a", questions=(0, 1, 2))
    second = Shard(name="b", questions=(3, 4))
    collector = ShardCollector()
    collector.begin(first, items[:3])
    collector.begin(second, items[3:])
    other = [SimpleNamespace(**vars(item) | {"task": "other"}) for item in items[:2]]
    third = Shard(name="a", questions=(0, 1), task="other")
    collector.begin(third, other)
    assert collector.add(other[0], ["0"]) is None
    added = [collector.add(items[each], [f"{each} x", f"{each} y"]) for each in (2, 4, 0, 3, 1)]  # fmt: skip
    assert added == [
        None,
        None,
        None,
        (second, ["3 x", "3 y", "4 x", "4 y"]),
        (first, ["0 x", "0 y", "1 x", "1 y", "2 x", "2 y"]),
    ]
    assert collector.add(other[1], ["1"]) == (third, ["0", "1"])


def test_missing_base_answer_has_a_reason(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    assert store.greedy_answers("k").num_rows == 0
    first, second, third, fourth = letter_items(4)

    def record(
        item: Item, probe: str = "greedy", format: Format = "open", **columns: Any
    ) -> Record:
        return stamped(item, probe, format, checkpoint="dense", **columns)

    records = [
        record(first, token_ids=(5, 1, 0), thought_ids=(4, 4), thought_state="closed"),
        record(first, "beam", token_ids=(7, 7)),
        record(first, format="one_shot", token_ids=(8, 8)),
        record(second, status="engine_error", text="lost"),
        record(third, format="one_shot", token_ids=(9, 9)),
        record(fourth, status="excluded"),
    ]
    store.append("k", to_table(records))
    answers = BaseAnswers(BaseSource(name="dense"), store.greedy_answers("k"))
    assert answers.of(first) == BaseAnswer(
        token_ids=(5, 1, 0), thought=Thought(state="closed", token_ids=(4, 4), text="")
    )
    assert answers.of(second).missing == "the engine failed on its base's greedy answer"
    for item in (third, fourth):
        assert (
            answers.of(item).missing
            == "its base has no greedy answer to the open prompt in this run"
        )
    assert BaseAnswers(BaseSource(missing=NO_BASE), None).of(first).missing == NO_BASE
