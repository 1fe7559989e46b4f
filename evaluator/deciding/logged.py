"""Other programs' logs as a side of a comparison."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import pandas as pd

from evaluator.core.errors import InputError, spelled
from evaluator.deciding.comparison import ANSWERS, KEY, Side, as_texts
from evaluator.logs.base import UNFILTERED, LoggedTask

# of a log's answers, beside those of every side: a digest of all that the model gave,
# and the number of options (0: an open answer)
_MORE = ("response", "options")
_ORDER = ("number", "own_id")

Task = tuple[str, str]  # checkpoint and task


@dataclass(frozen=True, eq=False, kw_only=True)
class LoggedSide(Side):
    """`answers` has `response` and `options` too. `decisive`: the settings without
    which answers cannot be compared, "unset" where a log states none. `more_is_better`:
    by task and by measure without its filter. `groups`: what each group holds.
    `unscored`: by task, the metrics of which samples have no number."""

    decisive: Mapping[Task, Mapping[str, str]]
    more_is_better: Mapping[tuple[str, str], bool]
    unscored: Mapping[str, str]
    groups: Mapping[str, Collection[str]]


def side_of_logged(logged: Sequence[LoggedTask], name: str) -> LoggedSide:
    """The answers in logs. A document with an `id` keeps it as its item.

    Raises InputError if no metric is a number."""
    frames, notes = [], list[str]()
    settings, decisive, directions, unscored = {}, {}, {}, {}
    groups = defaultdict[str, set[str]](set)
    others = defaultdict[str, Counter[str]](Counter)  # by task
    graded = defaultdict[str, set[str]](set)
    for log in logged:
        frame = _answers(log, others, graded)
        notes += log.notes
        scored = frame["item_id"].nunique()
        if isinstance(log.documents, int) and scored < log.documents:
            notes.append(f"{log.task}: {scored} of its {log.documents} documents count")
        for task in frame["task"].unique():
            own = {name: _stated(value) for name, value in log.decisive.items()}
            settings[log.model, task] = as_texts(log.settings) | own
            decisive[log.model, task] = own
            for metric, better in log.more_is_better.items():
                if isinstance(better, bool):
                    directions[task, metric] = better
            for metric in graded[task]:
                directions.setdefault((task, metric), True)
        for group, members in log.groups.items():
            groups[group] |= {*members}
        frames.append(frame)
    for task, metrics in others.items():
        counts = [f"{metric} ({metrics[metric]})" for metric in sorted(metrics)]
        unscored[task] = f"samples without a number: {', '.join(counts)}"
        notes.append(f"{task}: {unscored[task]}")
    if not any(map(len, frames)):
        why = "".join(f"; {task}: {reason}" for task, reason in unscored.items())
        raise InputError(f"{name}: no sample has a metric that is a number{why}")
    return LoggedSide(
        name,
        pd.concat([frame for frame in frames if len(frame)], ignore_index=True),
        settings,
        "prompt of a log",
        notes=tuple(dict.fromkeys(notes)),
        decisive=decisive,
        more_is_better=directions,
        unscored=unscored,
        groups=groups,
    )


def _answers(
    log: LoggedTask, others: Mapping[str, Counter[str]], graded: Mapping[str, set[str]]
) -> pd.DataFrame:
    """One task's answers, in the order of its documents, never of its lines. `others`
    counts the samples of each task that have no number of a metric; `graded` gets its
    metrics of which more is better."""
    columns = [*ANSWERS, *_MORE, *_ORDER]
    rows = _scored_rows(log, others, graded)
    frame = pd.DataFrame(rows, columns=columns)
    frame = frame.sort_values("number", kind="stable", ignore_index=True)
    own = frame[["measure", "language", "own_id"]]
    if frame["own_id"].notna().all() and not own.duplicated().any():
        frame["item_id"] = frame["own_id"]
    # of two engines that each count from 0: the same number for every measure
    ids = frame.groupby(["language", "item_id"], sort=False)
    other = ids["digest"].transform(lambda digests: pd.factorize(digests)[0])
    again = frame.groupby([*KEY, "digest"], sort=False).cumcount()
    numbered = frame["item_id"] + "#" + (other + 1).astype(str)
    numbered = numbered.where(again == 0, numbered + "." + (again + 1).astype(str))
    frame["item_id"] = frame["item_id"].where((other == 0) & (again == 0), numbered)
    return frame.drop(columns=[*_ORDER])


def _stated(value: object) -> str:
    return "unset" if value is None else spelled(value)


def _scored_rows(
    log: LoggedTask, others: Mapping[str, Counter[str]], graded: Mapping[str, set[str]]
) -> Iterator[tuple[object, ...]]:
    """The columns ANSWERS, _MORE and _ORDER of each score."""
    for sample in log.samples:
        task = log.task
        is_bare = not sample.scores and not sample.others
        if without := ("any",) if is_bare else sample.others:
            others[task].update(without)
        graded[task].update(sample.more_is_better)
        suffix = "" if sample.filter == UNFILTERED else f",{sample.filter}"
        cluster = sample.content if sample.cluster is None else sample.cluster
        said = float(crc32(sample.answer.encode(errors="replace")))
        item_id = str(sample.number)
        if isinstance(sample.number, int):
            item_id = f"doc {sample.number}"
        for metric, value in sample.scores.items():
            measure = metric + suffix
            yield (
                *(log.model, task, measure, sample.language, item_id),
                *(value, said, sample.prompt),
                *(cluster, sample.content),
                *(sample.response, sample.options, sample.number, sample.own_id),
            )
