"""Who is at fault: the checkpoint, the engine, or one item."""

import pytest

from launch.run.decide.failures import Ledger, Trouble
from tests.support.board import make_assignment

LOAD = Trouble(stage="load", reason="no")
DEATH = Trouble(stage="evaluate", reason="died")
WRONG = Trouble(stage="load", reason="wrong", mendable=True)


def _ledger(engines: int, attempts: int = 3) -> Ledger:
    ledger = Ledger(attempts=attempts)
    for engine in range(engines):
        ledger.devices.engines[engine] = ""
    return ledger


def _info(name: str):
    return make_assignment(name, 1).checkpoint


@pytest.mark.parametrize("attempts", [1, 2, 3, 5])
def test_a_checkpoint_is_set_aside_after_so_many_failures_to_load(attempts: int) -> None:
    ledger = _ledger(1, attempts)
    assert [ledger.failed(0, "a", LOAD) for _ in range(attempts)] == [False] * (attempts - 1) + [True]
    setback = ledger.setback("a", "load", "no")
    assert (setback.engines, setback.attempts) == ((0,), attempts)


def test_only_failures_in_a_row_count() -> None:
    ledger = _ledger(1)
    for _ in range(10):
        assert not ledger.failed(0, "a", LOAD)
        assert not ledger.failed(0, "a", DEATH)
        assert "a" in ledger.doubtful
        ledger.went_well(0, "a")
        assert "a" not in ledger.doubtful


def test_a_death_is_forgiven_more_often_since_it_may_be_one_items_fault() -> None:
    ledger = _ledger(1)
    assert [ledger.failed(0, "a", DEATH) for _ in range(6)] == [False] * 5 + [True]


def test_wrong_input_is_said_once_by_each_of_two_engines_and_once_by_a_single_one() -> None:
    assert _ledger(1).failed(0, "a", WRONG)
    two = _ledger(2)
    assert not two.failed(0, "a", WRONG)
    assert not two.may_take(0, "a")
    assert two.failed(1, "a", WRONG)


def test_an_engine_leaves_what_it_failed_with_to_another_until_that_is_gone_or_succeeds_or_fails() -> None:
    ledger = _ledger(2)
    ledger.failed(0, "a", LOAD)
    assert (ledger.may_take(0, "a"), ledger.may_take(1, "a"), ledger.may_take(0, "b")) == (False, True, True)
    del ledger.devices.engines[1]
    assert ledger.may_take(0, "a")
    ledger.devices.engines[1] = ""
    ledger.went_well(1, "a")
    assert ledger.may_take(0, "a")
    ledger.failed(0, "a", LOAD)
    assert not ledger.may_take(0, "a")
    ledger.failed(1, "a", LOAD)
    assert [ledger.may_take(engine, "a") for engine in (0, 1)] == [True, True]


def test_an_engine_that_fails_with_a_checkpoint_again_and_again_is_spared_it_while_others_can() -> None:
    ledger = _ledger(2)
    for _ in range(3):
        ledger.failed(0, "a", LOAD)
        ledger.went_well(1, "a")
    assert not ledger.may_take(0, "a")
    assert ledger.may_take(1, "a")


def test_an_engine_that_fails_with_different_checkpoints_has_to_load_a_known_one() -> None:
    ledger = _ledger(1)
    for name in "abc":
        ledger.failed(0, name, LOAD)
    assert ledger.remedy(0) == "retire"  # none is known
    ledger.went_well(0, "good")
    assert ledger.remedy(0) == "go on"
    ledger.loaded(0, _info("good"))
    remedies = []
    for name in "aabbcd":
        ledger.failed(0, name, LOAD)
        remedies.append(ledger.remedy(0))
    assert remedies == ["go on"] * 4 + ["probe"] * 2
    ledger.loaded(0, _info("good"))  # the probe
    ledger.failed(0, "d", LOAD)
    assert ledger.remedy(0) == "go on"


def test_one_checkpoint_alone_never_retires_an_engine() -> None:
    for attempts in (1, 3):
        ledger = _ledger(1, attempts)
        for _ in range(20):
            ledger.failed(0, "a", DEATH)
            assert ledger.remedy(0) == "go on"


def test_an_engine_whose_process_does_not_start_is_retired() -> None:
    ledger = _ledger(2)
    assert [ledger.not_started(0) for _ in range(3)] == ["go on", "go on", "retire"]
    assert ledger.not_started(1) == "go on"
    ledger.loaded(1, _info("good"))
    assert [ledger.not_started(1) for _ in range(3)] == ["go on", "go on", "retire"]


def test_a_checkpoint_with_many_deadly_items_is_set_aside() -> None:
    ledger = _ledger(1)
    assert [ledger.lost_item("a") for _ in range(8)] == [False] * 7 + [True]
    assert not ledger.lost_item("b")
