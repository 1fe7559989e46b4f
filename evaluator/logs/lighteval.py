"""The details of lighteval from 0.10 on (`--save-details`):

DIR/details/<model>/<time>/details_<task>_<time>.parquet     a row for each document
DIR/results/<model>/results_<time>.json                      its settings"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from evaluator.core.errors import Document, InputError, Json, mapping_at, rows_at
from evaluator.logs.base import (
    LoggedTask,
    Reader,
    Sample,
    content_of,
    digest,
    measured,
    need_one_model,
    newest,
    numbers_of,
    object_in,
    text_or_none,
    time_of,
)

_COLUMNS = ("doc", "metric", "model_response")
_BATCH = 256  # rows
_OF_TASK = (
    "version",
    "num_fewshots",
    "generation_size",
    "stop_sequence",
    "num_samples",
)


class Lighteval(Reader):
    """lm-eval's results have names of the same form, so `lacking` says nothing."""

    program = "lighteval"
    names = "details_*.parquet"

    def read(self, path: Path, files: list[Path]) -> list[LoggedTask]:
        logs: dict[tuple[str, str], list[Path]] = {}
        models: dict[str, dict[Path, Any]] = {}
        for file in files:
            task = file.stem.removeprefix("details_").rpartition("_")[0]
            model = _model(file)
            logs.setdefault((model, task), []).append(file)
            if results := _results(file, model):
                general = mapping_at(results, "config_general")
                stated = [general.get("model_sha"), general.get("model_config")]
                models.setdefault(model, {})[file] = stated
        for each in models.values():
            need_one_model(each)
        tasks = []
        for (model, task), known in logs.items():
            # lighteval logs no time but those of its names
            file, _ = newest(dict.fromkeys(known))
            results = _results(file, model)
            decisive = _decisive(results, task) if results else {}
            directions: Json = {}
            for metric in rows_at(mapping_at(results, "config_tasks", task), "metrics"):
                better = metric.get("higher_is_better")
                if isinstance(better, dict):  # of a group: by the name of each
                    directions |= better
                else:
                    directions[str(metric.get("metric_name"))] = better
            tasks.append(
                LoggedTask(
                    model=model,
                    task=task,
                    samples=_samples(file),
                    settings=_settings(results) | decisive,
                    decisive=decisive,
                    more_is_better=directions,
                )
            )
        return tasks


def _model(file: Path) -> str:
    """The folders between `details` and the time: a name may have several parts."""
    parts = file.parent.parent.parts
    if "details" in parts:
        return "/".join(parts[len(parts) - parts[::-1].index("details") :])
    return parts[-1] if parts else ""


def _results(file: Path, model: str) -> Document:
    """The settings beside the details; empty if they are not there."""
    root = file.parents[len(Path(model).parts) + 2]
    summary = root / "results" / model / f"results_{time_of(file)}.json"
    return object_in(summary) if summary.is_file() else {}


def _settings(results: Document) -> Json:
    general = mapping_at(results, "config_general")
    stated: Json = {"lighteval_sha": general.get("lighteval_sha")}
    stated["max_samples"] = general.get("max_samples")
    for name, value in mapping_at(general, "model_config").items():
        stated[f"model {name}"] = value
    return stated


def _decisive(results: Document, task: str) -> Json:
    stated: Json = {}
    for name in _OF_TASK:
        stated[name] = mapping_at(results, "config_tasks", task).get(name)
    model = mapping_at(results, "config_general", "model_config")
    stated["system_prompt"] = model.get("system_prompt")
    given = mapping_at(model, "generation_parameters").items()
    # newer versions list more of them, without a value
    set_ones = {name: value for name, value in given if value is not None}
    stated["generation_parameters"] = set_ones or None
    return stated


def _samples(file: Path) -> Iterator[Sample]:
    try:
        with pq.ParquetFile(file) as table:
            missing = {*_COLUMNS} - {*table.schema_arrow.names}
            if missing:
                raise InputError(
                    f"{file}: column {min(missing)!r} is missing: not the details of"
                    " lighteval 0.10 or newer"
                )
            number = 0
            for batch in table.iter_batches(_BATCH, columns=list(_COLUMNS)):
                for row in batch.to_pylist():
                    yield _sample_of(row, number)
                    number += 1
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise InputError(f"{file}: cannot be read ({error})") from error


def _sample_of(row: Document, number: int) -> Sample:
    doc, response = mapping_at(row, "doc"), mapping_at(row, "model_response")
    scores, text = response.get("logprobs"), response.get("text")
    scores = [] if scores is None else scores
    options = 0 if text else len(scores)  # of options, text is an empty list
    processed = response.get("text_post_processed")
    answer: Any = text if processed is None else processed
    metrics, others = numbers_of(mapping_at(row, "metric"))
    if options:
        known = [math.nan if score is None else score for score in scores]
        answer = f"option {known.index(max(known))}"
        if not measured(known):
            others = (*others, *(f"{name} of no likelihood" for name in metrics))
            metrics = {}
    asked = [doc.get("query"), doc.get("choices")]
    return Sample(
        number=text_or_none(doc.get("id")) or str(number),
        content=content_of(asked, doc.get("gold_index")),
        answer=digest(answer),
        response=digest([text, scores]),
        scores=metrics,
        others=others,
        prompt=digest(
            [
                response.get("input"),
                doc.get("instruction"),
                processed is None,  # thoughts are a part of the answer
                max(0, response.get("truncated_tokens_count") or 0),
            ]
        ),
        options=options,
    )
