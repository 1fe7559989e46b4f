"""Tasks of data sets: the presets and `hf`.

A preset is one YAML file (`presets/NAME.yaml`), which becomes the task NAME: the data
set's address, the meaning of its columns (`Source`), what open answering means for it,
and an invented sample row in its layout.

    resurface eval MODEL --task arc_easy          from the hub resurface eval MODEL
    --task arc_easy:DIR      from its files (Parquet, JSON or CSV) in a directory

`hf` is any data set on the hub, or in files that `datasets` reads:

    hf:ORG/NAME[@REVISION]    on the hub
    hf:DIR, hf:FILE           Parquet, JSON (also a row per line) or CSV
    hf:FILE.yaml              for the command line: a YAML file with a mapping; its
                              `data` names the data set

That file, or the task's entry in a sweep file, maps columns to fields (`source.py`).
Without one, names decide.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from evaluator.core.config import validated
from evaluator.core.document import read_document
from evaluator.core.errors import InputError, Json, field, one_line
from evaluator.core.records import Item
from evaluator.tasks.base import Argument, Task
from evaluator.tasks.mapping import RowMapping
from evaluator.tasks.rows import SUFFIXES, RowLocation, read_data_set, rows_at
from evaluator.tasks.source import Source

FOLDER = Path(__file__).parent / "presets"
_EXAMPLE = """\
FILE.yaml; only data and fields are required:
data: ORG/NAME
language: english
fields: {question: question, options: choices.text, answer: answerKey}"""
_Said = TypeVar("_Said", bound=Source)


class DataSource(Source):
    """A data set and its description: a file of the task `hf`."""

    data: str = Field(min_length=1)  # ORG/NAME on the hub, or a directory or file


class Preset(DataSource):
    """A data set as one file of the folder `presets` has it."""

    help: str
    open: str  # how a model answers its questions without options
    choice_only: bool = False  # no answer that a model writes could be graded
    licence: str = ""  # where it is known
    # of an evaluation, in place of those that nobody gives
    settings: Json = Field(default_factory=dict)
    prompt: str = ""  # a template; empty: the paper's prompt
    suites: dict[str, Json] = Field(default_factory=dict)  # `Task.suites`
    sizes: int | dict[str, int]  # of the split on the hub: rows of each language
    sample: Json  # a row of our own


class _Reader:
    """Reads a preset's data set, or, without a preset, whatever a path names."""

    def __init__(self, name: str, preset: Preset | None = None) -> None:
        self._name, self._preset = name, preset

    def read(self, path: Path | None, said: Source) -> list[Item]:
        """Raises InputError as `read_data_set` does."""
        if self._preset is not None:
            data, local = self._preset.data, path is not None
            data = str(path) if local else data
            return read_data_set(self._name, data, self._preset, said, local=local)
        named, described, local = _named(path)
        said = said.over(described)
        return read_data_set(self._name, named, Source(), said, local=local)

    def source(self, path: Path | None) -> tuple[Source, bool]:
        if self._preset is not None:
            return self._preset, path is not None
        _, described, local = _named(path)
        return described, local


def _named(path: Path | None) -> tuple[str, Source, bool]:
    """The data set that a path names, its description, and whether it is files."""
    assert path is not None, "the argument is required"
    said = Source()
    if path.suffix in (".yaml", ".yml"):
        said = document(path, DataSource)
        beside = path.parent / said.data
        path = beside if beside.exists() else Path(said.data)
    if path.exists():
        return str(path), said, True
    if path.suffix.lower() in SUFFIXES:
        raise InputError(f"{path}: there is no such file, here or beside its mapping")
    repository, _, revision = str(path).partition("@")
    return repository, said.over(Source(revision=revision or None)), False


def document(path: Path, kind: type[_Said]) -> _Said:
    """A YAML file as a `Source` of some kind. Raises InputError with the first
    problem: file, field and value."""
    content = read_document(path, "the data set's file")
    if not isinstance(content, Mapping):
        raise InputError(
            f"{path}: a mapping with data and fields is needed, not"
            f" {one_line(repr(content), 60)}"
        )
    return validated(kind, content, str(path))


def preset_task(path: Path) -> Task:
    """The task of one preset's file. Raises InputError for a file that is not one."""
    name, preset = path.stem, document(path, Preset)
    languages = [language for language in preset.configs if language is not None]

    def sample() -> Item:
        language = "english" if "english" in languages else next(iter(preset.configs))
        mapping = RowMapping(
            preset, task=name, language=language, where=f"preset {name!r}"
        )
        return mapping.item(preset.sample, "sample", "sample")

    sizes, hub = preset.sizes, [f"on the hub: {preset.data}"]
    for part in ("config", "split"):
        if isinstance(value := getattr(preset, part), str):
            hub.append(f"{part} {value}")
    return Task(
        name=name,
        help=preset.help,
        example=", ".join(hub),
        argument=Argument("DIR"),
        data=_Reader(name, preset),
        sizes=sizes if isinstance(sizes, dict) else dict.fromkeys(languages, sizes),
        open=preset.open,
        choice_only=preset.choice_only,
        licence=preset.licence,
        settings=preset.settings,
        prompt=preset.prompt,
        suites=preset.suites,
        sample=sample,
    )


HF = Task(
    name="hf",
    help=(
        "a data set of the hub, or of Parquet, JSON or CSV files; a sweep file or"
        " hf:FILE.yaml names its columns"
    ),
    argument=Argument("ORG/NAME", required=True),
    named_after="file",
    example=_EXAMPLE,
    data=_Reader("hf"),
)


_WIKITEXT, _WIKITEXT_CONFIG = "Salesforce/wikitext", "wikitext-2-raw-v1"


def _wikitext(path: Path | None) -> str:
    """The test split as one text, as pruning papers join its lines. Raises
    InputError."""
    data = _WIKITEXT if path is None else str(path)
    config = _WIKITEXT_CONFIG if path is None else None
    location = RowLocation(
        task="wikitext2",
        data=data,
        local=path is not None,
        config=config,
        split="test" if path is None else None,
        usual="test",
    )
    with rows_at(location) as (_, rows):
        lines = [
            field(row, "text", str, f"{location}: row {number} (the first is 0)")
            for number, row in enumerate(rows)
        ]
    return "\n\n".join(lines)


WIKITEXT = Task(
    name="wikitext2",
    help="WikiText-2, raw, test split: for the perplexity probe",
    argument=Argument("DIR"),
    read_text=_wikitext,
    suites={"zero-shot": {"probes": ["perplexity"]}},
    example=f"on the hub: {_WIKITEXT}, config {_WIKITEXT_CONFIG}, split test\ncolumns: text",
    sizes={"bytes": 1_290_590},
)
