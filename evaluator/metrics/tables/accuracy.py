"""Accuracy and its drop, by the text that calibrated the pruning too, and where the
gate stopped evaluating.

Table `accuracy`: per checkpoint, task, format, probe and language, with the paired drop
from the base.

Probe `greedy` is right if the output contains a gold answer. Probe `choice` is right if
the gold option has strictly the highest summed log-likelihood. `drop` is dense minus
pruned on the items measured in both; `normalised_drop` divides it by the headroom
(`evaluator.metrics.fates`). Row `mean` is the unweighted mean over languages of
accuracies and drops, each with the interval of that mean.

Table `screening`: at which look the gate stopped evaluating each checkpoint of a
screened sweep.

Table `calibration`: does the text that calibrated the pruning close the gap between
choice and open? Kinds of calibration (paper, section 5), read from the source's name:

    english         `c4`, or Wikipedia or the bundled gazetteer in English alone
    per_language    one of these in one other language
    multilingual    `balanced:...`, Wikipedia in several languages, or the whole
                    `gazetteer`
    other           a file of the user's

If a base has at least two single-language checkpoints of one pruning setting, rows of a
made-up checkpoint `<setting> per language` combine them: each language's items come
from the checkpoint that was calibrated on that language.
"""

import re
from collections.abc import Iterator

import pandas as pd
from msgspec.structs import replace

import evaluator.metrics.columns as col
from evaluator.core.text import code_of
from evaluator.metrics.columns import Column, Row
from evaluator.metrics.exclusions import joined_reasons, measured
from evaluator.metrics.fates import (
    CORRECT,
    floor_of,
    over_headroom,
    paired_drop,
    sides_of,
)
from evaluator.metrics.inputs import (
    MEAN,
    Comparison,
    Inputs,
    Subject,
    in_language,
    slices,
)
from evaluator.metrics.measures import as_floats, difference, language_mean, rate
from evaluator.metrics.sequential_looks import BLOCK_LEVEL, PASS_LEVEL, nominal
from evaluator.metrics.table import Dots, Heat, Holm, Lack, Series, Table, whole_percent
from evaluator.store.outcomes import MEASURED
from evaluator.store.run_json import screened_of

# The columns of rates, and the outcomes that they are of.
_RATES = {
    "greedy": {
        "accuracy": "produced",
        "exact_match": "exact_match",
        "truncation": "truncated",
    },
    "choice": {
        "accuracy": "recognised",
        "per_token": "recognised_per_token",
        "per_byte": "recognised_per_byte",
        "truncation": "truncated",
    },
}
_IDENTITY = (*col.SUBJECT, *col.TEXT("format", "probe"), col.LANGUAGE)
_COUNTED = ("n", "excluded", "engine_error")


def _rows(inputs: Inputs) -> Iterator[Row]:
    for format in inputs.formats:
        for subject in inputs.checkpoints:
            items = inputs.outcomes_of(subject.checkpoint, subject.task, format)
            comparison = inputs.comparisons(format).get(subject.key)
            for probe in CORRECT:
                if items[f"{probe}_status"].notna().any():
                    rows = list(_probe_rows(inputs, subject, comparison, items, probe))
                    yield from (
                        row | {"format": format, "probe": probe} for row in rows
                    )


def _probe_rows(
    inputs: Inputs,
    subject: Subject,
    comparison: Comparison | None,
    items: pd.DataFrame,
    probe: str,
) -> list[Row]:
    """Pooled, the mean over languages, then by language."""
    rows: list[Row] = []
    languages = inputs.languages(subject.task)
    for language, part in slices(items, languages):
        done, counts = measured(part, probe)
        row: Row = {
            **subject.row,
            "language": language,
            **counts,
            "truncated": int(done["truncated"].sum()),
        }
        for name, column in _RATES[probe].items():
            filled = done[done[column].notna()]
            row |= rate(
                name,
                as_floats(filled[column]),
                inputs.contexts_of(subject.task, filled),
            )
        if probe == "greedy" and len(done):
            f1 = done["token_f1"].dropna()
            row["token_f1"] = float(f1.mean()) if len(f1) else None
        if comparison is not None:
            drop = _paired(inputs, comparison, language, probe)
            row |= drop | {"reason": joined_reasons(row["reason"], drop["reason"])}
        rows.append(row)
    done = items[items[f"{probe}_status"].isin(MEASURED)]
    if not done.empty:
        reason = (
            f"unweighted mean over {done['language'].nunique()} of"
            f" {len(languages)} languages"
        )
        counts = {
            name: rows[0].get(name) for name in (*_COUNTED, "truncated", "n_paired")
        }
        mean = {**subject.row, **counts, "language": MEAN, "reason": reason}
        rows.insert(1, mean | _means(inputs, comparison, done, probe, subject.task))
    return rows


