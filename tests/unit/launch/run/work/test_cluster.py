"""An actor that does not answer, and what of the driver's environment the processes of a cluster get."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from launch.run.work import cluster
from launch.run.work.cluster import NodeLost, _sent_environment, fate

UNAVAILABLE, DIED = ActorUnavailableError("broken", None), ActorDiedError()


def _fate(monkeypatch: pytest.MonkeyPatch, answers: Sequence[object], alive: int = 100, over: int = 100) -> Any:
    """What is said of an actor that answers so (None: not at all), while its node lives for so many looks."""
    coming = iter(answers)
    left, looks = iter([True] * alive + [False] * 100), iter([False] * over + [True] * 100)

    def get(answer: object) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    fake = SimpleNamespace(wait=lambda pending, timeout: (pending if pending != [None] else [], []), get=get)
    monkeypatch.setattr(cluster, "ray", fake)
    monkeypatch.setattr(cluster, "lives", lambda node_id: next(left))
    monkeypatch.setattr(cluster, "_PULSE_SECONDS", 0.0)
    actor = SimpleNamespace(pulse=SimpleNamespace(remote=lambda: next(coming)))
    return fate(actor, "a", 3600.0, lambda: next(looks))


def test_what_became_of_an_actor_that_did_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process or its node is gone, it answers again, nobody needs it any more, or the time is up."""
    assert _fate(monkeypatch, [UNAVAILABLE, None, DIED]) is DIED
    assert isinstance(_fate(monkeypatch, [UNAVAILABLE, None, UNAVAILABLE], alive=3), NodeLost)
    assert _fate(monkeypatch, [UNAVAILABLE, (1, 2)]) is None
    assert _fate(monkeypatch, [None, None], over=2) is None
    assert fate(SimpleNamespace(), "a", -1.0, lambda: False) is None


def test_places_of_modules_are_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    sent = _sent_environment({"RESURFACE_PLUGINS": "riddles", "PYTHONPATH": "mine:/theirs:", "HOME": "/home"})
    assert sent == {"RESURFACE_PLUGINS": "riddles", "PYTHONPATH": f"{tmp_path}/mine:/theirs:${{PYTHONPATH}}"}
    assert _sent_environment({"PYTHONPATH": "", "HOME": "/home"}) == {}


@pytest.mark.parametrize(("fails", "tries"), [(["node timed out"], 2), (["Timed out"] * 9, 3), (["no room"], 1)])
def test_a_start_that_times_out_is_tried_again(tmp_path: Path, monkeypatch, fails: list[str], tries: int) -> None:
    coming, told = iter(fails), []

    def start(**_: object) -> Any:
        told.append("init")
        if (why := next(coming, None)) is not None:
            raise RuntimeError(why)
        return SimpleNamespace(address_info={})

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster, "ray", SimpleNamespace(init=start, shutdown=lambda: None))
    monkeypatch.setattr(cluster, "Cluster", lambda local: SimpleNamespace(lost="", close=lambda: None))
    again: list[str] = []
    with contextlib.suppress(cluster.ClusterError), cluster.cluster(tmp_path / "logs", again.append):
        assert tries == 2
    assert (len(told), len(again)) == (tries, tries - 1)
