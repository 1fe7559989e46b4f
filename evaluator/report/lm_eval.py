"""Exports a run in lm-eval's format, for programs that read it: `export(run_dir, out)`.

Each checkpoint becomes a model's folder. Each task becomes two: `<task>_open` (greedy
answers to the open prompt) and `<task>_choice` (log-likelihoods of the options). A run
does not store its prompts, so `arguments` and `prompt_hash` use context and question.
Items without a measurement have no sample, but `n-samples` counts them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evaluator.core.errors import InputError, json_text, mapping_at
from evaluator.core.files import part_of_path, write_atomically
from evaluator.metrics.columns import rows_of
from evaluator.probes.reducing import MEASURED, by_its_rule
from evaluator.store.lm_eval import UNFILTERED, doc_hash, hashed, lines
from evaluator.store.reading import read_items, read_records, read_run, record_parts

Json = dict[str, Any]
_METRICS = {"open": ("contains", "exact_match", "f1"), "choice": ("acc", "acc_norm")}
_OUTPUT = {"open": "generate_until", "choice": "multiple_choice"}


@dataclass(frozen=True, kw_only=True)
class _Task:
    """One of lm-eval's tasks: all samples of one checkpoint and task, of one kind."""

    name: str
    kind: str
    samples: Sequence[Json]
    asked: int


def export(run_dir: Path, out: Path, *, now: datetime | None = None) -> list[Path]:
    """Write every checkpoint's results and samples; returns the files. Raises
    InputError for a run without items."""
    items = read_items(run_dir)
    if items is None:
        raise InputError(
            f"{run_dir}: has no items/: without questions there are no documents to"
            " export"
        )
    run = read_run(run_dir)
    time = (now or datetime.now(UTC)).replace(tzinfo=None).isoformat().replace(":", "-")
    docs = {
        (row["task"], row["language"], row["item_id"]): row for row in rows_of(items)
    }
    by_checkpoint: dict[str, list[_Task]] = {}
    origins: dict[str, Mapping[str, Any]] = {}
    for records in map(by_its_rule, map(read_records, record_parts(run_dir))):
        if records.empty:
            continue
        first = records.iloc[0]
        by_checkpoint.setdefault(str(first["checkpoint"]), []).extend(
            _tasks(records, docs)
        )
        origins[str(first["checkpoint"])] = {
            str(name): value for name, value in first.items()
        }
    written = []
    for checkpoint, tasks in by_checkpoint.items():
        folder = out / part_of_path(checkpoint, f"{run_dir / 'records'}: checkpoint")
        for task in tasks:
            written.append(
                folder
                / part_of_path(
                    f"samples_{task.name}_{time}.jsonl", f"{run_dir / 'records'}: task"
                )
            )
            write_atomically(written[-1], lines(task.samples))
        if tasks:
            written.append(folder / f"results_{time}.json")
            results = _results(tasks, origins[checkpoint], run)
            write_atomically(
                written[-1], json_text(results, indent=2, ensure_ascii=False).encode()
            )
    return written


def _tasks(
    records: pd.DataFrame, docs: Mapping[tuple[str, str, str], Mapping[str, Any]]
) -> Iterator[_Task]:
    opened = records[records["format"] == "open"]
    for kind, probe in (("open", "greedy"), ("choice", "choice")):
        asked = opened[opened["probe"] == probe]
        samples = []
        groups = asked.groupby(["task", "language", "item_id"], sort=True)
        for number, (key, own) in enumerate(groups):
            item = docs.get((str(key[0]), str(key[1]), str(key[2])))
            if item is not None and own["status"].isin(MEASURED).all():
                sample = (
                    _open(item, own.iloc[0])
                    if kind == "open"
                    else _choice(item, own.sort_values("index"))
                )
                samples.append({"doc_id": number, **sample})
        if samples:
            yield _Task(
                name=f"{records['task'].iloc[0]}_{kind}",
                kind=kind,
                samples=samples,
                asked=len(groups),
            )


def _open(item: Mapping[str, Any], record: pd.Series) -> Json:
    text = "" if record["text"] is None else str(record["text"])
    scores = {
        "contains": record["contains"],
        "exact_match": record["exact_match"],
        "f1": record["token_f1"],
    }
    arguments = {
        "gen_args_0": {
            "arg_0": _prompt(item),
            "arg_1": {"until": [], "do_sample": False, "temperature": 0.0},
        }
    }
    return _sample(item, str(item["answers"][0]), arguments, [[text]], [text], scores)


