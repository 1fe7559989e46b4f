"""The files of EleutherAI's lm-eval 0.4 (`--log_samples`). Comparisons read them, and a
run can be exported to them.

    DIR/<model>/results_<time>.json                aggregated numbers and their settings
    DIR/<model>/samples_<task>_<time>.jsonl        a line for each document and filter

A line has `doc_id`, `doc`, `target`, `arguments`, `resps`, `filtered_resps`, `filter`,
`metrics` (names), `doc_hash`, `prompt_hash`, `target_hash`, and each metric's value
under its name. Before 0.4.7, it has no `filter` and `metrics`.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.core.errors import InputError, json_text, of_kind, parse, text_field

UNFILTERED = "none"


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
    found: list[Logged] = []
    folders: dict[str, Path] = {}
    for folder in sorted({file.parent for file in _sample_files(path)}):
        if (other := folders.setdefault(folder.name, folder)) is not folder:
            raise InputError(
                f"{path}: model {folder.name!r} was logged in {other} and in {folder}:"
                " name one of them"
            )
        newest: dict[str, Path] = {}
        older = []
        for file in sorted(
            (each for each in _sample_files(path) if each.parent == folder), key=_time
        ):
            # The task is between the first underscore and the last, as in lm-eval
            # itself.
            task = file.stem[file.stem.find("_") + 1 : file.stem.rfind("_")]
            older += [newest[task]] if task in newest else []
            newest[task] = file
        samples = {task: tuple(_samples(file, task)) for task, file in newest.items()}
        results: Mapping[str, Any] = {}
        if files := sorted(folder.glob("results_*.json"), key=_time):
            results = of_kind(
                parse(files[-1].read_bytes(), str(files[-1])), dict, str(files[-1])
            )
        found.append(
            Logged(
                model=folder.name, samples=samples, results=results, older=tuple(older)
            )
        )
    return found


def _sample_files(path: Path) -> list[Path]:
    if path.is_file():
        return (
            [path]
            if path.name.startswith("samples_") and path.suffix == ".jsonl"
            else []
        )
    return sorted(path.glob("**/samples_*.jsonl"))


def _time(file: Path) -> str:
    return file.stem[file.stem.rfind("_") + 1 :]


def _samples(file: Path, task: str) -> Iterator[Sample]:
    unnamed: set[int] = set()  # documents under a filter without a name
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                row, place = parse(line, f"{file}:{number}"), f"{file}:{number}"
                sample = _sample(row, task, place)
                if "filter" not in row and sample.doc_id in unnamed:
                    raise InputError(
                        f"{place}: doc_id {sample.doc_id} again, and no field 'filter':"
                        " lm-eval before 0.4.7 does not name its filters; log the"
                        " samples with a newer one"
                    )
                unnamed |= set() if "filter" in row else {sample.doc_id}
                yield sample


def _sample(row: Any, task: str, place: str) -> Sample:
    # Before 0.4.7, lm-eval did not list the metrics: they are the other fields that are
    # numbers.
    others = [name for name in of_kind(row, dict, place) if name != "doc_id"]
    names = of_kind(row.get("metrics", others), list, f"{place}: field 'metrics'")
    if not isinstance(row.get("doc_id"), int):
        raise InputError(
            f"{place}: field 'doc_id' must be a whole number, not"
            f" {json.dumps(row.get('doc_id'))[:60]}"
        )
    doc = row.get("doc")
    return Sample(
        task=task,
        doc_id=row["doc_id"],
        doc=doc if isinstance(doc, dict) else {"doc": doc},
        filter=str(row.get("filter", UNFILTERED)),
        answer=_answer(row.get("filtered_resps")),
        prompt_hash=str(row.get("prompt_hash", "")),
        doc_hash=text_field(row, "doc_hash", place),
        scores={
            str(name): float(value)
            for name in names
            if isinstance(value := row.get(name), int | float)
        },
    )


def _answer(responses: Any) -> str:
    """The filtered responses as one text; of log-likelihoods the best option, as
    their last digits always differ."""
    if (
        isinstance(responses, list)
        and responses
        and all(map(_is_likelihood, responses))
    ):
        values = [float(each[0]) for each in responses]
        return (
            f"option {values.index(max(values))}"
            if len(values) > 1
            else str(responses[0][1])
        )
    return json.dumps(responses, ensure_ascii=False)


def _is_likelihood(response: Any) -> bool:
    if (
        not isinstance(response, list)
        or len(response) != 2
        or str(response[1]) not in ("True", "False", "None")
    ):
        return False
    try:
        return not math.isnan(float(response[0]))
    except (TypeError, ValueError):
        return False


def hashed(text: str) -> str:
    """lm-eval's hash of a document, a prompt or a target."""
    return hashlib.sha256(text.encode()).hexdigest()


def doc_hash(doc: Mapping[str, Any]) -> str:
    return hashed(json.dumps(doc, indent=2, ensure_ascii=False))


def lines(samples: Iterable[Mapping[str, Any]]) -> bytes:
    """Samples as the content of a JSON Lines file."""
    return "".join(
        json_text(sample, ensure_ascii=False) + "\n" for sample in samples
    ).encode()
