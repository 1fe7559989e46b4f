"""Compares two sides on their common items: which scores moved by more than noise.

A side has a row for each scored answer, and the settings behind it. It comes from a
run's outcomes or from another program's logs (`logged.py`). Both use the same names of
measures. `open`:
the greedy answer contains a gold answer. `choice`: the gold option scored highest.
`exact_match` has one name everywhere.

Items pair by what was asked (`pairing.py`).

A score moved if its paired test is significant after Holm's correction: McNemar's
exact test for scores of 0 or 1, for other numbers and for repeated questions a paired
t-test that is robust to shared contexts. `same`: no item differs. `noise`: some items
differ, but no more than by chance.

Holm's correction has one family for all rows pooled over languages. The single
languages form one family for each task, checkpoint and measure. A family contains
only comparisons that can differ, whatever the results:

- The same weights under the same settings are one model. Its rows have no Holm p;
  the uncorrected p decides.
- Measures with equal values on every item of both sides are one test, which counts
  once. Example: `exact_match` and `open`, if each answer with a gold answer equals
  that gold answer."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

import evaluator.metrics.columns as col
from evaluator.core.errors import (
    Document,
    InputError,
    Json,
    mapping_at,
    nearest,
    spelled,
)
from evaluator.core.records import SERVING
from evaluator.deciding.pairing import by_content
from evaluator.metrics.columns import WHY, Column, Row, typed_frame
from evaluator.metrics.comparable import (
    ROUNDED,
    rounded_activations,
    scoring_of,
    settings_of,
)
from evaluator.metrics.inputs import Inputs, in_language
from evaluator.metrics.intervals import mcnemar_p
from evaluator.metrics.items import ALL
from evaluator.metrics.measures import (
    Unbounded,
    as_floats,
    bounds,
    correct_for_many,
    difference,
)

ANSWERS = [
    *("checkpoint", "task", "measure", "language", "item_id"),
    *("value", "said", "prompt", "cluster", "digest"),
]
KEY = ["measure", "language", "item_id"]
# Measure -> the outcome column of its value, the column that identifies the answer (or
# None), and the probe.
_MEASURES = {
    "open": ("produced", "answer_said", "greedy"),
    "exact_match": ("exact_match", "answer_said", "greedy"),
    "choice": ("recognised", "picked", "choice"),
    "hard_choice": ("hard_recognised", None, "hard_choice"),
    "in any beam": ("beam_hit", None, "beam"),
    "in any sample": ("sample_hit", None, "sample"),
}
# metrics of a log -> the measures of a run that they are
_AS_IN_RUN = {"contains": "open", "acc": "choice"}
_NOT_SETTINGS = ("probes", "formats", "name", "languages", "items")


@dataclass(frozen=True, eq=False)
class Side:
    """`answers` has the columns ANSWERS. `value` is a number, mostly 0 or 1. Equal
    answers have equal `said`, and equal prompts equal `prompt`. `settings`: by
    checkpoint and task."""

    name: str
    answers: pd.DataFrame
    settings: Mapping[tuple[str, str], Mapping[str, str]]
    # the kind of `prompt`; answers and prompts are compared only if both sides have the
    # same kind
    prompts: str
    # checkpoints whose activations are known to be quantised
    rounded: Set[str] = frozenset()
    notes: tuple[str, ...] = ()

    def answers_of(self, checkpoint: str, task: str) -> pd.DataFrame:
        same = self.answers["checkpoint"] == checkpoint
        return self.answers[same & (self.answers["task"] == task)]

    def names(self, column: str) -> list[str]:
        """The names in a column: checkpoints in the run's order."""
        names = self.answers[column].unique()
        return list(names) if column == "checkpoint" else sorted(names)


