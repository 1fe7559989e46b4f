"""The files of EleutherAI's lm-eval 0.4 (`--log_samples`). Comparisons read them, and a
run can be exported to them.

    DIR/<model>/results_<time>.json                aggregated numbers and their settings
    DIR/<model>/samples_<task>_<time>.jsonl        a line for each document and filter

A line has `doc_id`, `doc`, `target`, `arguments`, `resps`, `filtered_resps`, `filter`,
`metrics` (names), `doc_hash`, `prompt_hash`, `target_hash`, and each metric's value
under its name. Before 0.4.7, it has no `filter` and `metrics`.

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

from evaluator.core.errors import (
    InputError,
    json_text,
    mapping_at,
    of_kind,
    parse,
    text_field,
)
from evaluator.core.files import part_of_path, write_atomically
from evaluator.core.reducing import MEASURED, by_its_rule
from evaluator.store.reading import read_items, read_records, read_run, record_parts

Json = dict[str, Any]
UNFILTERED = "none"
_METRICS = {"open": ("contains", "exact_match", "f1"), "choice": ("acc", "acc_norm")}
_OUTPUT = {"open": "generate_until", "choice": "multiple_choice"}
_HASHES = ("doc_hash", "prompt_hash", "target_hash")
_MODEL = ("checkpoint", "weights_digest", "engine", "engine_version", "dtype")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One document under one filter, as lm-eval logged it."""

    task: str
    doc_id: int
    doc: Mapping[str, Any]
    filter: str
    # the filtered responses as one text; for several log-likelihoods, the best option
    answer: str
    prompt_hash: str
    doc_hash: str
    scores: Mapping[str, float]  # metrics that are numbers


@dataclass(frozen=True, kw_only=True)
class Logged:
    """lm-eval's files about one model: samples by task, and the newest results file
    (empty if there is none)."""

    model: str
    samples: Mapping[str, tuple[Sample, ...]]
    results: Mapping[str, Any]
    older: tuple[Path, ...] = ()  # samples that are not read


def is_logged(path: Path) -> bool:
    """Whether `path` is a `samples_*.jsonl` of lm-eval, or a directory that contains
    some."""
    return bool(_sample_files(path))


def read_logged(path: Path) -> list[Logged]:
    """The newest samples by task and model. Raises InputError if not lm-eval's, or
    for a model in two folders."""
    folders: dict[Path, list[Path]] = {}
    for file in _sample_files(path):
        folders.setdefault(file.parent, []).append(file)
    models: dict[str, Path] = {}
    for folder in sorted(folders):
        other = models.setdefault(folder.name, folder)
        if other != folder:
            raise InputError(
                f"{path}: model {folder.name!r} was logged in {other} and in {folder}:"
                " name one of them"
            )
    return [_logged(folder, folders[folder]) for folder in models.values()]


def _logged(folder: Path, files: Sequence[Path]) -> Logged:
    newest: dict[str, Path] = {}
    older = []
    for file in sorted(files, key=_time):
        # The task is between the first underscore and the last, as in lm-eval itself.
        task = file.stem.partition("_")[2].rpartition("_")[0]
        if task in newest:
            older.append(newest[task])
        newest[task] = file
    samples = {task: tuple(_samples(file, task)) for task, file in newest.items()}
    results: Mapping[str, Any] = {}
    summaries = sorted(folder.glob("results_*.json"), key=_time)
    if summaries:
        name = str(summaries[-1])
        results = of_kind(parse(summaries[-1].read_bytes(), name), dict, name)
    return Logged(
        model=folder.name, samples=samples, results=results, older=tuple(older)
    )


def _sample_files(path: Path) -> list[Path]:
    if not path.is_file():
        return sorted(path.glob("**/samples_*.jsonl"))
    return [path] if path.match("samples_*.jsonl") else []


def _time(file: Path) -> str:
    return file.stem.rpartition("_")[2]


def _samples(file: Path, task: str) -> Iterator[Sample]:
    unnamed: set[int] = set()  # documents under a filter without a name
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{file}:{number}"
            row = parse(line, where)
            sample = _sample_of(row, task, where)
            if "filter" not in row:
                if sample.doc_id in unnamed:
                    raise InputError(
                        f"{where}: doc_id {sample.doc_id} again, and no field 'filter':"
                        " lm-eval before 0.4.7 does not name its filters; log the"
                        " samples with a newer one"
                    )
                unnamed.add(sample.doc_id)
            yield sample


def _sample_of(row: Any, task: str, where: str) -> Sample:
    # Before 0.4.7, lm-eval did not list the metrics: they are the other fields that are
    # numbers.
    others = [name for name in of_kind(row, dict, where) if name != "doc_id"]
    scores = {}
    for name in of_kind(row.get("metrics", others), list, f"{where}: field 'metrics'"):
        value = row.get(name)
        if isinstance(value, int | float):
            scores[str(name)] = float(value)
    doc_id, doc = row.get("doc_id"), row.get("doc")
    if not isinstance(doc_id, int):
        raise InputError(
            f"{where}: field 'doc_id' must be a whole number, not"
            f" {json.dumps(doc_id)[:60]}"
        )
    return Sample(
        task=task,
        doc_id=doc_id,
        doc=doc if isinstance(doc, dict) else {"doc": doc},
        filter=str(row.get("filter", UNFILTERED)),
        answer=_answer(row.get("filtered_resps")),
        prompt_hash=str(row.get("prompt_hash", "")),
        doc_hash=text_field(row, "doc_hash", where),
        scores=scores,
    )


def _answer(responses: Any) -> str:
    """The filtered responses as one text; of log-likelihoods the best option, as
    their last digits always differ."""
    listed = responses if isinstance(responses, list) else []
    if not listed or not all(map(_is_likelihood, listed)):
        return json.dumps(responses, ensure_ascii=False)
    if len(listed) == 1:
        return str(listed[0][1])
    values = [float(value) for value, _ in listed]
    return f"option {values.index(max(values))}"


def _is_likelihood(response: Any) -> bool:
    """Whether a response is [log-likelihood, whether it is the greedy answer]."""
    try:
        value, greedy = response
        return str(greedy) in ("True", "False", "None") and not math.isnan(float(value))
    except (TypeError, ValueError):
        return False


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
    origins = {}
    for part in record_parts(run_dir):
        records = by_its_rule(read_records(part))
        if len(records):
            origin = records.iloc[0]
            name = str(origin["checkpoint"])
            tasks.setdefault(name, []).extend(_tasks(records, documents))
            origins[name] = origin
    time = (now or datetime.now(UTC)).replace(tzinfo=None).isoformat().replace(":", "-")
    run, written = read_run(run_dir), []
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


def _results(
    tasks: Sequence[_ExportedTask], origin: pd.Series, run: Mapping[str, Any]
) -> Json:
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
        "model_name": origin["checkpoint"],
        "model_name_sanitized": origin["checkpoint"],
    }


def _task_hash(task: _ExportedTask) -> str:
    return _hashed("".join(sample[name] for sample in task.samples for name in _HASHES))


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