def _means(
    inputs: Inputs,
    comparison: Comparison | None,
    done: pd.DataFrame,
    probe: str,
    task: str,
) -> Row:
    """Means over the languages with measured items. The mean drop is over the
    languages with items measured in both."""
    row: Row = {}
    for name, column in _RATES[probe].items():
        filled = done[done[column].notna()]
        row |= language_mean(
            name, as_floats(filled[column]), filled, inputs.contexts_of(task, filled)
        )
    if probe == "greedy":
        row["token_f1"] = float(done.groupby("language")["token_f1"].mean().mean())
    if comparison is not None:
        both = comparison.measured(probe)
        dense, pruned = sides_of(both, CORRECT[probe])
        if not both.empty:
            row["dense_accuracy"] = float(
                pd.Series(dense).groupby(both["language"].to_numpy()).mean().mean()
            )
        row |= language_mean(
            "drop", dense - pruned, both, inputs.contexts_of(task, both), low=-1.0
        )
    return row


def _paired(inputs: Inputs, comparison: Comparison, language: str, probe: str) -> Row:
    """The drop on the items that the probe measured in both checkpoints."""
    items = comparison.measured(probe, language=language)
    row = paired_drop(inputs, comparison, items, CORRECT[probe])
    if items.empty:
        return row
    dense, floor = (
        float(sides_of(items, CORRECT[probe])[0].mean()),
        floor_of(items, probe, "_dense"),
    )
    relative, reason = over_headroom(row["drop"], dense, floor)
    return row | {
        "dense_accuracy": dense,
        "floor": floor,
        "normalised_drop": relative,
        "reason": reason,
    }


_POOLED = (
    Series("accuracy", "greedy", "open: says it", {"probe": "greedy"}),
    Series("accuracy", "choice", "choice: recognises it", {"probe": "choice"}),
)

TABLE = Table(
    name="accuracy",
    title="How much is still right?",
    reading=(
        "Open: the model writes the answer, and its greedy output must contain a gold"
        " answer. Choice: each option is scored by its log-likelihood after the same"
        " prompt, and the gold one must win. If open falls and choice does not, a"
        " multiple-choice benchmark would have noticed nothing. Drops are in percentage"
        " points. Whiskers are 95 % intervals over contexts."
    ),
    needs="the probe greedy or choice on any checkpoint",
    columns=(
        *_IDENTITY,
        *col.COUNT(*_COUNTED, "truncated"),
        *col.PERCENTAGE(
            "accuracy",
            "exact_match",
            "per_token",
            "per_byte",
            "truncation",
            interval=True,
        ),
        Column("token_f1", col.SCORE),
        Column("n_paired", col.COUNT),
        Column("dense_accuracy", col.PERCENTAGE),
        Column("drop", col.POINTS, interval=True),
        *col.MCNEMAR,
        Column("floor", col.SHARE),
        Column("normalised_drop", col.RATIO),
    ),
    compute=_rows,
    figure=(
        Dots(
            "Accuracy, languages pooled",
            _POOLED,
            width=1.15,
            linked=True,
            text=whole_percent,
        ),
        Heat("Open accuracy by language, %", "accuracy", "greedy", {"probe": "greedy"}),
    ),
    plotted=lambda frame: frame[frame["format"] == "open"],
    corrections=(Holm(("task", "format", "probe", "language")),),
    lacks=(
        Lack("probe", "the probe greedy", "greedy"),
        Lack("probe", "the probe choice", "choice"),
        Lack("drop", "a checkpoint with its base (for the drops)"),
    ),
)


def _screening_rows(inputs: Inputs) -> list[Row]:
    """Within a task and base, the checkpoints that stopped early first."""
    return [
        {
            **{
                name: getattr(each, name)
                for name in ("task", "checkpoint", "base", "decision", "asked", "items")
            },
            "look": sum(size <= each.asked for size in each.looks),
            "looks": len(each.looks),
            "pass_level": nominal(PASS_LEVEL, each.looks),
            "block_level": nominal(BLOCK_LEVEL, each.looks),
        }
        for each in sorted(
            screened_of(inputs.run),
            key=lambda each: (each.task, each.base, not each.early),
        )
    ]


SCREENING = Table(
    name="screening",
    title="Decided early: which checkpoints needed only some of the items?",
    reading=(
        "The gate judged a checkpoint's first items, and then more, until it could pass"
        " or block it. Each look has a smaller level than a single look would have, so"
        " the error over all looks is the gate's. A row shows the last look, its"
        " verdict, and the levels of one look: of a pass, and of a block before its"
        " correction for the number of criteria and languages. Every number of a"
        " checkpoint that stopped early describes its first items alone."
    ),
    needs="screen: in the sweep file",
    columns=(
        *col.TEXT("task", "checkpoint", "base", "decision"),
        *col.COUNT("look", "looks", "asked", "items"),
        *col.PERCENTAGE("pass_level", "block_level"),
    ),
    compute=_screening_rows,
    counts="asked",
    silent=True,
)


