"""The files of EleutherAI's lm-eval 0.4 (`--log_samples`):

    DIR/<model>/results_<time>.json                aggregated numbers and their settings
                                                   (`--output_path NAME.json`: NAME_<time>)
    DIR/<model>/samples_<task>_<time>.jsonl        a line for each document and filter

A line has `doc_id`, `doc`, `target`, `arguments`, `resps`, `filtered_resps`, `filter`,
`metrics` (names), `doc_hash`, `prompt_hash`, `target_hash`, and each metric's value
under its name. Before 0.4.7, it has no `filter` and `metrics`: a document then has a
line for each filter, in the order in which the results file lists them."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evaluator.core.errors import (
    Document,
    InputError,
    Json,
    mapping_at,
    of_kind,
    rows_at,
    strings,
    text_field,
)
from evaluator.logs.base import (
    LOGGED,
    UNFILTERED,
    LoggedTask,
    Reader,
    Sample,
    below,
    content_of,
    digest,
    instant,
    lines_in,
    measured,
    need_one_model,
    newest,
    numbers_of,
    object_in,
    text_or_none,
    time_of,
)

_OF_MODEL = ("model_args", "model_revision", "model_sha", "peft_sha")
_VERSIONS = ("lm_eval_version", "transformers_version", "git_hash")
_CHAT = ("chat_template_sha", "system_instruction_sha")
# arguments of a model that change its prompts or answers, whatever its weights
_OF_ANSWERS = (
    *("think_end_token", "enable_thinking", "chat_template_args"),
    *("add_bos_token", "prefix_token_id", "max_gen_toks"),
)
_ARGUMENT = re.compile(r"(\w+)=(\{.*?\}|[^,]*)")
_OF_TASK = ("output_type", "generation_kwargs", "repeats")
# of a sample that are no metric
_FIELDS = (
    *("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter"),
    *("doc_hash", "prompt_hash", "target_hash"),
)


class LmEval(Reader):
    program = "lm-eval"
    names = "samples_*.jsonl"

    def lacking(self, path: Path) -> str:
        results = path.match("results_*.json") or any(path.glob("**/results_*.json"))
        return "results without samples: repeat lm-eval with --log_samples" * results

    def read(self, path: Path, files: list[Path]) -> list[LoggedTask]:
        """Raises InputError for a model in two folders."""
        folders: dict[Path, list[Path]] = {}
        for file in files:
            folders.setdefault(file.parent, []).append(file)
        models: dict[str, Path] = {}
        tasks: list[LoggedTask] = []
        for folder, logs in folders.items():
            other = models.setdefault(folder.name, folder)
            if other != folder:
                raise InputError(
                    f"{path}: model {folder.name!r} was logged in {other} and in"
                    f" {folder}: name one of them"
                )
            tasks += _tasks(folder, logs)
        return tasks


def _tasks(folder: Path, files: Sequence[Path]) -> Iterator[LoggedTask]:
    results = {file: _results(folder, file) for file in files}
    need_one_model({file: _model(told) for file, told in results.items() if told})
    logs: dict[str, list[Path]] = {}
    for file in files:
        # The task is between the first underscore and the last, as in lm-eval itself.
        task = file.stem.partition("_")[2].rpartition("_")[0]
        logs.setdefault(task, []).append(file)
    for task, known in logs.items():
        file, notes = newest(
            {each: instant(results[each].get("date")) for each in known}
        )
        told = results[file]
        if not told:
            notes.append(
                f"{file}: no results file of its time: its settings are unknown"
            )
        decisive = _decisive(told, task) if told else {}
        listed = rows_at(mapping_at(told, "configs", task), "filter_list")
        yield LoggedTask(
            model=folder.name,
            task=task,
            samples=_samples(file, [str(each.get("name")) for each in listed]),
            settings=_settings(told, task) | decisive,
            decisive=decisive,
            more_is_better=mapping_at(told, "higher_is_better", task),
            groups=_groups(told, file),
            notes=tuple(notes),
            documents=mapping_at(told, "n-samples", task).get("effective"),
        )


def _results(folder: Path, file: Path) -> Document:
    """What the results file of a log's time holds; empty without one."""
    ending = f"_{time_of(file)}"
    found = [each for each in folder.glob("*.json") if each.stem.endswith(ending)]
    if len(found) > 1:
        raise InputError(f"{found[0]} and {found[1]}: results of one time: keep one")
    return object_in(found[0]) if found else {}


def _model(results: Document) -> Document:
    config = mapping_at(results, "config")
    stated = {name: config.get(name) for name in _OF_MODEL}
    return {"model_name": results.get("model_name")} | stated


def _groups(results: Document, file: Path) -> dict[str, set[str]]:
    """Raises InputError for one that holds itself in another, or no list of names."""
    where = f"{file}: its results: field 'group_subtasks'"
    stated = results.get("group_subtasks")
    groups: dict[str, set[str]] = {}
    for name, members in of_kind({} if stated is None else stated, dict, where).items():
        groups[name] = {*strings(members, f"{where}: {name!r}")} - {name}
    for name in groups:
        if name in below(groups, name):
            raise InputError(f"{where}: group {name!r} holds itself")
    return groups


