"""Compares two sides on their common items: which scores moved by more than noise.

A side has a row for each scored answer, and the settings behind it. It comes from a
run's outcomes or from lm-eval's logs. Both use the same names of measures. `open`:
the greedy answer contains a gold answer. `choice`: the gold option scored highest.
`exact_match` has one name everywhere.

Items pair by what was asked (`pairing.py`).

A score moved if its paired test is significant after Holm's correction: McNemar's
exact test for scores of 0 or 1, for other numbers a paired t-test that is robust to
shared contexts. `same`: no item differs. `noise`: some items differ, but no more
than by chance.

Holm's correction has one family for all rows pooled over languages. The single
languages form one family for each task, checkpoint and measure. A family contains
only comparisons that can differ, whatever the results:

- The same weights under the same settings are one model. Its rows have no Holm p;
  the uncorrected p decides.
- Measures with equal values on every item of both sides are one test, which counts
  once. Example: `exact_match` and `open`, if each answer with a gold answer equals
  that gold answer."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd

import evaluator.metrics.columns as col
from evaluator.core.errors import InputError, mapping_at
from evaluator.core.records import SERVING
from evaluator.deciding.pairing import HASH, by_content
from evaluator.metrics.columns import Column, Row, typed_frame
from evaluator.metrics.inputs import (
    ALL,
    ROUNDED,
    Inputs,
    rounded_activations,
    scoring_of,
    settings_of,
    slices,
)
from evaluator.metrics.intervals import mcnemar_p
from evaluator.metrics.measures import (
    WHY,
    Unbounded,
    as_floats,
    bounds,
    correct_for_many,
    difference,
)
from evaluator.store.lm_eval import UNFILTERED, Logged, Sample

ANSWERS = (
    "checkpoint",
    "task",
    "measure",
    "language",
    "item_id",
    "value",
    "said",
    "prompt",
    "cluster",
    "digest",
)
_NAMES = {"contains": "open", "acc": "choice"}  # lm-eval's metrics -> our measures
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
    rounded: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def side_of_run(inputs: Inputs, name: str) -> Side:
    """A run's answers to open prompts, with the run's own seed."""
    parts, settings = [], {}
    for subject in inputs.checkpoints:
        outcomes = inputs.outcomes_of(subject.checkpoint, subject.task)
        settings[subject.checkpoint, subject.task] = _settings(
            inputs, subject.checkpoint, subject.task, outcomes
        )
        for measure, (column, said, probe) in _MEASURES.items():
            done = outcomes[outcomes[column].notna()]
            if done.empty or (probe == "greedy" and done["greedy_status"].isna().all()):
                continue
            part = done[["language", "item_id"]].assign(
                checkpoint=subject.checkpoint,
                task=subject.task,
                measure=measure,
                value=done[column],
            )
            part["said"] = np.nan if said is None else done[said]
            length = done["greedy_prompt_tokens"].map(
                lambda tokens: "" if pd.isna(tokens) else f"{tokens:g}:"
            )
            # older records have the length alone
            part["prompt"] = length + done["greedy_prompt_digest"].fillna("")
            if measure == "choice":
                part["prompt"] = (
                    done["options_digest"].astype(str) + ":" + part["prompt"]
                )
            part["cluster"] = done["context"]
            digests = inputs.asked(subject.task)["digest"].to_numpy(object)
            part["digest"] = digests[done["item"].to_numpy(np.intp)]
            parts.append(part)
    answers = (
        pd.concat(parts, ignore_index=True)
        if parts
        else pd.DataFrame(columns=list(ANSWERS))
    )
    rounded = frozenset(
        each.checkpoint
        for each in inputs.checkpoints
        if rounded_activations(each.pattern)
    )
    return Side(name, answers[list(ANSWERS)], settings, "tokens of the prompt", rounded)


def _settings(
    inputs: Inputs, checkpoint: str, task: str, outcomes: pd.DataFrame
) -> dict[str, str]:
    """All settings of a run for one checkpoint and task."""
    run, provenance = inputs.run, mapping_at(inputs.run, "provenance")
    columns = {name.replace("_", " "): outcomes[name] for name in SERVING}
    columns["kv cache"] = inputs.all_outcomes_of(checkpoint, task)["kv_cache"]
    for name, digest in (
        ("weights", "weights_digest"),
        ("configuration", "architecture"),
    ):
        columns[name] = inputs.all_outcomes_of(checkpoint, task)[digest].str[:12]
    found: dict[str, Any] = {
        name: " and ".join(sorted({str(value) for value in values.dropna()})) or None
        for name, values in columns.items()
    }
    found |= {
        name: each
        for name, each in settings_of(run, checkpoint, task).items()
        if name not in _NOT_SETTINGS
    }
    found["scoring"] = " and ".join(scoring_of(run, checkpoint)) or None
    found |= {
        f"version of {name}": value
        for name, value in mapping_at(provenance, "versions").items()
    }
    found |= {
        name: provenance.get(name)
        for name in ("device", "processor", "commit", "dirty")
    }
    found |= {
        f"engine {name}": value
        for name, value in mapping_at(run, "identity", "engine").items()
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def side_of_logged(logged: Sequence[Logged], name: str) -> Side:
    """The answers in lm-eval's logs. A document with an `id`, like those that a run
    exports, keeps it as its item.

    Raises InputError if no metric is a number."""
    rows: list[dict[str, Any]] = []
    settings: dict[tuple[str, str], Mapping[str, str]] = {}
    for model in logged:
        for task, samples in model.samples.items():
            found = list(_scored_rows(model.model, samples))
            rows += found
            for own_task in dict.fromkeys(row["task"] for row in found):
                settings[model.model, own_task] = _lm_eval_settings(model.results, task)
    if not rows:
        raise InputError(f"{name}: no sample has a metric that is a number")
    notes = tuple(
        f"{file}: not read: there is a newer log of its task"
        for model in logged
        for file in model.older
    )
    return Side(
        name,
        pd.DataFrame(rows, columns=list(ANSWERS)),
        settings,
        "prompt_hash",
        notes=notes,
    )


def _scored_rows(model: str, samples: Sequence[Sample]) -> Iterator[dict[str, Any]]:
    samples = sorted(samples, key=lambda sample: sample.doc_id)
    both = list(
        zip(
            samples,
            [str(each.doc.get("language") or "") for each in samples],
            strict=True,
        )
    )
    names = Counter(
        (each.filter, language, str(each.doc.get("id"))) for each, language in both
    )
    unique = max(names.values(), default=1) == 1
    seen: Counter[tuple[str, str, str]] = Counter()
    for sample, language in both:
        doc = sample.doc
        item_id = str(doc["id"]) if unique and "id" in doc else f"doc {sample.doc_id}"
        place = (sample.filter, language, item_id)
        seen[place] += 1
        if seen[place] > 1:  # of two engines that each count from 0
            item_id += f"#{seen[place]}"
        for metric, value in sample.scores.items():
            yield {
                "checkpoint": model,
                # the run that exported the document
                "task": str(doc.get("resurface_task", sample.task)),
                "measure": _NAMES.get(metric, metric)
                + ("" if sample.filter == UNFILTERED else f",{sample.filter}"),
                "language": language,
                "item_id": item_id,
                "value": value,
                "said": float(crc32(sample.answer.encode())),
                "prompt": sample.prompt_hash,
                "cluster": str(doc.get("cluster") or item_id),
                "digest": str(doc.get("digest") or f"{HASH}{sample.doc_hash}"),
            }


def _lm_eval_settings(results: Mapping[str, Any], task: str) -> dict[str, str]:
    config = results.get("config")
    found: dict[str, Any] = dict(config) if isinstance(config, Mapping) else {}
    for name in (
        "lm_eval_version",
        "transformers_version",
        "git_hash",
        "chat_template_sha",
        "system_instruction_sha",
    ):
        found[name] = results.get(name)
    for name in ("versions", "n-shot"):
        of_tasks = results.get(name)
        found[name] = of_tasks.get(task) if isinstance(of_tasks, Mapping) else None
    return {
        name: str(value)
        for name, value in found.items()
        if value is not None and value != []
    }


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
_KEY = ["measure", "language", "item_id"]
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
        return [
            {
                "checkpoint": name,
                "task": task,
                "settings": {each: list(values) for each, values in settings.items()},
            }
            for (name, task), settings in self.differences.items()
        ]

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
    names = _paired(a, b, "checkpoint", pairs, "--pair")
    tasks = _paired(a, b, "task", task_pairs, "--pair-task")
    rows: list[Row] = []
    notes = dict.fromkeys([*a.notes, *b.notes])  # each once
    differences = {}
    for (name, other), (task, other_task) in product(names.items(), tasks.items()):
        left = a.answers[
            (a.answers["checkpoint"] == name) & (a.answers["task"] == task)
        ]
        right = b.answers[
            (b.answers["checkpoint"] == other) & (b.answers["task"] == other_task)
        ]
        left, right = _with_languages(left, right)
        right, data, unpaired = by_content(left, right, a.name, b.name)
        left, right = _with_plain_names(left, right), _with_plain_names(right, left)
        left, right, strange = _finite(left, right)
        notes |= {f"{task}: {each}": None for each in (*unpaired, *strange)}
        found = list(_rows(left, right, alike=a.prompts == b.prompts))
        if found:
            # A setting that a side does not state is left out.
            ours, theirs = (
                a.settings.get((name, task), {}),
                b.settings.get((other, other_task), {}),
            )
            both = sorted(ours.keys() & theirs.keys())
            differences[name, task] = {
                each: (ours[each], theirs[each])
                for each in both
                if ours[each] != theirs[each]
            }
            one_model = "weights" in both and not differences[name, task]
            differences[name, task] |= data
            subject = {
                "task": task,
                "checkpoint": name,
                "checkpoint_b": other,
                "one_model": one_model,
            }
            rows += [subject | row for row in found]
    if not rows:
        measures = "; ".join(
            ", ".join(sorted(side.answers["measure"].unique())) for side in (a, b)
        )
        raise InputError(
            f"{a.name} and {b.name}: no item in common: items pair by language and by"
            " content or id, of measures of one name"
            f" ({measures}){''.join(f'; {note}' for note in notes)}"
        )
    _correct(rows)
    for row in rows:
        p = row["p"] if row["one_model"] else row["holm_p"]
        moved = p is not None and p < _LEVEL  # NaN is not below
        row["verdict"] = (
            "same" if row["differing"] == 0 else "moved" if moved else "noise"
        )
        for name in _INNER:
            del row[name]
    rounded = [
        f"{name}: {ROUNDED}"
        for name, other in names.items()
        if name in a.rounded or other in b.rounded
    ]
    return Compared(typed_frame(COLUMNS, rows), differences, [*notes, *rounded])


def _correct(rows: Sequence[Row]) -> None:
    """Add the Holm p to the rows that can differ."""
    places = [
        tuple(row[name] for name in ("task", "checkpoint", "test", "language"))
        for row in rows
    ]
    tested = {}
    for place, row in zip(places, rows, strict=True):
        row["p"] = row.get("mcnemar_p", row.get("t_p"))
        if row["measure"] == row["test"] and not row["one_model"]:
            tested[place] = row
    pooled, apart = (
        [row for row in tested.values() if (row["language"] == ALL) is whole]
        for whole in (True, False)
    )
    correct_for_many(pooled, (), "p")
    correct_for_many(apart, ("task", "checkpoint", "test"), "p")
    for place, row in zip(places, rows, strict=True):
        row["holm_p"] = tested.get(place, row).get("holm_p", np.nan)


def _paired(
    a: Side, b: Side, what: str, pairs: Mapping[str, str] | None, option: str
) -> dict[str, str]:
    """The compared checkpoints or tasks: side a's name -> side b's."""
    ours, theirs = (sorted(side.answers[what].unique()) for side in (a, b))
    found = dict(pairs) if pairs else {name: name for name in ours if name in theirs}
    if not found and len(ours) == len(theirs) == 1:
        found = {ours[0]: theirs[0]}
    for side, there, wanted in ((a, ours, found), (b, theirs, found.values())):
        if unknown := sorted(set(wanted) - {*there}):
            raise InputError(
                f"{side.name}: no {what} {unknown[0]!r} (there are: {', '.join(there)})"
            )
    if not found:
        known = "; ".join(", ".join(names) or "none" for names in (ours, theirs))
        raise InputError(
            f"{a.name} and {b.name}: no {what}s in common ({known}); name pairs with"
            f" {option} A=B"
        )
    return found


def _rows(left: pd.DataFrame, right: pd.DataFrame, *, alike: bool) -> Iterator[Row]:
    """The rows of one checkpoint and task. `alike`: both sides have the same kind of
    prompts and answers."""
    both = left.merge(right, on=_KEY, suffixes=("_a", "_b"))
    tests: dict[str, pd.DataFrame] = {}
    for measure, here in both.groupby("measure", sort=False):
        languages = sorted(here["language"].unique())
        items = here.sort_values(["language", "item_id"], ignore_index=True)
        # Use the side with contexts: lm-eval's documents have none.
        clusters = min(
            (items[f"cluster_{side}"] for side in "ab"), key=lambda each: each.nunique()
        )
        items["context"] = pd.factorize(clusters)[0]
        values = items[["language", "item_id", "value_a", "value_b"]].astype(
            {"value_a": float, "value_b": float}
        )
        test = next(
            (name for name, each in tests.items() if each.equals(values)), str(measure)
        )
        tests.setdefault(test, values)
        for language, part in slices(items, languages if len(languages) > 1 else []):
            row: Row = {
                "measure": measure,
                "test": test,
                "language": language,
                "n": len(part),
            }
            for side, every in (("a", left), ("b", right)):
                own = every.loc[every["measure"] == measure, "language"]
                row[f"alone_{side}"] = (
                    len(own) if language == ALL else int((own == language).sum())
                ) - len(part)
            yield row | _moved(part, alike=alike)


def _with_languages(
    left: pd.DataFrame, right: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both sides, without languages if one of them does not know any. Raises
    InputError if ids repeat then."""
    # one side does not know languages
    if (left["language"] == "").all() != (right["language"] == "").all():
        left, right = left.assign(language=""), right.assign(language="")
        if any(side.duplicated(_KEY).any() for side in (left, right)):
            raise InputError(
                "items of several languages have one id, and one side does not name"
                " languages: compare a run of one language"
            )
    return left, right