def _choice(item: Mapping[str, Any], records: pd.DataFrame) -> Json:
    """One sample of options. Its pairs have "None" for "is greedy": a run does not
    record this."""
    options, logprobs = (
        [str(each) for each in records["option_text"]],
        records["logprob"].astype("float64").tolist(),
    )
    gold = records["is_gold"].astype(bool).tolist()
    arguments = {
        f"gen_args_{number}": {"arg_0": _prompt(item), "arg_1": f" {text}"}
        for number, text in enumerate(options)
    }
    told = [[str(value), "None"] for value in logprobs]
    normed = [
        value / max(len(text), 1) for value, text in zip(logprobs, options, strict=True)
    ]
    scores = {"acc": _wins(logprobs, gold), "acc_norm": _wins(normed, gold)}
    target = str(gold.index(True)) if True in gold else ""
    return _sample(item, target, arguments, [[each] for each in told], told, scores)


def _wins(scores: Sequence[float], gold: Sequence[bool]) -> bool:
    best = max(
        (value for value, is_gold in zip(scores, gold, strict=True) if is_gold),
        default=-math.inf,
    )
    return all(
        value < best for value, is_gold in zip(scores, gold, strict=True) if not is_gold
    )


def _prompt(item: Mapping[str, Any]) -> str:
    return (
        f"{item['context']}\n\n{item['question']}"
        if str(item["context"]).strip()
        else str(item["question"])
    )


def _sample(
    item: Mapping[str, Any],
    target: str,
    arguments: Json,
    responses: list[Any],
    filtered: list[Any],
    scores: Json,
) -> Json:
    measured = {
        name: float(value) for name, value in scores.items() if not pd.isna(value)
    }
    doc = {
        "id": item["item_id"],
        "resurface_task": item["task"],
        **{name: item[name] for name in ("language", "context", "question", "cluster")},
        "answers": [str(each) for each in item["answers"]],
        "digest": item["digest"],
    }
    return {
        "doc": doc,
        "target": target,
        "arguments": arguments,
        "resps": responses,
        "filtered_resps": filtered,
        "filter": UNFILTERED,
        "doc_hash": doc_hash(doc),
        "prompt_hash": hashed(_prompt(item)),
        "target_hash": hashed(target),
        "metrics": list(measured),
        **measured,
    }


def _results(
    tasks: Sequence[_Task], origin: Mapping[str, Any], run: Mapping[str, Any]
) -> Json:
    """The file of aggregated results, which lm-eval's own tables read."""
    names = [task.name for task in tasks]
    provenance = mapping_at(run, "provenance")
    versions = mapping_at(provenance, "versions")
    sampled = {
        task.name: {"original": task.asked, "effective": len(task.samples)}
        for task in tasks
    }
    hashes = ("doc_hash", "prompt_hash", "target_hash")
    return {
        "results": {task.name: _aggregated(task) for task in tasks},
        "group_subtasks": {name: [] for name in names},
        "configs": {
            task.name: {
                "task": task.name,
                "output_type": _OUTPUT[task.kind],
                "num_fewshot": 0,
            }
            for task in tasks
        },
        "versions": dict.fromkeys(names, 0),
        "n-shot": dict.fromkeys(names, 0),
        "higher_is_better": {
            task.name: dict.fromkeys(_METRICS[task.kind], True) for task in tasks
        },
        "n-samples": sampled,
        "config": {
            "model": "resurface",
            "model_args": {
                name: origin[name]
                for name in (
                    "checkpoint",
                    "weights_digest",
                    "engine",
                    "engine_version",
                    "dtype",
                )
            },
            "random_seed": int(origin["seed"]),
            "device": provenance.get("device"),
        },
        "git_hash": provenance.get("commit"),
        "transformers_version": versions.get("transformers"),
        "task_hashes": {
            task.name: hashed(
                "".join(sample[name] for sample in task.samples for name in hashes)
            )
            for task in tasks
        },
        "model_source": "resurface",
        "model_name": origin["checkpoint"],
        "model_name_sanitized": origin["checkpoint"],
    }


def _aggregated(task: _Task) -> Json:
    found: Json = {"alias": task.name}
    for metric in _METRICS[task.kind]:
        values = pd.Series(
            [sample[metric] for sample in task.samples if metric in sample],
            dtype="float64",
        )
        if len(values):
            found[f"{metric},{UNFILTERED}"] = float(values.mean())
            error = (
                np.std(values, ddof=1) / math.sqrt(len(values))
                if len(values) > 1
                else None
            )
            found[f"{metric}_stderr,{UNFILTERED}"] = (
                "N/A" if error is None else float(error)
            )
    return found