def _settings(results: Document, task: str) -> Json:
    stated = dict(mapping_at(results, "config"))
    for name in _VERSIONS:
        stated[name] = results.get(name)
    stated["task_hash"] = mapping_at(results, "task_hashes").get(task)
    return {name: value for name, value in stated.items() if value != []}


def _decisive(results: Document, task: str) -> Json:
    stated: Json = {name: results.get(name) for name in _CHAT}
    stated["versions"] = mapping_at(results, "versions").get(task)
    config = mapping_at(results, "configs", task)
    shots = (mapping_at(results, "n-shot").get(task), config.get("num_fewshot"), 0)
    stated["n-shot"] = next(each for each in shots if each is not None)
    for name in _OF_TASK:
        stated[name] = config.get(name)
    arguments = mapping_at(results, "config").get("model_args")
    if isinstance(arguments, str):
        arguments = dict(_ARGUMENT.findall(arguments))
    for name in _OF_ANSWERS:
        value = mapping_at(arguments).get(name)
        stated[name] = None if value is None else str(value)
    return stated


def _samples(file: Path, filters: Sequence[str]) -> Iterator[Sample]:
    """`filters`: of the task, in the order of their lines; none if unknown."""
    unnamed: Counter[int] = Counter()  # lines of each document that name no filter
    for where, row in lines_in(file):
        document = row.get("doc_id")
        if not isinstance(document, int):
            raise InputError(
                f"{where}: field 'doc_id' must be a whole number, not"
                f" {json.dumps(document)[:60]}"
            )
        name = row.get("filter")
        if name is None:
            name = _nth_filter(filters, unnamed[document], document, where)
            unnamed[document] += 1
        yield _sample_of(row, str(name), where)
    if len(filters) > 1 and set(unnamed.values()) - {len(filters)}:
        raise InputError(
            f"{file}: its lines name no filter, and not every document has one for each"
            f" of {len(filters)} filters: log the samples with lm-eval 0.4.7 or newer"
        )


def _nth_filter(filters: Sequence[str], nth: int, document: int, where: str) -> str:
    """The filter of a document's nth line. Raises InputError if that is unknown."""
    if nth < len(filters):
        return filters[nth]
    if nth == 0:
        return UNFILTERED
    raise InputError(
        f"{where}: doc_id {document} again, and no field 'filter': lm-eval before 0.4.7"
        " does not name its filters, and no results file beside it lists them; log the"
        " samples with a newer one"
    )


def _sample_of(row: Json, name: str, where: str) -> Sample:
    # Before 0.4.7, lm-eval did not list the metrics: they are the other fields that are
    # numbers.
    fields = [each for each in row if each not in _FIELDS]
    metrics = of_kind(row.get("metrics", fields), list, f"{where}: field 'metrics'")
    values = {str(each): row.get(str(each)) for each in metrics}
    scores, others = numbers_of(values)
    doc_hash = text_field(row, "doc_hash", where)
    doc, responses = row.get("doc"), row.get("filtered_resps")
    listed = responses if isinstance(responses, list) else []
    options = len(listed) if all(map(_is_likelihood, listed)) else 0
    likelihoods = [float(each[0]) for each in listed[:options]]
    if options and not measured(likelihoods):
        scores, others = {}, (*others, *(f"{name} of no likelihood" for name in scores))
    told = mapping_at(row, "doc")
    content = f"{LOGGED}{doc_hash}"
    prompt = text_or_none(row.get("prompt_hash")) or ""
    # As it was asked: lm-eval's cache of requests keeps the sampling of an older call.
    sampling = mapping_at(row, "arguments", "gen_args_0", "arg_1")
    if doc is not None:  # newer versions log every target as a text
        content = content_of(doc, str(row.get("target")))
    return Sample(
        number=row["doc_id"],
        content=content,
        answer=_answer(responses, likelihoods),
        response=digest([row.get("resps"), responses]),
        scores=scores,
        others=others,
        filter=name,
        prompt=digest([prompt, sampling]) if prompt and sampling else prompt,
        own_id=text_or_none(told.get("id")),
        cluster=text_or_none(told.get("cluster")),
        language=text_or_none(told.get("language")) or "",
        options=options,
    )


def _answer(responses: Any, likelihoods: list[float]) -> str:
    """The filtered responses as one text; of log-likelihoods the best option, as
    their last digits always differ."""
    if not likelihoods:
        return json.dumps(responses, ensure_ascii=False)
    if len(likelihoods) == 1:
        return str(responses[0][1])
    return f"option {likelihoods.index(max(likelihoods))}"


def _is_likelihood(response: Any) -> bool:
    """Whether a response is [log-likelihood, whether it is the greedy answer]."""
    try:
        value, greedy = response
        float(value)
        return str(greedy) in ("True", "False", "None")
    except (TypeError, ValueError, OverflowError):
        return False
