"""Where calibration text comes from, as the name of the source says, and which texts are held out.

A passage keeps its origin, so that the manifest can name each file and row. Hub data sets are streamed:
only the first rows of the first shard are fetched. `c4:windows` alone draws from the whole shard.

No text of a task may decide which weights go. The caller passes such texts as digests (`held_out`). Passages are
compared with them when they are read; a manifest stores the digests of a finished checkpoint. Texts that differ only in
case, punctuation and white space are equal.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from evaluator.core.errors import InputError, one_line
from evaluator.core.text import code_of, normalise
from pruning.config import CalibrationConfig

# (samples, seed) -> passages in order: a source that a caller supplies under its own name.
PassageSource = Callable[[int, int], Iterator[str]]

KINDS = ("c4", "c4:windows", "wikipedia:LANG,...", "balanced:LANG,...", "text:FILE,...", "jsonl:FILE,...")
C4_ORIGIN = "c4:train:00000"
_C4: dict[str, Any] = {"path": "allenai/c4", "data_files": {"train": "en/c4-train.00000-of-01024.json.gz"}}
_WIKIPEDIA = "wikimedia/wikipedia"
_WIKIPEDIA_DATE = "20231101"


@dataclass(frozen=True, slots=True)
class Passage:
    """One piece of text and where it came from."""

    text: str
    origin: str  # a file, a hub data set with its configuration, or the caller's name
    row: int  # 0-based line or row in its origin


def is_local(source: str, sources: Mapping[str, PassageSource]) -> bool:
    """Whether the passages can be read without the network."""
    return source in sources or source.partition(":")[0] in ("text", "jsonl")


def iterate(config: CalibrationConfig, seed: int, sources: Mapping[str, PassageSource]) -> Iterator[Passage]:
    """The passages of a source in order; at least `config.samples`, unless the source has fewer.

    A name in `sources` takes precedence over the kinds known here. Raises InputError for an unknown kind and, while it
    is read, for a file that is missing, not UTF-8, or not JSON lines with a `text`.
    """
    source, samples = config.source, config.samples
    if source in sources:
        supplied = enumerate(sources[source](samples, seed))
        return (Passage(text, source, row) for row, text in supplied)
    kind, _, rest = source.partition(":")
    if kind in ("text", "jsonl"):
        return _files(config.files, kind == "jsonl")
    if source in ("c4", "c4:windows"):
        return _hub(C4_ORIGIN, **_C4)
    if kind in ("wikipedia", "balanced") and rest:
        return _wikipedia(_shares(source, rest.split(","), samples, balanced=kind == "balanced"))
    known = ", ".join((*KINDS, *sorted(sources)))
    raise InputError(f"calibration.source: {source!r} is unknown (known: {known})")


def _files(files: Sequence[tuple[str, Path]], json_lines: bool) -> Iterator[Passage]:
    for name, path in files:
        opened = gzip.open if path.suffix == ".gz" else open
        try:
            with opened(path, "rb") as stream:
                for row, line in enumerate(stream):
                    text = _decode(name, row, line, json_lines)
                    if text:
                        yield Passage(text, name, row)
        except (OSError, EOFError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{name}: calibration file cannot be read: {reason}") from None


def _decode(file: str, row: int, line: bytes, json_lines: bool) -> str:
    """The passage on one line; empty for a blank line, which is not a passage."""
    try:
        text = line.decode("utf-8").removeprefix("\ufeff").strip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}, line {row + 1}: calibration file is not UTF-8 ({error.reason})") from None
    if not text.strip() or not json_lines:
        return text if text.strip() else ""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{file}, line {row + 1}: is not JSON ({error.msg})") from None
    passage = value.get("text") if isinstance(value, dict) else None
    if not isinstance(passage, str):
        raise InputError(f"{file}, line {row + 1}: field 'text' is missing or not a string")
    return passage if passage.strip() else ""


def c4_shard() -> Sequence[Mapping[str, str]]:
    """All documents of shard 0 of C4, by row: fetched whole once, then read from the hub's cache on disk.

    Raises InputError if it is out of reach.
    """
    with _reading(_C4["path"]) as load_dataset:
        rows: Sequence[Mapping[str, str]] = load_dataset(split="train", **_C4)
        return rows


def _hub(origin: str, path: str, **arguments: Any) -> Iterator[Passage]:
    """The rows of a hub data set's train split, streamed."""
    with _reading(path) as load_dataset:
        for row, value in enumerate(load_dataset(path, split="train", streaming=True, **arguments)):
            if value["text"].strip():
                yield Passage(value["text"], origin, row)


@contextmanager
def _reading(path: str) -> Iterator[Callable[..., Any]]:
    """The library's `load_dataset`; whatever it raises becomes an InputError of one line."""
    from datasets import load_dataset

    # It logs its retries, which would bury the one line with the reason.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        yield load_dataset
    except (OSError, ValueError, ConnectionError, KeyError, RuntimeError) as error:
        raise InputError(
            f"calibration.source: {path} cannot be read from the hub ({one_line(error)}); "
            "offline, use text:FILE or jsonl:FILE"
        ) from None


def _shares(source: str, languages: list[str], samples: int, *, balanced: bool) -> dict[str, int]:
    """How many passages of each language, by its code: as even as `samples` allows; exactly even for `balanced`."""
    codes = [code_of(language) for language in languages]
    if not all(codes) or len(set(codes)) != len(codes):
        raise InputError(f"calibration.source: {source!r} must name each language once")
    if balanced and samples % len(languages):
        raise InputError(
            f"calibration.samples: {samples} cannot be the same number of each of {len(languages)} languages"
        )
    share, rest = divmod(samples, len(codes))
    return {code: share + (position < rest) for position, code in enumerate(codes)}


def _wikipedia(shares: Mapping[str, int]) -> Iterator[Passage]:
    """The first passages of each language's Wikipedia, one language after another."""
    for language, requested in shares.items():
        name = f"{_WIKIPEDIA_DATE}.{language}"
        found = list(islice(_hub(f"{_WIKIPEDIA}:{name}", _WIKIPEDIA, name=name), requested))
        if len(found) < requested:
            raise InputError(
                f"calibration.source: {_WIKIPEDIA} {name} has {len(found)} passages, {requested} were requested"
            )
        yield from found


def text_digest(text: str) -> str:
    """sha256, hexadecimal, of the normalised text; empty if no word is left."""
    words = normalise(text)
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest() if words else ""


def check_disjoint(passages: Iterable[tuple[str, int, str]], held_out: Mapping[str, str]) -> None:
    """Raises InputError for the first passage whose digest is held out.

    `passages`: (origin, row, digest); `held_out`: a description of each text, by `text_digest`.
    """
    for origin, row, digest in passages:
        if digest and digest in held_out:
            raise InputError(
                f"calibration.source: passage {row} of {origin} is also {held_out[digest]}; leave one of the two out"
            )
