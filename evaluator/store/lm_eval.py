"""A run as the files of EleutherAI's lm-eval 0.4 (`--log_samples`), which
`evaluator/logs/lm_eval.py` describes and reads.

An exported checkpoint becomes a model's folder. Each of its tasks becomes two:
`<task>_open` (greedy answers to the open prompt) and `<task>_choice` (log-likelihoods
of the options). A run does not store its prompts, so `arguments` and `prompt_hash` use
context and question. Items without a measurement have no sample, but `n-samples` counts
them.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evaluator.core.errors import Document, InputError, Json, json_text, mapping_at
from evaluator.core.files import part_of_path, write_atomically
from evaluator.core.reducing import MEASURED, by_its_rule
from evaluator.store.reading import (
    Asked,
    read_items,
    read_records,
    read_run,
    record_parts,
)

UNFILTERED = "none"
_METRICS = {"open": ("contains", "exact_match", "f1"), "choice": ("acc", "acc_norm")}
_OUTPUT = {"open": "generate_until", "choice": "multiple_choice"}
_HASHES = ("doc_hash", "prompt_hash", "target_hash")
_MODEL = ("checkpoint", "weights_digest", "engine", "engine_version", "dtype")


@dataclass(frozen=True, kw_only=True)
class _ExportedTask:
    """One of lm-eval's tasks: all samples of one checkpoint and task, of one kind."""

    name: str
    kind: str
    samples: Sequence[Json]
    items: int

    @property
    def aggregated(self) -> Json:
        numbers: Json = {"alias": self.name}
        for metric in _METRICS[self.kind]:
            found = pd.Series(
                [sample[metric] for sample in self.samples if metric in sample],
                dtype="float64",
            )
            values = found.dropna()
            if len(values):
                error: float | str = "N/A"
                if len(values) > 1:
                    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
                numbers[f"{metric},{UNFILTERED}"] = float(np.mean(values))
                numbers[f"{metric}_stderr,{UNFILTERED}"] = error
        return numbers


def export(run_dir: Path, out: Path, *, now: datetime | None = None) -> list[Path]:
    """Write every checkpoint's results and samples; returns the files. Raises
    InputError for a run without items."""
    items = read_items(run_dir)
    if items is None:
        raise InputError(
            f"{run_dir}: has no items/: without questions there are no documents to"
            " export"
        )
    documents: dict[tuple[str, ...], Any] = {}
    for item in items.to_dict("records"):
        documents[item["task"], item["language"], item["item_id"]] = item
    tasks: dict[str, list[_ExportedTask]] = {}
    run = read_run(run_dir)
    origins, asked = {}, Asked(items, run)
    for part in record_parts(run_dir):
        records = by_its_rule(asked.only(read_records(part)))
        if len(records):
            origin = records.iloc[0]
            name = str(origin["checkpoint"])
            tasks.setdefault(name, []).extend(_tasks(records, documents))
            origins[name] = origin
    time = (now or datetime.now(UTC)).replace(tzinfo=None).isoformat().replace(":", "-")
    if not tasks:
        raise InputError(f"{run_dir}: has no records of questions: nothing to export")
    written = []
    where = run_dir / "records"
    for checkpoint, exported in tasks.items():
        folder = out / part_of_path(checkpoint, f"{where}: checkpoint")
        for task in exported:
            name = f"samples_{task.name}_{time}.jsonl"
            written.append(folder / part_of_path(name, f"{where}: task"))
            lines = [
                json_text(each, ensure_ascii=False) + "\n" for each in task.samples
            ]
            write_atomically(written[-1], "".join(lines).encode())
        if exported:
            written.append(folder / f"results_{time}.json")
            results = _results(exported, origins[checkpoint], run)
            text = json_text(results, indent=2, ensure_ascii=False)
            write_atomically(written[-1], text.encode())
    return written


def _tasks(
    records: pd.DataFrame, documents: Mapping[tuple[str, ...], Json]
) -> Iterator[_ExportedTask]:
    for kind, probe in (("open", "greedy"), ("choice", "choice")):
        probed = records[(records["format"] == "open") & (records["probe"] == probe)]
        groups = probed.groupby(["task", "language", "item_id"], sort=True)
        samples = []
        for number, (key, answers) in enumerate(groups):
            item = documents.get(tuple(map(str, key)))
            if item is not None and answers["status"].isin(MEASURED).all():
                make = _open if kind == "open" else _choice
                sample = make(item, answers.sort_values("index"))
                samples.append({"doc_id": number, **sample})
        if samples:
            yield _ExportedTask(
                name=f"{records['task'].iloc[0]}_{kind}",
                kind=kind,
                samples=samples,
                items=len(groups),
            )


