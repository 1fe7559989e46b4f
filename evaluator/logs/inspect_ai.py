"""The `.eval` files of inspect, through inspect's own reader: the extra `logs`.

Settings come from a log's header, scores from the summaries of its samples. Whole
samples are read only where the header says that some were invalidated: a whole log of
200,000 samples takes hours."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluator.core.errors import InputError, Json, one_line, spelled
from evaluator.logs.base import (
    LoggedTask,
    Reader,
    Sample,
    content_of,
    digest,
    instant,
    need_one_model,
    newest,
    numbers_of,
)

# inspect's letters: correct, incorrect, partially correct, no answer
_LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
_FAILED = ("grader_failed", "scoring_failed")
_UNREAD = "Grade not found in model output"  # by a judge before 0.3.245: graded I
# of how often and how fast a model is asked, not of what it answers
_SPEED = (
    *("max_retries", "timeout", "attempt_timeout", "max_connections"),
    *("adaptive_connections", "batch", "cache", "cache_prompt"),
)


class Inspect(Reader):
    program = "inspect"
    names = "*.eval"

    def lacking(self, path: Path) -> str:
        if not (path.is_file() and path.suffix == ".json"):
            return ""
        with path.open("rb") as content:
            if b'"eval"' not in content.read(200):
                return ""
        return "inspect's JSON: run `inspect log convert --to eval`"

    def read(self, path: Path, files: list[Path]) -> list[LoggedTask]:
        logs: dict[tuple[str, str], dict[str, dict[Path, Any]]] = {}
        models: dict[str, dict[Path, Any]] = {}
        for file in files:
            header = _read(file, "read_eval_log", header_only=True)
            stated = header.eval
            models.setdefault(stated.model, {})[file] = stated.model_args
            by_arguments = logs.setdefault((stated.model, stated.task), {})
            by_arguments.setdefault(spelled(stated.task_args), {})[file] = header
        for each in models.values():
            need_one_model(each)
        tasks = []
        for by_arguments in logs.values():
            arguments = [
                next(iter(known.values())).eval.task_args
                for known in by_arguments.values()
            ]
            for known, own in zip(by_arguments.values(), arguments, strict=True):
                times = {each: instant(known[each].eval.created) for each in known}
                file, notes = newest(times)
                tasks.append(_task(file, known[file], notes, _apart(own, arguments)))
        return tasks


def _apart(own: Json, every: list[Json]) -> str:
    """The arguments of one of a task's logs that differ from the others'."""
    parts = []
    for name in sorted(set().union(*every)):
        if len({spelled(each.get(name)) for each in every}) > 1:
            parts.append(f"{name}={spelled(own.get(name))}")
    return f" ({', '.join(parts)})" if parts else ""


def _read(file: Path, function: str, **options: Any) -> Any:
    """What a function of inspect's reads from a log. Raises InputError."""
    try:
        from inspect_ai import log as inspect_log
    except ImportError as error:
        raise InputError(
            f"{file}: inspect's reader is needed: pip install 'resurface[logs]'"
        ) from error
    try:
        return getattr(inspect_log, function)(str(file), **options)
    # a damaged log fails in zip, JSON or a record's fields
    except Exception as error:
        raise InputError(
            f"{file}: no log that inspect reads ({one_line(error)})"
        ) from error