def _calibration_rows(inputs: Inputs) -> Iterator[Row]:
    """Open and choice accuracy and their gap per calibrated checkpoint: pooled, mean
    over languages, by language."""
    alone: dict[tuple[object, ...], list[Subject]] = {}
    for subject in inputs.checkpoints:
        if subject.base is None or subject.calibration is None:
            continue
        items = inputs.outcomes_of(subject.checkpoint, subject.task)
        yield from _calibrated(inputs, subject, kind_of(subject.calibration), items)
        if _single_language(subject.calibration) is not None:
            setting = (
                subject.task,
                subject.base,
                subject.method,
                subject.pattern,
                subject.requested,
            )
            alone.setdefault(setting, []).append(subject)
    for subjects in alone.values():
        if len(subjects) > 1:
            first, task = subjects[0], subjects[0].task
            by_share = first.pattern in ("unstructured", "layers", "heads", "channels")
            name = (
                f"{first.method}-{first.requested if by_share else first.pattern} per"
                " language"
            )
            # Each language's items from the checkpoint that was calibrated on that
            # language.
            own = {
                _single_language(each.calibration or ""): each.checkpoint
                for each in subjects
            }
            found = [
                in_language(inputs.outcomes_of(own[code_of(language)], task), language)
                for language in inputs.languages(task)
                if code_of(language) in own
            ]
            together = replace(
                first, checkpoint=name, calibration="each language's own"
            )
            items = pd.concat(found) if found else inputs.outcomes_of("", task)
            yield from _calibrated(inputs, together, "per_language", items)


def kind_of(source: str) -> str:
    """The kind of a calibration source, by its name in the records."""
    family = source.partition(":")[0]
    # A file, the data set that a quantised checkpoint names, or both if it was pruned
    # before.
    if " + " in source or family not in ("c4", "wikipedia", "balanced", "gazetteer"):
        return "other"
    language = "en" if family == "c4" else _single_language(source)
    return (
        "multilingual"
        if language is None
        else "english"
        if language == "en"
        else "per_language"
    )


def _single_language(source: str) -> str | None:
    """The code of a source's only language, if the source names one."""
    family, _, languages = source.partition(":")
    named = [code_of(each) for each in re.split(r"[,\s]+", languages.strip()) if each]
    return (
        named[0]
        if family in ("wikipedia", "balanced", "gazetteer") and len(named) == 1
        else None
    )


def _calibrated(
    inputs: Inputs, subject: Subject, kind: str, items: pd.DataFrame
) -> list[Row]:
    rows: list[Row] = []
    languages = inputs.languages(subject.task)
    for language, asked in (*slices(items, languages), (MEAN, items)):
        done, counts = measured(
            asked,
            "greedy",
            "choice",
            nothing="no item was measured with both greedy and choice",
        )
        if language == MEAN:
            counts["reason"] = (
                f"unweighted mean over {done['language'].nunique()} of"
                f" {len(languages)} languages"
            )
        row: Row = {**subject.row, "kind": kind, "language": language, **counts}
        opened, chosen = as_floats(done["produced"]), as_floats(done["recognised"])
        contexts = inputs.contexts_of(subject.task, done)
        for name, values, low in (
            ("open_accuracy", opened, 0.0),
            ("choice_accuracy", chosen, 0.0),
            ("choice_minus_open", chosen - opened, -1.0),
        ):
            if language == MEAN:
                row |= language_mean(name, values, done, contexts, low=low)
            else:
                row |= difference(name, values, contexts, low=low)
        rows.append(row)
    pooled, *by_language, mean = rows
    return [pooled, mean, *by_language] if pooled["n"] else []


_BOTH = (
    Series("open_accuracy", "greedy", "open"),
    Series("choice_accuracy", "choice", "choice"),
)

CALIBRATION = Table(
    name="calibration",
    title="Does calibration close the gap?",
    reading=(
        "Open and choice accuracy of checkpoints that differ in the text used to"
        " calibrate the pruning. If both rise together, the gap between them stays."
    ),
    needs="the probes greedy and choice on a pruned checkpoint that was calibrated",
    columns=(
        *col.SUBJECT,
        Column("kind", col.TEXT),
        col.LANGUAGE,
        *col.COUNT(*_COUNTED),
        *col.PERCENTAGE("open_accuracy", "choice_accuracy", interval=True),
        Column("choice_minus_open", col.POINTS, "choice − open", interval=True),
    ),
    compute=_calibration_rows,
    figure=(
        Dots("Accuracy", _BOTH, width=1.15, linked=True),
        Dots(
            "Gap: choice minus open",
            (
                Series("choice_minus_open", "mc_only", "pooled", shift=-0.12),
                Series(
                    "choice_minus_open",
                    "mc_only",
                    "mean over languages",
                    {"language": MEAN},
                    0.12,
                    True,
                ),
            ),
            "points",
            legend=4,
        ),
    ),
    plotted=lambda rows: rows.assign(
        checkpoint=rows["checkpoint"] + " (" + rows["kind"].str.replace("_", " ") + ")"
    ),
)