def side_of_run(inputs: Inputs, name: str) -> Side:
    """A run's answers to open prompts; of samples, the mean over their seeds."""
    parts, settings, rounded = [pd.DataFrame(columns=ANSWERS)], {}, set()
    for subject in inputs.checkpoints:
        task, checkpoint = subject.key
        settings[checkpoint, task] = _settings(inputs, checkpoint, task)
        parts += _answers(inputs, checkpoint, task)
        if rounded_activations(subject.pattern):
            rounded.add(checkpoint)
    answers = pd.concat(parts[1:] or parts, ignore_index=True)
    return Side(name, answers, settings, "tokens of the prompt", rounded)


def _answers(inputs: Inputs, checkpoint: str, task: str) -> Iterator[pd.DataFrame]:
    outcomes = inputs.outcomes_of(checkpoint, task)
    digests = inputs.asked(task)["digest"].to_numpy(object)
    for measure, (column, answer, probe) in _MEASURES.items():
        done = outcomes[outcomes[column].notna()]
        if done[f"{probe}_status"].isna().all():
            continue
        prompts = done["greedy_prompt_digest"].fillna("")
        if measure == "choice":
            prompts = done["options_digest"].astype(str) + ":" + prompts
        columns = {
            "checkpoint": checkpoint,
            "task": task,
            "measure": measure,
            "language": done["language"],
            "item_id": done["item_id"],
            "value": done[column],
            "said": done[answer] if answer else np.nan,
            "prompt": prompts,
            "cluster": done["context"],
            "digest": digests[done["item"].to_numpy(np.intp)],
        }
        yield pd.DataFrame(columns)


def _settings(inputs: Inputs, checkpoint: str, task: str) -> dict[str, str]:
    """All settings of a run for one checkpoint and task."""
    run, provenance = inputs.run, mapping_at(inputs.run, "provenance")
    outcomes = inputs.outcomes_of(checkpoint, task)
    every = inputs.all_outcomes_of(checkpoint, task)
    columns = {name.replace("_", " "): outcomes[name] for name in SERVING}
    columns["kv cache"] = every["kv_cache"]
    columns["weights"] = every["weights_digest"].str[:12]
    columns["configuration"] = every["architecture"].str[:12]
    stated: Json = {}
    for name, values in columns.items():
        stated[name] = " and ".join(sorted(set(map(str, values.dropna())))) or None
    stated |= settings_of(run, checkpoint, task)
    for name in _NOT_SETTINGS:
        stated.pop(name, None)
    stated["scoring"] = " and ".join(scoring_of(run, checkpoint)) or None
    for name, version in mapping_at(provenance, "versions").items():
        stated[f"version of {name}"] = version
    for name in ("device", "processor", "commit", "dirty"):
        stated[name] = provenance.get(name)
    for name, value in mapping_at(run, "identity", "engine").items():
        stated[f"engine {name}"] = value
    return as_texts(stated)


def as_texts(stated: Document) -> dict[str, str]:
    """By `spelled`; None is absent."""
    return {name: spelled(value) for name, value in stated.items() if value is not None}


COLUMNS = (
    *col.TEXT("task", "checkpoint", "checkpoint_b", "measure", "language"),
    *col.COUNT("n", "alone_a", "alone_b", "differing", "only_a", "only_b"),
    Column("flip_rate", col.PERCENTAGE),
    *col.COUNT("other_answer", "other_prompt"),
    *col.AMOUNT("a", "b"),
    Column("difference", col.AMOUNT, interval=True),
    *col.MCNEMAR,
    Column("t_p", col.P_VALUE),
    Column("verdict", col.TEXT),
)
_INNER = ("p", "test", "one_model")  # of rows, while Holm's families are made
_LEVEL = 0.05


