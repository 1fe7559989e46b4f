"""What users configure: frozen models, and registries of the names that they may use.

    PROBES: Registry[Probe] = Registry("probe")
    PROBES.register(Greedy())
    PROBES["greedi"]           # InputError: unknown probe 'greedi'; did you mean
                               'greedy'? (known: ...)

A registry is filled where its kind is defined, one line for each object; its order is
that of registration.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from typing import Annotated, Any, Generic, Protocol, TypeVar

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from evaluator.core.errors import Document, InputError, mapping_at, unknown

_SHOWN = 120  # characters of a wrong value
_MAPPING = "a mapping is needed: {name: value}, or a line 'name: value' for each entry"
# Pydantic names Python's types; a YAML author knows other names.
_MEANT = {
    "int_parsing": "a whole number is needed",
    "float_parsing": "a number is needed",
    "tuple_type": "a list is needed: [...], or a line with '- ' for each entry",
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
}
_Model = TypeVar("_Model", bound=BaseModel)


class Frozen(BaseModel):
    """Immutable; a key that it does not know is an error, and so is a number that is
    not finite, or that is true or false."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_flag(cls, value: Any, field: ValidationInfo) -> Any:
        kinds = cls.model_fields[field.field_name or ""].annotation
        numbers = (int, float, int | None, float | None)
        if isinstance(value, bool) and kinds in numbers:
            raise ValueError("a number is needed")
        return value


def validated(
    model: type[_Model],
    document: Document,
    where: str,
    field_of: Callable[[tuple[int | str, ...]], str] | None = None,
) -> _Model:
    """Raises InputError with the first problem: where, field (as `field_of` spells
    it; may be empty) and value."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        # An unknown key often explains why another one is missing.
        problems = error.errors()
        problem = min(problems, key=lambda each: each["type"] != "extra_forbidden")
        place, kind = problem["loc"], problem["type"]
        named = tuple(each for each in place if not str(each)[:1].isupper())
        if kind == "value_error" and place[-1:] != named[-1:]:
            # pydantic's name of a model, if no key of the user's
            place = place if place[-1] in mapping_at(document, *named) else named
        spelled = field_of or _dotted
        field = spelled(place)
        message = problem["msg"].removeprefix("Value error, ")
        given, wrong = problem["input"], None
        if kind == "extra_forbidden":
            wrong = unknown("key", str(place[-1]), _known_keys(model, place))
        elif kind == "literal_error" and isinstance(given, str):
            known = re.findall("'(.+?)'", problem["ctx"]["expected"])
            wrong = unknown("value", given, known)
        if wrong is not None:
            raise InputError(f"{where}: {field}: {wrong}") from error
        # the message names the fields
        if not (place and field) and kind == "value_error":
            raise InputError(f"{where}: {message}") from error
        value = json.dumps(given, default=str)
        if len(value) > _SHOWN:
            value = f"{value[:_SHOWN]}..."
        shown = field if kind == "missing" else f"{field}: {value}"
        raise InputError(f"{where}: {shown}: {_MEANT.get(kind, message)}") from error


def _dotted(place: tuple[int | str, ...]) -> str:
    # without pydantic's name of a model, as in thinking.Budget.budget
    parts = [str(part) for part in place[:-1] if not str(part)[:1].isupper()]
    return ".".join([*parts, *map(str, place[-1:])]) or "(top level)"


def _known_keys(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The valid keys at the location of an unknown key, from the model's
    annotations."""
    models: list[Any] = [model]
    for part in location[:-1]:
        # a part may be the tag of one of several models
        chosen = [each for each in models if each.__name__ == part] or models
        fields = chosen[0].model_fields
        inner = _models_in(fields[part].annotation) if part in fields else []
        models = inner or chosen
    fields = models[0].model_fields
    return [name for name in fields if not fields[name].exclude]


def _models_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    parts = getattr(annotation, "__args__", ())
    return [model for part in parts for model in _models_in(part)]


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
    """A loader that refuses a repeated key, of which YAML would silently keep the last,
    and numbers that YAML 1.1 reads as others than they look: 020, 1:30, 1_000."""

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


def _plain_number(loader: KeysOnce, node: Any) -> int | float:
    read: dict[str, Callable[[Any], int | float]] = {
        "tag:yaml.org,2002:int": loader.construct_yaml_int,
        "tag:yaml.org,2002:float": loader.construct_yaml_float,
    }
    value = read[node.tag](node)
    if re.fullmatch(r"[-+]?0[0-9]+|.*[_:xXbB].*", node.value):
        raise yaml.MarkedYAMLError(
            problem=f"{node.value} would be the number {value}: write it in plain"
            " digits, or in quotes as text",
            problem_mark=node.start_mark,
        )
    return value


for _tag in ("int", "float"):
    yaml.add_constructor(f"tag:yaml.org,2002:{_tag}", _plain_number, KeysOnce)


class Named(Protocol):
    """What a registry holds."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


class Registry(Generic[T]):
    """The objects of one kind, in the order in which they were registered."""

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
