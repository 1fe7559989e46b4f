"""What users configure: frozen models, and registries of the names that they may use.

    PROBES: Registry[Probe] = Registry("probe")
    PROBES.register(Greedy())
    PROBES["greedi"]           # InputError: unknown probe 'greedi'; did you mean
                               'greedy'? (known: ...)

A registry is filled where its kind is defined, one line for each object; its order is
that of registration.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import date
from typing import Annotated, Any, Generic, Protocol, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict

from evaluator.core.errors import InputError, unknown


class Frozen(BaseModel):
    """Immutable; a key that it does not know is an error, and so is a number that is
    not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def day(given: Any) -> date:
    """A date, as YAML reads it or as text. Raises ValueError."""
    try:
        found = date.fromisoformat(str(given))
    except ValueError:
        found = None
    if found is None or str(found) != str(given):  # fromisoformat also reads 20260131
        raise ValueError("write a date as 2026-01-31")
    return found


Day = Annotated[date, BeforeValidator(day)]


class KeysOnce(yaml.constructor.SafeConstructor):
    """A loader that refuses a repeated key. YAML would silently keep the last one."""

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Any, Any]:
        seen: set[object] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key.value!r} appears here twice",
                    problem_mark=key.start_mark,
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


class Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


class Registry(Generic[T]):
    def __init__(self, kind: str, objects: Iterable[T] = ()) -> None:
        """`kind` names one object in error messages."""
        self.kind = kind
        self._objects: dict[str, T] = {}
        for each in objects:
            self.register(each)

    def register(self, entry: T) -> T:
        """Add an object under its own name. Raises ValueError if that name is empty
        or taken."""
        if not entry.name:
            raise ValueError(f"a {self.kind} needs a name")
        if entry.name in self._objects:
            raise ValueError(f"{self.kind} {entry.name!r} is registered already")
        self._objects[entry.name] = entry
        return entry

    @contextmanager
    def temporarily(self, entry: T) -> Iterator[T]:
        """Within, the object is registered: for tests."""
        self.register(entry)
        try:
            yield entry
        finally:
            del self._objects[entry.name]

    def __getitem__(self, name: str) -> T:
        """Raises InputError, with the nearest name suggested, for a name that is not
        registered."""
        if name not in self._objects:
            raise unknown(self.kind, name, self._objects)
        return self._objects[name]

    def checked(self, name: str) -> str:
        """The name itself if it is registered: for pydantic's fields, so it raises
        ValueError with `[]`'s message."""
        try:
            return self[name].name
        except InputError as error:
            raise ValueError(str(error)) from error

    def __contains__(self, name: object) -> bool:
        return name in self._objects

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._objects)