@dataclass(frozen=True, eq=False)
class Compared:
    """`frame` has COLUMNS. `differences`: by checkpoint and task, setting -> both
    sides' values. `notes`: remarks."""

    frame: pd.DataFrame
    differences: Mapping[tuple[str, str], Mapping[str, tuple[str, str]]]
    notes: Sequence[str] = ()

    @property
    def stated(self) -> list[Row]:
        """`differences` as JSON: a row for each checkpoint and task."""
        rows: list[Row] = []
        for (checkpoint, task), settings in self.differences.items():
            both = {name: list(values) for name, values in settings.items()}
            rows.append({"checkpoint": checkpoint, "task": task, "settings": both})
        return rows

    @property
    def moved(self) -> pd.DataFrame:
        return self.frame[self.frame["verdict"] == "moved"]


def compare(
    a: Side,
    b: Side,
    pairs: Mapping[str, str] | None = None,
    task_pairs: Mapping[str, str] | None = None,
) -> Compared:
    """Compare the named pairs, else equal names or the only one of each side. Raises
    InputError if nothing pairs."""
    rows: list[Row] = []
    differences, notes = {}, [*a.notes, *b.notes]
    for paired in paired_tasks(a, b, pairs, task_pairs):
        left, right, strange = _finite(paired.left, paired.right)
        notes += paired.notes + [f"{paired.task}: {remark}" for remark in strange]
        key = paired.checkpoint, paired.task
        subject = {
            "task": paired.task,
            "checkpoint": paired.checkpoint,
            "checkpoint_b": paired.checkpoint_b,
            "one_model": paired.one_model,
        }
        for row in _rows(left, right, alike=a.prompts == b.prompts):
            rows.append(subject | row)
            differences[key] = paired.differences
    if not rows:
        measures = "; ".join(", ".join(side.names("measure")) for side in (a, b))
        remarks = "".join(f"; {note}" for note in dict.fromkeys(notes))
        raise InputError(
            f"{a.name} and {b.name}: no item in common: items pair by language and by"
            f" content or id, of measures of one name ({measures}){remarks}"
        )
    _correct(rows)
    for row in rows:
        row["verdict"] = _verdict(row)
        for name in _INNER:
            del row[name]
        if row["checkpoint"] in a.rounded or row["checkpoint_b"] in b.rounded:
            notes.append(f"{row['checkpoint']}: {ROUNDED}")
    return Compared(typed_frame(COLUMNS, rows), differences, [*dict.fromkeys(notes)])


@dataclass(frozen=True, eq=False, kw_only=True)
class PairedTask:
    """The answers of both sides to one task: where `item_id` is equal, they answer the
    same. `differences`: of settings and data."""

    task: str
    checkpoint: str
    task_b: str
    checkpoint_b: str
    left: pd.DataFrame
    right: pd.DataFrame
    differences: Mapping[str, tuple[str, str]]
    notes: list[str]
    one_model: bool


def paired_tasks(
    a: Side,
    b: Side,
    pairs: Mapping[str, str] | None = None,
    task_pairs: Mapping[str, str] | None = None,
) -> Iterator[PairedTask]:
    """The named pairs, else those of equal names or the only one of each side. Raises
    InputError if there are none."""
    checkpoints = _paired(
        a, b, "checkpoint", pairs, "--pair A=B (Python: pairs={A: B})"
    )
    tasks = _paired(
        a, b, "task", task_pairs, "--pair-task A=B (Python: task_pairs={A: B})"
    )
    for (name, other), (task, other_task) in product(
        checkpoints.items(), tasks.items()
    ):
        left, right = _with_languages(
            a.answers_of(name, task), b.answers_of(other, other_task)
        )
        right, data, unpaired = by_content(left, right, a.name, b.name)
        if a.prompts != b.prompts:  # a run and a log
            left, right = _as_in_run(left, right), _as_in_run(right, left)
        left, right = _with_plain_names(left, right), _with_plain_names(right, left)
        for side, has, lacks in ((a, left, right), (b, right, left)):
            if alone := sorted({*has["measure"]} - {*lacks["measure"]}):
                unpaired.append(f"only {side.name} has {', '.join(alone)}")
        ours = a.settings.get((name, task), {})
        theirs = b.settings.get((other, other_task), {})
        changed = stated_differences(ours, theirs)
        yield PairedTask(
            task=task,
            checkpoint=name,
            task_b=other_task,
            checkpoint_b=other,
            left=left,
            right=right,
            differences=changed | data,
            notes=[f"{task}: {remark}" for remark in unpaired],
            one_model=not changed and "weights" in ours.keys() & theirs.keys(),
        )