def _open(item: Json, records: pd.DataFrame) -> Json:
    record = records.iloc[0]
    text = str(record["text"] or "")
    settings = {"until": [], "do_sample": False, "temperature": 0.0}
    scores = {
        "contains": record["contains"],
        "exact_match": record["exact_match"],
        "f1": record["token_f1"],
    }
    return _sample(item, str(item["answers"][0]), [settings], [text], scores)


def _choice(item: Json, records: pd.DataFrame) -> Json:
    """One sample of options. Its pairs have "None" for "is greedy": a run does not
    record this."""
    options = [str(text) for text in records["option_text"]]
    logprobs = records["logprob"].to_numpy(float)
    gold = records["is_gold"].to_numpy(bool)
    lengths = [max(len(text), 1) for text in options]
    scores = {"acc": _wins(logprobs, gold), "acc_norm": _wins(logprobs / lengths, gold)}
    target = str(gold.argmax()) if gold.any() else ""
    responses = [[str(value), "None"] for value in logprobs.tolist()]
    return _sample(item, target, [f" {text}" for text in options], responses, scores)


def _wins(scores: Any, gold: Any) -> bool:
    """Whether a gold option scores higher than every other option."""
    best = scores[gold].max(initial=-math.inf)
    return bool((scores[~gold] < best).all())


def _sample(
    item: Json,
    target: str,
    continuations: Sequence[Any],
    responses: Sequence[Any],
    scores: Json,
) -> Json:
    question, context = str(item["question"]), str(item["context"])
    prompt = f"{context}\n\n{question}" if context.strip() else question
    arguments = {}
    for number, continuation in enumerate(continuations):
        arguments[f"gen_args_{number}"] = {"arg_0": prompt, "arg_1": continuation}
    measured = {
        name: float(value) for name, value in scores.items() if not pd.isna(value)
    }
    doc: Json = {"id": item["item_id"], "resurface_task": item["task"]}
    for name in ("language", "context", "question", "cluster"):
        doc[name] = item[name]
    doc["answers"] = [str(answer) for answer in item["answers"]]
    doc["digest"] = item["digest"]
    return {
        "doc": doc,
        "target": target,
        "arguments": arguments,
        "resps": [[response] for response in responses],
        "filtered_resps": responses,
        "filter": UNFILTERED,
        "doc_hash": _hashed(json.dumps(doc, indent=2, ensure_ascii=False)),
        "prompt_hash": _hashed(prompt),
        "target_hash": _hashed(target),
        "metrics": list(measured),
        **measured,
    }


def _results(tasks: Sequence[_ExportedTask], origin: pd.Series, run: Document) -> Json:
    """The file of aggregated results, which lm-eval's own tables read."""
    by_task: dict[str, Json] = {}
    for task in tasks:
        facts = {
            "results": task.aggregated,
            "group_subtasks": [],
            "configs": {
                "task": task.name,
                "output_type": _OUTPUT[task.kind],
                "num_fewshot": 0,
            },
            "versions": 0,
            "n-shot": 0,
            "higher_is_better": dict.fromkeys(_METRICS[task.kind], True),
            "n-samples": {"original": task.items, "effective": len(task.samples)},
        }
        for name, fact in facts.items():
            by_task.setdefault(name, {})[task.name] = fact
    provenance = mapping_at(run, "provenance")
    return {
        **by_task,
        "config": {
            "model": "resurface",
            "model_args": {name: origin[name] for name in _MODEL},
            "random_seed": int(origin["seed"]),
            "device": provenance.get("device"),
        },
        "git_hash": provenance.get("commit"),
        "transformers_version": mapping_at(provenance, "versions").get("transformers"),
        "task_hashes": {task.name: _task_hash(task) for task in tasks},
        "model_source": "resurface",
        # as ORG/NAME, from which other tools learn who made a model
        "model_name": f"local/{origin['checkpoint']}",
        "model_name_sanitized": f"local__{origin['checkpoint']}",
    }


def _task_hash(task: _ExportedTask) -> str:
    return _hashed("".join(sample[name] for sample in task.samples for name in _HASHES))


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