def _with_plain_names(own: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Measures without their filter ("exact_match,remove_whitespace"), if the other
    side names them so."""
    names, others = set(own["measure"]), set(other["measure"])
    plain = {
        name: str(name).partition(",")[0] for name in names - others if "," in str(name)
    }
    several = {bare for bare in plain.values() if list(plain.values()).count(bare) > 1}
    found = {
        name: bare for name, bare in plain.items() if bare in others - names - several
    }
    return (
        own.assign(measure=own["measure"].map(lambda name: found.get(name, name)))
        if found
        else own
    )


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
        count = len(rows.drop_duplicates(_KEY))
        remarks.append(
            f"{measure} left out ({count}): it is {first['value']} for"
            f" {first['item_id']}"
        )
    gone = pd.MultiIndex.from_frame(strange[_KEY])
    left, right = (
        side[~pd.MultiIndex.from_frame(side[_KEY]).isin(gone)] for side in (left, right)
    )
    return left, right, remarks


def _moved(items: pd.DataFrame, *, alike: bool) -> Row:
    a, b = as_floats(items["value_a"]), as_floats(items["value_b"])
    contexts = items["context"].to_numpy(np.intp)
    row: Row = {"a": float(a.mean()), "b": float(b.mean())}
    if np.isin(np.concatenate([a, b]), (0.0, 1.0)).all():
        row |= difference("difference", b - a, contexts)
        row |= {
            "only_a": int((a > b).sum()),
            "only_b": int((b > a).sum()),
            "mcnemar_p": mcnemar_p(a, b),
        }
        row["differing"] = row["only_a"] + row["only_b"]
        row["flip_rate"] = row["differing"] / len(items)
        known = items["said_a"].notna() & items["said_b"].notna()
        if alike and known.any():
            wrong = (
                (a + b == 0)
                & known.to_numpy()
                & (items["said_a"] != items["said_b"]).to_numpy()
            )
            row["other_answer"] = int(wrong.sum())
    else:
        mean = Unbounded.ratio(b - a, np.ones(len(items)), contexts)
        row |= {"difference": mean.value, **bounds("difference", mean.interval())}
        row |= {"differing": int((a != b).sum()), "t_p": mean.p}
    row.pop(f"difference{WHY}", None)
    if alike:
        pairs = zip(items["prompt_a"], items["prompt_b"], strict=True)
        row["other_prompt"] = sum(
            not (one.startswith(other) or other.startswith(one)) for one, other in pairs
        )
    return row