def _task(file: Path, header: Any, notes: list[str], apart: str) -> LoggedTask:
    stated, config = header.eval, header.eval.config
    epochs = config.epochs or 1
    # of one epoch there is nothing to reduce, and their mean is the usual
    reducers = [each for each in config.epochs_reducer or () if epochs > 1]
    decisive: Json = {
        "task_version": stated.task_version,
        "task_args": stated.task_args or None,
        "epochs": epochs,
        "epochs_reducer": None if reducers in ([], ["mean"]) else reducers,
        "solvers": [step.model_dump(exclude_none=True) for step in header.plan.steps],
        # a judge's prompt and model
        "scorers": [[each.name, each.options] for each in stated.scorers or ()] or None,
        "model_roles": {
            role: given.model for role, given in (stated.model_roles or {}).items()
        }
        or None,
    }
    generation = stated.model_generate_config.model_dump()
    generation |= header.plan.config.model_dump(exclude_none=True)
    for name in generation.keys() - set(_SPEED):
        decisive[name] = generation[name]
    settings: Json = {"limit": config.limit, "dataset": stated.dataset.name}
    for name, version in stated.packages.items():
        settings[f"version of {name}"] = version
    told = [*notes]
    if header.status != "success":
        told.append(f"{file}: inspect did not finish it ({header.status})")
    for reducer in reducers:
        if reducer != "mean":
            told.append(
                f"{file}: inspect reduces epochs by {reducer}; here their mean counts"
            )
    roles = stated.model_roles or {}
    for scorer in stated.scorers or ():
        given: Json = scorer.options or {}
        judge = given.get("model") or roles.get(given.get("model_role", "grader"))
        if scorer.name.rpartition("/")[2].startswith("model_graded_") and not judge:
            told.append(f"{file}: {scorer.name} has no judge but the model itself")
    invalid: frozenset[tuple[Any, int]] = frozenset()
    if header.invalidated:
        whole = _whole(file)
        invalid = frozenset(
            (each.id, each.epoch) for each in whole if each.invalidation is not None
        )
        told.append(f"{file}: {len(invalid)} samples are marked as invalid")
    return LoggedTask(
        model=stated.model,
        task=f"{stated.task}{apart}",
        samples=_samples(file, decisive["solvers"], invalid),
        settings=settings | decisive,
        decisive=decisive,
        notes=tuple(told),
    )


def _whole(file: Path) -> Any:
    return _read(file, "read_eval_log").samples or ()


def _samples(
    file: Path, solvers: Any, invalid: frozenset[tuple[Any, int]]
) -> Iterator[Sample]:
    summaries = _read(file, "read_eval_log_sample_summaries")
    # a log of 2024 has none
    summaries = summaries or [sample.summary() for sample in _whole(file)]
    # scorers with other grades than inspect's: their C is none of its letters
    own = set()
    for summary in summaries:
        for name, part in _parts(summary.scores or {}):
            if isinstance(part, str) and part not in _LETTERS:
                own.add(name)
    for summary in summaries:
        is_invalid = (summary.id, summary.epoch) in invalid
        is_scored = summary.error is None and not is_invalid
        scores = (summary.scores or {}) if is_scored else {}
        yield _sample_of(summary, scores, solvers, own)


def _parts(scores: Any) -> Iterator[tuple[str, Any]]:
    """The named values of scores: none of a judge that failed, which is no answer of
    the model."""
    for name, score in scores.items():
        reason, explained = getattr(score, "reason", None), score.explanation or ""
        failed = reason in _FAILED or explained.startswith(_UNREAD)
        if isinstance(score.value, dict):
            for metric, part in score.value.items():
                yield f"{name},{metric}", None if failed else part
        else:
            yield name, None if failed else score.value


def _sample_of(summary: Any, scores: Any, solvers: Any, own: set[str]) -> Sample:
    values: Json = {}
    graded = []
    for name, part in _parts(scores):
        values[name] = part
        if isinstance(part, str) and part in _LETTERS and name not in own:
            values[name] = _LETTERS[part]
            graded.append(name)
    numbers, others = numbers_of(values)
    options = summary.choices
    answers = digest([score.answer for score in scores.values()])
    question = [_plain(summary.input), options]
    return Sample(
        number=f"{summary.id} epoch {summary.epoch}",
        content=content_of(question, summary.target),
        answer=answers,
        response=answers,
        scores=numbers,
        others=others,
        prompt=digest([question, solvers]),
        cluster=str(summary.id),
        options=len(options or ()),
        more_is_better=graded,
    )


def _plain(messages: Any) -> Any:
    """Messages without their random ids."""
    if isinstance(messages, str):
        return messages
    return [[message.role, message.text] for message in messages]
