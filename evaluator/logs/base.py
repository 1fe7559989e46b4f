"""What every reader of another program's logs gives: models and tasks, with their
samples.

A log is a file of another person: JSON is parsed and checked, nothing in it is run.
Samples are read one after another. The item of a sample is what was asked: `content`, a
digest of its question and gold answer."""

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from evaluator.core.errors import (
    Document,
    InputError,
    Json,
    of_kind,
    parse,
    read_bytes,
    spelled,
)

LOGGED = "log "  # before a digest of a log's own: no digest of a run begins so
UNFILTERED = "none"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The scores of one response, or of one filter of it."""

    number: int | str  # of the document: unique in its task, but for repeats
    content: str
    answer: str  # what was judged; of several options the best
    response: str  # digest of everything that the model gave
    scores: Mapping[str, float]  # metrics that are numbers
    others: tuple[str, ...] = ()  # the metrics that are none
    filter: str = UNFILTERED
    prompt: str = ""  # digest
    own_id: str | None = None  # a name that the document itself has
    # samples of one cluster are not independent; None: of its content
    cluster: str | None = None
    more_is_better: Collection[str] = ()  # scores, by the form of the log
    language: str = ""
    options: int = 0  # that were scored; 0: an open answer


@dataclass(frozen=True, kw_only=True)
class LoggedTask:
    """One task of one model. `settings`: all that the log states. `decisive`: those
    without which answers cannot be compared."""

    model: str
    task: str
    samples: Iterable[Sample]
    settings: Document
    decisive: Document
    # metric -> whether more is better, as the log states it
    more_is_better: Document = field(default_factory=dict)
    # the tasks and groups in each group that the log knows
    groups: Mapping[str, Collection[str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    documents: int | None = None  # that the log says it holds


class Reader(Protocol):
    """One program's logs."""

    program: str
    names: str  # of its files, as a user knows them

    def files(self, path: Path) -> list[Path]:
        """The log files at or below a path; none if they are another program's."""
        return files_at(path, self.names)

    def read(self, path: Path, files: list[Path]) -> list[LoggedTask]:
        """The newest log of each model and task. Raises InputError, also later while
        the samples are read."""

    def lacking(self, path: Path) -> str:
        """What to do about a path with this program's results but no samples; empty
        if it has none."""
        return ""


def files_at(path: Path, names: str) -> list[Path]:
    """The file itself, or those below a directory, if they have a name of the pattern."""
    if not path.is_file():
        return sorted(file for file in path.glob(f"**/{names}") if file.is_file())
    return [path] if path.match(names) else []


def object_in(file: Path) -> Json:
    """The JSON object in a file. Raises InputError for anything else."""
    found: Json = of_kind(parse(read_bytes(file), str(file)), dict, str(file))
    return found


def lines_in(file: Path) -> Iterator[tuple[str, Json]]:
    """The JSON object in each line that is not empty, and its place in words."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                where = f"{file}:{number}"
                yield where, of_kind(parse(line, where), dict, where)


def time_of(file: Path) -> str:
    """The time that ends a file's name: files of one run share it. It orders none."""
    return file.stem.rpartition("_")[2]


def instant(stated: Any) -> float | None:
    """A time that a log states, in seconds since 1970; None where that is not sure."""
    if isinstance(stated, int | float) and not isinstance(stated, bool):
        return float(stated)
    try:
        found = datetime.fromisoformat(stated)
    except (TypeError, ValueError):
        return None
    return found.timestamp() if found.tzinfo else None


def newest(instants: Mapping[Path, float | None]) -> tuple[Path, list[str]]:
    """The last of one task's logs, and a note on each other one. Raises InputError
    where the logs themselves do not say which is the last."""
    known = sorted(time for time in instants.values() if time is not None)
    if len(instants) > 1 and (len(known) < len(instants) or known[-1] == known[-2]):
        files = ", ".join(map(str, instants))
        raise InputError(
            f"{files}: logs of one task, whose content does not say which is the newest:"
            " name one"
        )
    file = max(instants, key=lambda each: instants[each] or 0.0)
    return file, [replaced(other) for other in instants if other != file]


def need_one_model(models: Mapping[Path, Any]) -> None:
    """`models`: what each log states of its model. Raises InputError for two."""
    first = next(iter(models), None)
    for file, model in models.items():
        if first is not None and spelled(model) != spelled(models[first]):
            raise InputError(
                f"{first} is of model {spelled(models[first])}, and {file} of"
                f" {spelled(model)}: name the logs of one"
            )


def below(groups: Mapping[str, Collection[str]], name: str) -> set[str]:
    """All tasks and groups in a group, at every depth: with itself if in a cycle."""
    found, waiting = set[str](), [name]
    while waiting:
        new = {*groups.get(waiting.pop(), ())} - found
        found |= new
        waiting += new
    return found


def digest(value: Any) -> str:
    """Of anything that JSON holds. Equal values have equal ones."""
    return hashlib.sha256(spelled([value, None]).encode()).hexdigest()[:32]


def text_or_none(value: Any) -> str | None:
    return None if value is None else spelled(value)


def content_of(question: Any, gold: Any) -> str:
    return LOGGED + digest([question, gold])


def numbers_of(values: Document) -> tuple[dict[str, float], tuple[str, ...]]:
    """The metrics that are numbers (one beyond their range is infinite), and the names
    of the others."""
    scores: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, int | float):
            try:
                scores[str(name)] = float(value)
            except OverflowError:
                scores[str(name)] = math.inf
    return scores, tuple(map(str, values.keys() - scores.keys()))


def measured(likelihoods: Sequence[float]) -> bool:
    """Whether log-likelihoods of options tell them apart: not with a NaN, nor where
    each is 0 or infinite, as of a server that scores no prompts."""
    first, *others = likelihoods
    if any(map(math.isnan, likelihoods)):
        return False
    alike = {*others} == {first}
    return not (alike and (first == 0 or math.isinf(first)))


def replaced(path: Path) -> str:
    """The note about a log that a newer one replaces."""
    return f"{path}: not read: there is a newer log of its task"