def stated_differences(
    ours: Mapping[str, str], theirs: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """The settings that both sides state, and state differently."""
    changed = {}
    for name in sorted(ours.keys() & theirs.keys()):
        if ours[name] != theirs[name]:
            changed[name] = ours[name], theirs[name]
    return changed


def _verdict(row: Row) -> str:
    if row["differing"] == 0:
        return "same"
    p = row["p"] if row["one_model"] else row["holm_p"]
    return "moved" if p is not None and p < _LEVEL else "noise"  # NaN is not below


def _correct(rows: Sequence[Row]) -> None:
    """Add the Holm p to the rows that can differ."""
    pooled: dict[tuple[Any, ...], Row] = {}
    apart: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        row["p"] = row.get("mcnemar_p", row.get("t_p"))
        if row["measure"] == row["test"] and not row["one_model"]:
            family = pooled if row["language"] is ALL else apart
            family[_test_of(row)] = row
    correct_for_many([*pooled.values()], (), "p")
    correct_for_many([*apart.values()], ("task", "checkpoint", "test"), "p")
    for row in rows:
        tested = (pooled | apart).get(_test_of(row), row)
        row["holm_p"] = tested.get("holm_p", np.nan)


def _test_of(row: Row) -> tuple[Any, ...]:
    return row["task"], row["checkpoint"], row["test"], row["language"]


def _paired(
    a: Side, b: Side, what: str, pairs: Mapping[str, str] | None, option: str
) -> dict[str, str]:
    """The compared checkpoints or tasks: side a's name -> side b's."""
    ours, theirs = a.names(what), b.names(what)
    paired = dict(pairs or {name: name for name in ours if name in theirs})
    if not paired and len(ours) == len(theirs) == 1:
        paired = {ours[0]: theirs[0]}
    for side, names, wanted in ((a, ours, paired), (b, theirs, paired.values())):
        unknown = sorted({*wanted} - {*names})
        if unknown:
            raise InputError(
                f"{side.name}: no {what} {unknown[0]!r} (there are: {', '.join(names)})"
                f"{nearest(unknown[0], names)}"
            )
    if not paired:
        known = f"{', '.join(ours) or 'none'}; {', '.join(theirs) or 'none'}"
        raise InputError(
            f"{a.name} and {b.name}: no {what}s in common ({known}); name pairs with"
            f" {option}"
        )
    return paired


def _rows(left: pd.DataFrame, right: pd.DataFrame, *, alike: bool) -> Iterator[Row]:
    """The rows of one checkpoint and task. `alike`: both sides have the same kind of
    prompts and answers."""
    both = left.merge(right, on=KEY, suffixes=("_a", "_b"))
    tests: dict[str, pd.DataFrame] = {}
    for measure, of_measure in both.groupby("measure", sort=False):
        languages = sorted(of_measure["language"].unique())
        items = of_measure.sort_values(["language", "item_id"], ignore_index=True)
        # Use the side with contexts: lm-eval's documents have none.
        clusters = min(
            items["cluster_a"], items["cluster_b"], key=lambda side: side.nunique()
        )
        items["context"] = pd.factorize(clusters)[0]
        items = items.astype({"value_a": float, "value_b": float})
        values = items[["language", "item_id", "value_a", "value_b"]]
        same = (test for test, other in tests.items() if other.equals(values))
        test = next(same, str(measure))
        tests.setdefault(test, values)
        for language in (ALL, *(languages if len(languages) > 1 else ())):
            part = in_language(items, language)
            row: Row = {"measure": measure, "test": test, "language": language}
            row["n"] = len(part)
            for name, side in (("alone_a", left), ("alone_b", right)):
                due = in_language(side[side["measure"] == measure], language)
                row[name] = len(due) - len(part)
            yield row | _moved(part, alike=alike)


def _with_languages(
    left: pd.DataFrame, right: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both sides, without languages if one of them does not know any. Raises
    InputError if ids repeat then."""
    if (left["language"] == "").all() == (right["language"] == "").all():
        return left, right
    left, right = left.assign(language=""), right.assign(language="")
    if left.duplicated(KEY).any() or right.duplicated(KEY).any():
        raise InputError(
            "items of several languages have one id, and one side does not name"
            " languages: compare a run of one language"
        )
    return left, right


def _as_in_run(side: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """A log's measures under a run's names, where neither side has both."""
    names, others = set(side["measure"]), set(other["measure"])
    renamed = {}
    for name in names - others:
        metric, comma, filtered = name.partition(",")
        measure = _AS_IN_RUN.get(metric, metric)
        if measure not in names:
            renamed[name] = measure + comma + filtered
    return side.replace({"measure": renamed}) if renamed else side


def _with_plain_names(side: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Measures without their filter ("exact_match,remove_whitespace"), if the other
    side names them so."""
    names, others = set(side["measure"]), set(other["measure"])
    plain = {}
    for metric in others - names:
        filtered = [name for name in names - others if name.startswith(f"{metric},")]
        if len(filtered) == 1:
            plain[filtered[0]] = metric
    return side.replace({"measure": plain}) if plain else side


def _finite(
    left: pd.DataFrame, right: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Both sides without the items whose value is infinite or no number in one of
    them; a remark for each measure."""
    every = pd.concat([left, right])
    strange = every[~np.isfinite(every["value"].astype(float))]
    remarks = []
    for measure, rows in strange.groupby("measure", sort=False):
        first = rows.iloc[0]
        count = len(rows.drop_duplicates(KEY))
        remarks.append(
            f"{measure} left out ({count}): it is {first['value']} for"
            f" {first['item_id']}"
        )
    gone = pd.MultiIndex.from_frame(strange[KEY])
    left = left[~pd.MultiIndex.from_frame(left[KEY]).isin(gone)]
    right = right[~pd.MultiIndex.from_frame(right[KEY]).isin(gone)]
    return left, right, remarks


def _moved(items: pd.DataFrame, *, alike: bool) -> Row:
    a, b = as_floats(items["value_a"]), as_floats(items["value_b"])
    contexts = items["context"].to_numpy(np.intp)
    row: Row = {"a": float(a.mean()), "b": float(b.mean())}
    if np.isin([a, b], (0.0, 1.0)).all():
        row |= difference("difference", b - a, contexts)
        only_a, only_b = int((a > b).sum()), int((b > a).sum())
        row |= {"only_a": only_a, "only_b": only_b}
        if items.loc[items["digest_a"] != "", "digest_a"].duplicated().any():
            row["t_p"] = Unbounded.ratio(b - a, np.ones(len(items)), contexts).p
        else:
            row["mcnemar_p"] = mcnemar_p(a, b)
        row["differing"] = only_a + only_b
        row["flip_rate"] = row["differing"] / len(items)
        known = items["said_a"].notna() & items["said_b"].notna()
        if alike and known.any():
            other = known & (items["said_a"] != items["said_b"])
            row["other_answer"] = int((other & (a + b == 0)).sum())
    else:
        mean = Unbounded.ratio(b - a, np.ones(len(items)), contexts)
        row |= {"difference": mean.value, **bounds("difference", mean.interval())}
        row |= {"differing": int((a != b).sum()), "t_p": mean.p}
    row.pop(f"difference{WHY}", None)
    if alike:
        row["other_prompt"] = 0
        for one, other in zip(items["prompt_a"], items["prompt_b"], strict=True):
            if not (one.startswith(other) or other.startswith(one)):
                row["other_prompt"] += 1
    return row
