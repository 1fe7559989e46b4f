"""A task as one object, and the registry that the command line, validation and
estimates read.

    MINE = Task(
        name="riddles",
        help="riddles of my own",
        argument=Argument("FILE", required=True),
        read_items=lambda file: [Item(task="riddles", ...), ...],
    )
    TASKS.register(MINE)            # --task riddles:FILE

`evaluator/tasks/__init__.py` registers the tasks that ship with Resurface, one line
each.

A task with a user's prompt has a separate name: `xquad+terse` is `xquad` with the
prompt `terse`. It has the same items but separate records and rows in tables. The
table `prompts` joins them. So does one of several lengths of
contexts: `xquad@2000`, and `xquad@2000+terse`; the table `length_of_context` joins
these.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from evaluator.core.config import Registry
from evaluator.core.errors import InputError, meant, need_regular
from evaluator.core.records import Item
from evaluator.core.saved_data import is_saved
from evaluator.tasks.source import Source

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(@[\w./-]+)?")
Kind = Literal["items", "text"]


@dataclass(frozen=True, slots=True)
class Argument:
    """What stands after the colon of `TASK:...`."""

    # FILE: a file; DIR: a directory, or one file of it; ORG/NAME: either, or a data set
    # of the hub.
    placeholder: Literal["FILE", "DIR", "ORG/NAME"]
    required: bool = False
    # Words that name data of Resurface's own where a path is expected -> what records
    # call the task then.
    words: Mapping[str, str] = field(default_factory=dict)


def shared_text(context: str, question: str, answers: Iterable[str]) -> str:
    """What items of one cluster have in common, but for white space: their context,
    or without one the whole item, which is there twice."""
    text = context if context.strip() else "\n".join((question, *answers))
    return " ".join(text.split())


class NoSplit(InputError):
    """A data set lacks a split."""


class Items(list[Item]):
    """Items of a file or folder, and its fields or data files that are not read."""

    left_out: tuple[str, ...] = ()


class DataReader(Protocol):
    """Reads a data set. Users may add a `Source`: split, configuration and columns."""

    def read(self, path: Path | None, said: Source) -> Iterable[Item]:
        """The items. Raises InputError."""

    def source(self, path: Path | None) -> tuple[Source, bool]:
        """The description of a data set, and whether it is files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One source of questions, or of running text. Exactly one of `read_items`, `data`
    and `read_text` is given.

    Readers take the path after the colon (also one of `argument.words`), or None. They
    raise InputError for missing or malformed data. Items keep the order of their file.
    The run replaces `Item.task` with its own name for the task.
    """

    name: str
    help: str  # a phrase: where the data comes from
    argument: Argument | None = None  # None: nothing may stand after the colon
    read_items: Callable[[Path | None], Iterable[Item]] | None = None
    data: DataReader | None = None
    read_text: Callable[[Path | None], str] | None = None
    # what records call the task unless the user names it
    named_after: Literal["task", "file"] = "task"
    # Language -> items, where reading them takes the network: a dry run counts with
    # these (of a text: its bytes). Empty: it reads the items.
    sizes: Mapping[str, int] = field(default_factory=dict)
    example: str = ""  # what its file holds, or its place on the hub
    open: str = ""  # how a model answers its questions without options
    choice_only: bool = False  # no answer that a model writes could be graded
    licence: str = ""  # of the data, where it is known
    # of an evaluation, in place of those that nobody gives; and the template of its
    # usual prompt (empty: the paper's)
    settings: Mapping[str, Any] = field(default_factory=dict)
    prompt: str = ""
    # by suite that has it: the settings with which it is posed there, and its `prompt`
    suites: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # items of several languages with one cluster have translations of one context
    translations: bool = False
    sample: Callable[[], Item] | None = None  # an item to show; it takes no network

    def __post_init__(self) -> None:
        if (self.read_items, self.data, self.read_text).count(None) != 2:
            raise ValueError(
                f"task {self.name!r}: exactly one of read_items, data and read_text is"
                " needed"
            )
        if PLUS in self.name:
            raise ValueError(
                f"task {self.name!r}: a plus stands between a task and a prompt that"
                " poses it"
            )

    @property
    def kind(self) -> Kind:
        """`items`: questions, for every probe but perplexity; `text`: running text,
        for perplexity alone."""
        return "items" if self.read_text is None else "text"

    @property
    def spellings(self) -> tuple[str, ...]:
        """How the task may be written on a command line: `xquad`, `xquad:DIR`."""
        if self.argument is None:
            return (self.name,)
        with_argument = f"{self.name}:{self.argument.placeholder}"
        return (
            (with_argument,) if self.argument.required else (self.name, with_argument)
        )


TASKS: Registry[Task] = Registry("task")


# what reads a file that is given without a task's name
_KINDS_OF_FILES = {".jsonl": "jsonl", ".json": "squad", ".txt": "text", ".md": "text"}


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """`TASK[:PATH]`, checked."""

    task: Task
    path: Path | None = None
    # the part after the colon, where it is one of the task's own words
    word: str | None = None

    @classmethod
    def parse(cls, spec: str) -> "TaskSpec":
        """The task and its path. Raises InputError for an unknown task, and for a
        path missing or out of place."""
        name, colon, rest = spec.partition(":")
        task = _task_named(name, spec)
        argument = task.argument
        problem = ""
        if colon and argument is None:
            problem = "is bundled and takes no path"
        elif colon and not rest:
            problem = "the path after ':' is empty"
        elif argument and argument.required and not rest:
            problem = f"name its file, as in {name}:{argument.placeholder}"
        if problem:
            raise InputError(f"task {spec!r}: {problem}")
        if argument is None or not rest:
            return cls(task)
        # unlike Path's, it keeps a ~user that does not exist
        path = need_regular(Path(os.path.expanduser(rest)))
        if rest in argument.words:
            return cls(task, path, rest)
        hub = argument.placeholder == "ORG/NAME"
        if not path.exists():
            is_mapping = path.suffix in (".yaml", ".yml")
            if not hub or is_mapping or not _HUB_ID.fullmatch(rest):
                problem = "no such file or directory"
            if problem and hub:
                problem += ", nor the name of a data set of the hub (ORG/NAME)"
            problem += meant(path, *argument.words) if problem else ""
        elif argument.placeholder == "FILE" and path.is_dir() and not is_saved(path):
            problem = "is a directory, not a file, and no folder of save_to_disk"
        if problem:
            raise InputError(f"task {spec!r}: {path}: {problem}")
        return cls(task, path)


def _task_named(name: str, spec: str) -> Task:
    """The task. Raises InputError, with the right spelling for a file."""
    if spec and name not in TASKS and Path(os.path.expanduser(spec)).exists():
        kind = _KINDS_OF_FILES.get(Path(spec).suffix, "hf")
        raise InputError(f"unknown task {spec!r}; did you mean '{kind}:{spec}'?")
    return TASKS[name]


PAPER = "paper"  # the prompts of evaluator/asking/prompts.py
PLUS, AT = "+", "@"  # AT: before the length of the contexts, one of several


def plain_task(name: str) -> str:
    """The name of a task without its prompt and the length of its contexts."""
    task, _ = task_and_prompt(name)
    return task.partition(AT)[0]


def task_and_prompt(name: str) -> tuple[str, str]:
    """The plain task and the prompt that a name stands for."""
    task, plus, prompt = name.partition(PLUS)
    return (task, prompt) if plus else (task, PAPER)
