"""Presets for data sets: one YAML file each (`presets/NAME.yaml`), which becomes the task NAME.

    resurface eval MODEL --task arc_easy          from the hub
    resurface eval MODEL --task arc_easy:DIR      from its files (Parquet, JSON or CSV) in a directory

A file states the data set's address, the meaning of its columns (`Source`) and what open answering means for it. It
also has a sample row in the data set's layout. The row is invented, not copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import Field, ValidationError

from evaluator.core.errors import InputError, one_line
from evaluator.core.records import Item
from evaluator.tasks.base import Argument, Task
from evaluator.tasks.mapping import RowMapping
from evaluator.tasks.rows import read_data_set
from evaluator.tasks.source import Source

FOLDER = Path(__file__).parent / "presets"
# In C where libyaml is there: every process reads the presets.
_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Said = TypeVar("_Said", bound=Source)


class DataSource(Source):
    """A data set and its description: a file of the task `hf`."""

    data: str = Field(min_length=1)  # ORG/NAME on the hub, or a directory or file


class Preset(DataSource):
    """A data set as one file of the folder `presets` has it."""

    help: str
    open: str  # how a model answers its questions without options
    choice_only: bool = False  # no answer that a model writes could be graded
    sizes: int | dict[str, int]  # of the split on the hub: rows of each language
    sample: dict[str, Any]  # a row of our own

    @property
    def size_by_language(self) -> dict[str, int]:
        if isinstance(self.sizes, dict):
            return self.sizes
        return {language: self.sizes for language in self.configs if language is not None}


@dataclass(frozen=True, slots=True)
class PresetReader:
    """Reads the data set of a preset from the hub, or from files."""

    name: str
    preset: Preset

    def read(self, path: Path | None, said: Source) -> list[Item]:
        """Raises InputError as `read_data_set` does."""
        data = self.preset.data if path is None else str(path)
        return read_data_set(self.name, data, self.preset, said, local=path is not None)

    def usual(self, path: Path | None) -> Source | None:
        """The description of the data set on the hub; None for files."""
        return self.preset if path is None else None

    def sample(self) -> Item:
        """The item of the sample row."""
        known = self.preset.configs
        language = "english" if "english" in known else next(iter(known))
        assert self.preset.fields is not None
        mapping = RowMapping(self.preset.fields, task=self.name, language=language, where=f"preset {self.name!r}")
        return mapping.item(self.preset.sample, "sample", "sample")


def document(path: Path, kind: type[_Said]) -> _Said:
    """A YAML file as a `Source` of some kind. Raises InputError with the first problem: file, field and value."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: cannot be read (not a regular file)")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"{path}: cannot be read ({reason})") from error
    try:
        # A few aliases can stand for billions of entries.
        if "*" in text and any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise InputError(f"{path}: aliases (*name) are not read here")
        content = _content(text)
    # A value that its tag or form promises and that does not exist: the 31st of February, a number of 5,000 digits.
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: not valid YAML: {one_line(error)}") from error
    if not isinstance(content, Mapping):
        raise InputError(f"{path}: a mapping with data and fields is needed, not {one_line(repr(content), 60)}")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"])) or "(top level)"
        message = problem["msg"].removeprefix("Value error, ")
        value = "" if problem["type"] == "missing" else f": {one_line(repr(problem['input']), 60)}"
        raise InputError(f"{path}: {field}{value}: {message}") from error


def _content(text: str) -> Any:
    loader = _SAFE(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def preset_task(path: Path) -> Task:
    """The task of one preset's file. Raises InputError for a file that is not one."""
    preset = document(path, Preset)
    return Task(
        name=path.stem,
        help=preset.help,
        argument=Argument("DIR"),
        data=PresetReader(path.stem, preset),
        sizes=preset.size_by_language,
        open=preset.open,
        choice_only=preset.choice_only,
        sample=PresetReader(path.stem, preset).sample,
    )


def preset_tasks() -> list[Task]:
    """The tasks of all presets, by name."""
    return [preset_task(path) for path in sorted(FOLDER.glob("*.yaml"))]
