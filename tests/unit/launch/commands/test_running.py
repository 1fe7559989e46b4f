"""The one line at the end of a run that could not do everything."""

from __future__ import annotations

from evaluator.store.run_json import Failure
from launch.commands.running import summary


def _failure(checkpoint: str, reason: str = "no") -> Failure:
    return Failure(checkpoint=checkpoint, stage="load", reason=reason)


def test_each_checkpoint_is_named_once_with_its_first_reason() -> None:
    assert summary([_failure("a", "one\ntwo"), _failure("a", "later")]) == (
        "1 checkpoint, wholly or in part: a (load: one two)"
    )


def test_of_many_the_first_are_named_and_the_rest_counted() -> None:
    told = summary([_failure(name) for name in "abcde"])
    assert told == "5 checkpoints, wholly or in part: a (load: no), b (load: no), c (load: no), and 2 more"
