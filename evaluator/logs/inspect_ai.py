"""The `.eval` files of inspect: a zip of JSON files.

    header.json                         the task, its settings and its aggregated numbers
    samples/<id>_epoch_<number>.json    one answer, with its scores

Since 2026 its files are compressed by Zstandard, which `zipfile` knows from Python 3.14
on."""

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from evaluator.core.errors import (
    Document,
    InputError,
    Json,
    field,
    mapping_at,
    of_kind,
    parse,
    text_field,
)
from evaluator.logs.base import (
    LoggedTask,
    Reader,
    Sample,
    content_of,
    digest,
    numbers_of,
    replaced,
)

_HEADER = "header.json"
_ZSTANDARD = 93  # the compression's number in a zip
_LOCAL = 30  # bytes of a file's own header in a zip, before its name
_MOST = 256 * 2**20  # bytes of one file in it: a larger one is an attack or a mistake
# inspect's letters: correct, incorrect, partially correct, no answer
_LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
_GENERATION = (
    *("temperature", "top_p", "top_k", "seed", "max_tokens"),
    *("stop_seqs", "system_message", "frequency_penalty", "presence_penalty"),
    *("num_choices", "best_of", "logit_bias", "response_schema", "extra_body"),
    *("reasoning_effort", "reasoning_tokens", "reasoning_history", "effort"),
)
_READING = (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError, ValueError)


class Inspect(Reader):
    program = "inspect"
    names = "*.eval"

    def lacking(self, path: Path) -> str:
        if not (path.is_file() and path.suffix == ".json"):
            return ""
        with path.open("rb") as content:
            if b'"eval"' not in content.read(200):
                return ""
        return "inspect's JSON: run `inspect log convert --to eval`"

    def read(self, path: Path, files: list[Path]) -> list[LoggedTask]:
        newest: dict[tuple[str, str], tuple[Path, Document]] = {}
        notes = []
        for file in sorted(files, key=lambda each: each.name):  # begins with its time
            with _opened(file) as archive:
                content = _json(archive, file, _HEADER)
            header = of_kind(content, dict, f"{file}: {_HEADER}")
            stated = field(header, "eval", dict, f"{file}: {_HEADER}")
            model = text_field(stated, "model", str(file))
            key = model, text_field(stated, "task", str(file))
            if key in newest:
                notes.append(replaced(newest[key][0]))
            newest[key] = file, header
        return [_task(*key, *log, notes) for key, log in newest.items()]


def _task(
    model: str, task: str, file: Path, header: Document, notes: list[str]
) -> LoggedTask:
    stated = mapping_at(header, "eval")
    run = mapping_at(stated, "config")
    decisive: Json = {
        "task_version": stated.get("task_version"),
        "task_args": stated.get("task_args") or None,
        "epochs": run.get("epochs"),
    }
    generation = dict(mapping_at(stated, "model_generate_config"))
    generation |= mapping_at(header, "plan", "config")
    for name in _GENERATION:
        decisive[name] = generation.get(name)
    settings: Json = {"limit": run.get("limit")}
    settings["dataset"] = mapping_at(stated, "dataset").get("name")
    settings["solvers"] = mapping_at(header, "plan").get("steps")
    for name, version in mapping_at(stated, "packages").items():
        settings[f"version of {name}"] = version
    told = [*notes]
    if header.get("status") != "success":
        told.append(f"{file}: inspect did not finish it ({header.get('status')})")
    return LoggedTask(
        model=model,
        task=task,
        samples=_samples(file),
        settings=settings | decisive,
        decisive=decisive,
        notes=tuple(told),
    )


def _samples(file: Path) -> Iterator[Sample]:
    with _opened(file) as archive:
        for name in dict.fromkeys(archive.namelist()):
            if name.startswith("samples/") and name.endswith(".json"):
                where = f"{file}: {name}"
                row = of_kind(_json(archive, file, name), dict, where)
                yield _sample_of(row, where)


def _sample_of(row: Json, where: str) -> Sample:
    values: Json = {}
    answers = []
    for name, score in mapping_at(row, "scores").items():
        value = mapping_at(score).get("value")
        answers.append(mapping_at(score).get("answer"))
        for metric, part in value.items() if isinstance(value, dict) else [("", value)]:
            part = _LETTERS.get(part, part) if isinstance(part, str) else part
            values[f"{name},{metric}" if metric else name] = part
    scores, others = numbers_of(values)
    asked, options = _plain(row.get("input")), row.get("choices")
    own, epoch = row.get("id"), row.get("epoch")
    if own is None:
        raise InputError(f"{where}: field 'id' is missing")
    given = mapping_at(row, "output").get("choices")
    return Sample(
        number=f"{own} epoch {epoch}",
        content=content_of([asked, options], row.get("target")),
        answer=digest(answers),
        response=digest(
            _plain([mapping_at(each).get("message") for each in given or []])
        ),
        scores=scores,
        others=others,
        prompt=_prompt(row.get("messages")),
        cluster=str(own),
        options=len(options) if isinstance(options, list) else 0,
    )


def _prompt(messages: Any) -> str:
    """A digest of the messages before the model's first one."""
    posed = []
    for role, content in _plain(messages) or ():
        if role == "assistant":
            break
        posed.append([role, content])
    return digest(posed)


def _plain(messages: Any) -> Any:
    """Messages without their random ids."""
    if not isinstance(messages, list):
        return messages
    return [
        [mapping_at(each).get("role"), mapping_at(each).get("content")]
        for each in messages
    ]


def _opened(file: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except _READING as error:
        raise InputError(f"{file}: no file of inspect's ({error})") from error


def _json(archive: zipfile.ZipFile, file: Path, name: str) -> Any:
    """The JSON of one file in a log; of one that was written twice, the last. Raises
    InputError if it is missing, damaged or too large."""
    where = f"{file}: {name}"
    try:
        info = archive.getinfo(name)
    except KeyError as error:
        raise InputError(f"{where} is missing: did inspect finish?") from error
    if info.file_size > _MOST:
        raise InputError(f"{where} has {info.file_size:,} bytes; at most {_MOST:,}")
    try:
        packed = info.compress_type == _ZSTANDARD
        content = _zstandard(file, info) if packed else archive.read(info)
    except _READING as error:
        raise InputError(f"{where}: cannot be read ({error})") from error
    return parse(content, where)


def _zstandard(file: Path, info: zipfile.ZipInfo) -> bytes:
    """Raises ValueError for a damaged one."""
    with file.open("rb") as content:
        content.seek(info.header_offset)
        header = content.read(_LOCAL)
        lengths = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        content.seek(info.header_offset + _LOCAL + sum(lengths))
        packed = content.read(info.compress_size)
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
        plain: bytes = stream.read(info.file_size + 1)
    if len(plain) != info.file_size or zlib.crc32(plain) != info.CRC:
        raise ValueError("its checksum or its size is wrong")
    return plain
