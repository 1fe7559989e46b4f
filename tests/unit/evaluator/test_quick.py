"""Classes that are made quickly are the dataclasses that they were."""

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, replace

import pytest

from evaluator.core.records import Record
from evaluator.engine.base import Cancel, Generate, Response, Score
from evaluator.quick import quick


@dataclass(frozen=True, kw_only=True)
class Slow:
    name: str
    numbers: tuple[int, ...] = ()
    size: float | None = None


@quick
@dataclass(frozen=True, kw_only=True)
class Quick:
    name: str
    numbers: tuple[int, ...] = ()
    size: float | None = None


@quick
@dataclass(frozen=True, kw_only=True)
class Longer(Quick):
    more: int


@pytest.mark.parametrize("given", [{"name": "a"}, {"name": "b", "numbers": (1, 2)}, {"size": 0.5, "name": "c"}])
def test_it_is_what_the_dataclass_is(given):
    made, slow = Quick(**given), Slow(**given)
    assert asdict(made) == asdict(slow)
    assert repr(made) == repr(slow).replace("Slow", "Quick")
    assert made == Quick(**given)
    assert hash(made) == hash(slow)
    assert made != replace(made, name="other")
    assert pickle.loads(pickle.dumps(made)) == copy.copy(made) == made
    assert asdict(Longer(more=1, **given)) == {**asdict(made), "more": 1}


def test_it_is_frozen():
    with pytest.raises(FrozenInstanceError):
        Quick(name="a").name = "b"


@pytest.mark.parametrize(("given", "named"), [({}, "'name'"), ({"name": "a", "nmae": "b"}, "'nmae'")])
def test_arguments_are_checked(given, named):
    with pytest.raises(TypeError, match=named):
        Quick(**given)


def test_no_instance_sees_the_fields_of_another():
    one, other = Quick(name="one"), Quick(name="other")
    assert (one.name, other.name) == ("one", "other")
    assert one.__dict__ is not other.__dict__


def test_what_it_cannot_make_is_refused():
    with pytest.raises(TypeError, match="slots"):
        quick(dataclass(frozen=True, kw_only=True, slots=True)(type("Slotted", (), {"__annotations__": {"a": int}})))

    @dataclass(frozen=True, kw_only=True)
    class Made:
        parts: list[int] = field(default_factory=list)

    with pytest.raises(TypeError, match="default factories"):
        quick(Made)


@pytest.mark.parametrize("kind", [Generate, Score, Cancel, Response, Record])
def test_what_passes_by_the_thousand_is_made_quickly(kind):
    assert kind.__init__.__code__.co_filename == "<string>"
    assert "__slots__" not in vars(kind)
