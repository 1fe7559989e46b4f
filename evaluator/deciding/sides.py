"""One side of a comparison: a row for each scored answer, and the settings behind it.

A side comes from a run's outcomes or from lm-eval's logs. Both use the same names of measures. `open`: the greedy
answer contains a gold answer. `choice`: the gold option scored highest. `exact_match` has one name everywhere."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd

from evaluator.core.errors import mapping_at
from evaluator.core.records import SERVING
from evaluator.metrics.inputs import Inputs, rounded_activations, scoring_of, settings_of
from evaluator.store.lm_eval import UNFILTERED, Logged, Sample

ANSWERS = ("checkpoint", "task", "measure", "language", "item_id", "value", "said", "prompt", "cluster")
_NAMES = {"contains": "open", "acc": "choice"}  # lm-eval's metrics -> our measures
# Measure -> the outcome column of its value, the column that identifies the answer (or None), and the probe.
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
    """`answers` has the columns ANSWERS. `value` is a number, mostly 0 or 1. Equal answers have equal `said`, and equal
    prompts equal `prompt`. `settings`: by checkpoint and task."""

    name: str
    answers: pd.DataFrame
    settings: Mapping[tuple[str, str], Mapping[str, str]]
    prompts: str  # the kind of `prompt`; answers and prompts are compared only if both sides have the same kind
    rounded: frozenset[str] = frozenset()  # checkpoints whose activations are known to be quantised


def side_of_run(inputs: Inputs, name: str) -> Side:
    """A run's answers to open prompts, with the run's own seed."""
    parts, settings = [], {}
    for subject in inputs.checkpoints:
        outcomes = inputs.outcomes_of(subject.checkpoint, subject.task)
        settings[subject.checkpoint, subject.task] = _settings(inputs, subject.checkpoint, subject.task, outcomes)
        for measure, (column, said, probe) in _MEASURES.items():
            done = outcomes[outcomes[column].notna()]
            if done.empty or (probe == "greedy" and done["greedy_status"].isna().all()):
                continue
            part = done[["language", "item_id"]].assign(
                checkpoint=subject.checkpoint, task=subject.task, measure=measure, value=done[column]
            )
            part["said"] = np.nan if said is None else done[said]
            part["prompt"] = done["greedy_prompt_tokens"].map(lambda tokens: "" if pd.isna(tokens) else f"{tokens:g}")
            part["cluster"] = inputs.contexts_of(subject.task, done)
            parts.append(part)
    answers = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(ANSWERS))
    rounded = frozenset(each.checkpoint for each in inputs.checkpoints if rounded_activations(each.pattern))
    return Side(name, answers[list(ANSWERS)], settings, "tokens of the prompt", rounded)


def _settings(inputs: Inputs, checkpoint: str, task: str, outcomes: pd.DataFrame) -> dict[str, str]:
    """All settings of a run for one checkpoint and task."""
    run, provenance = inputs.run, mapping_at(inputs.run, "provenance")
    columns = {name.replace("_", " "): outcomes[name] for name in SERVING}
    columns["weights"] = inputs.all_outcomes_of(checkpoint, task)["weights_digest"].str[:12]
    found: dict[str, Any] = {
        name: " and ".join(sorted({str(value) for value in values.dropna()})) or None
        for name, values in columns.items()
    }
    found |= {name: each for name, each in settings_of(run, checkpoint, task).items() if name not in _NOT_SETTINGS}
    found["scoring"] = " and ".join(scoring_of(run, checkpoint)) or None
    found |= {f"version of {name}": value for name, value in mapping_at(provenance, "versions").items()}
    found |= {name: provenance.get(name) for name in ("device", "processor", "commit", "dirty")}
    found |= {f"engine {name}": value for name, value in mapping_at(run, "identity", "engine").items()}
    return {name: str(value) for name, value in found.items() if value is not None}


def side_of_logged(logged: Sequence[Logged], name: str) -> Side:
    """The answers in lm-eval's logs. A document with an `id`, like those that a run exports, keeps it as its item."""
    rows: list[dict[str, Any]] = []
    settings: dict[tuple[str, str], Mapping[str, str]] = {}
    for model in logged:
        for task, samples in model.samples.items():
            found = list(_rows(model.model, samples))
            rows += found
            for own_task in dict.fromkeys(row["task"] for row in found):
                settings[model.model, own_task] = _lm_eval_settings(model.results, task)
    return Side(name, pd.DataFrame(rows, columns=list(ANSWERS)), settings, "prompt_hash")


def _rows(model: str, samples: Sequence[Sample]) -> Iterator[dict[str, Any]]:
    languages = [str(each.doc.get("language") or "") for each in samples]
    both = list(zip(samples, languages, strict=True))
    names = Counter((each.filter, language, str(each.doc.get("id"))) for each, language in both)
    unique = max(names.values(), default=1) == 1
    seen: Counter[tuple[str, str, str]] = Counter()
    for sample, language in both:
        doc = sample.doc
        item_id = str(doc["id"]) if unique and "id" in doc else sample.doc_hash
        place = (sample.filter, language, item_id)
        seen[place] += 1
        if seen[place] > 1:  # equal documents are numbered in their order
            item_id += f"#{seen[place]}"
        for metric, value in sample.scores.items():
            yield {
                "checkpoint": model,
                "task": str(doc.get("resurface_task", sample.task)),  # the run that exported the document
                "measure": _NAMES.get(metric, metric) + ("" if sample.filter == UNFILTERED else f",{sample.filter}"),
                "language": language,
                "item_id": item_id,
                "value": value,
                "said": float(crc32(sample.answer.encode())),
                "prompt": sample.prompt_hash,
                "cluster": str(doc.get("cluster") or item_id),
            }


def _lm_eval_settings(results: Mapping[str, Any], task: str) -> dict[str, str]:
    config = results.get("config")
    found: dict[str, Any] = dict(config) if isinstance(config, Mapping) else {}
    for name in ("lm_eval_version", "transformers_version", "git_hash", "chat_template_sha", "system_instruction_sha"):
        found[name] = results.get(name)
    for name in ("versions", "n-shot"):
        of_tasks = results.get(name)
        found[name] = of_tasks.get(task) if isinstance(of_tasks, Mapping) else None
    return {name: str(value) for name, value in found.items() if value is not None and value != []}
