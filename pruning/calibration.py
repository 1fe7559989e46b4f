"""Calibration text: passages from a source, as token ids, with a manifest of exactly
the tokens that a pruning saw.

A passage keeps its origin, so that the manifest can name each file and row. Each
gives one sequence, encoded with the tokenizer's defaults and cut to the configured
length; nothing is packed. `c4:windows` is the Wanda authors' recipe instead: random
stretches of that length, from longer documents of the whole shard. Other hub data
sets are streamed.

No text of a task may decide which weights go. The caller passes such texts as
digests (`held_out`). Passages are compared with them when they are read; a manifest
stores the digests of a finished checkpoint. Texts that differ only in case,
punctuation and white space are equal."""

import gzip
import hashlib
import logging
import random
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from evaluator.checkpoints.files import digest_of_file
from evaluator.checkpoints.manifests import CalibrationManifest, PassageRecord
from evaluator.core.errors import (
    InputError,
    Json,
    field,
    meant,
    need_regular,
    one_line,
    parse,
    unknown,
)
from evaluator.core.liveness import HEARTBEAT
from evaluator.core.saved_data import is_saved, saved_files, saved_texts
from evaluator.core.text import code_of, normalise
from pruning.config import CalibrationConfig

# (samples, seed) -> passages in order: a source that a caller supplies under its own
# name.
PassageSource = Callable[[int, int], Iterator[str]]
Sources = Mapping[str, PassageSource]  # by name

KINDS = (
    "c4",
    "c4:windows",
    "wikipedia:LANG,...",
    "balanced:LANG,...",
    "text:FILE,...",
    "jsonl:FILE,...",
)
C4_ORIGIN = "c4:train:00000"
_TRAIN = "train"  # the split that calibrates, where there are several
_C4: Json = {
    "path": "allenai/c4",
    "data_files": {"train": "en/c4-train.00000-of-01024.json.gz"},
}
_WRAPPED = range(50, 101)  # characters of the longest line, where an editor broke it
_ENDS = ".!?:;\"'”»)。！？।؟"
_WIKIPEDIA = "wikimedia/wikipedia"
_WIKIPEDIA_DATE = "20231101"


@dataclass(frozen=True, slots=True)
class Passage:
    """One piece of text and where it came from."""

    text: str
    origin: str  # a file, a hub data set with its configuration, or the caller's name
    row: int  # 0-based line or row in its origin

    @property
    def text_digest(self) -> str:
        return text_digest(self.text)


def iterate(
    config: CalibrationConfig, seed: int, sources: Sources
) -> Iterator[Passage]:
    """The passages of a source in order; at least `config.samples`, unless the
    source has fewer.

    A name in `sources` takes precedence. Raises InputError for an unknown kind and,
    while it is read, for a file that is missing, not UTF-8, or not JSON lines with a
    `text`."""
    source, samples = config.source, config.samples
    if source in sources:
        texts = enumerate(sources[source](samples, seed))
        return (Passage(text, source, row) for row, text in texts)
    kind, _, rest = source.partition(":")
    if kind in ("text", "jsonl"):
        return _files(config.files, kind == "jsonl")
    if source in ("c4", "c4:windows"):
        return _hub(C4_ORIGIN, **_C4)
    if kind in ("wikipedia", "balanced") and rest:
        return _wikipedia(source, rest.split(","), samples, balanced=kind == "balanced")
    if Path(source).expanduser().exists():
        kind = "jsonl" if source.endswith(".jsonl") else "text"
        raise InputError(
            f"calibration.source: {source!r} is unknown; did you mean '{kind}:{source}'?"
        )
    named = unknown("source", source, (*KINDS, *sources))
    raise InputError(f"calibration.source: {named}")


def _files(files: Sequence[tuple[str, Path]], json_lines: bool) -> Iterator[Passage]:
    for name, path in files:
        if is_saved(path):
            for row, text in enumerate(saved_texts(path, _TRAIN)):
                if text.strip():
                    yield Passage(text, name, row)
            continue
        opened = gzip.open if path.suffix == ".gz" else open
        try:
            with opened(need_regular(path), "rb") as stream:
                for row, line in enumerate(stream):
                    text = _decode(name, row, line, json_lines)
                    if text:
                        yield Passage(text, name, row)
        except (OSError, EOFError) as error:
            reason = getattr(error, "strerror", None) or error
            hint = "" if path.exists() else meant(path)
            raise InputError(
                f"{name}: calibration file cannot be read: {reason}{hint}"
            ) from None


def _decode(file: str, row: int, line: bytes, json_lines: bool) -> str:
    """The passage on one line; empty for a blank line, which is not a passage."""
    try:
        text = line.decode("utf-8").removeprefix("\ufeff").strip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file}, line {row + 1}: calibration file is not UTF-8 ({error.reason})"
        ) from None
    if text.strip() and json_lines:
        place = f"{file}, line {row + 1}"
        text = field(parse(line, place), "text", str, place)
    return text if text.strip() else ""


def _hub(origin: str, path: str, **arguments: Any) -> Iterator[Passage]:
    """The rows of a hub data set's train split, streamed."""
    with _reading(path) as load_dataset:
        rows = load_dataset(path, split=_TRAIN, streaming=True, **arguments)
        for row, value in enumerate(rows):
            if value["text"].strip():
                yield Passage(value["text"], origin, row)


@contextmanager
def _reading(path: str) -> Iterator[Callable[..., Any]]:
    """The library's `load_dataset`; whatever it raises becomes an InputError of one
    line."""
    from datasets import load_dataset

    # It logs its retries, which would bury the one line with the reason.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        yield load_dataset
    except (OSError, ValueError, ConnectionError, KeyError, RuntimeError) as error:
        raise InputError(
            f"calibration.source: {path} cannot be read from the hub"
            f" ({one_line(error)}); offline, use text:FILE or jsonl:FILE"
        ) from None


def _wikipedia(
    source: str, languages: list[str], samples: int, *, balanced: bool
) -> Iterator[Passage]:
    """The first passages of each Wikipedia in turn: as many as `samples` allows, or
    exactly if `balanced`."""
    codes = [code_of(language) for language in languages]
    if not all(codes) or len(set(codes)) != len(codes):
        raise InputError(f"calibration.source: {source!r} must name each language once")
    if balanced and samples % len(languages):
        raise InputError(
            f"calibration.samples: {samples} cannot be the same number of each of"
            f" {len(languages)} languages"
        )
    return _of_languages([f"{_WIKIPEDIA_DATE}.{code}" for code in codes], samples)


def _of_languages(names: list[str], samples: int) -> Iterator[Passage]:
    share, rest = divmod(samples, len(names))
    for position, name in enumerate(names):
        requested = share + (position < rest)
        passages = _hub(f"{_WIKIPEDIA}:{name}", _WIKIPEDIA, name=name)
        taken = list(islice(passages, requested))
        if len(taken) < requested:
            raise InputError(
                f"calibration.source: {_WIKIPEDIA} {name} has {len(taken)} passages,"
                f" {requested} were requested"
            )
        yield from taken


def digests_of(config: CalibrationConfig) -> dict[str, str]:
    """sha256 of every calibration file that is there, and of each file of a folder,
    by the name that the user gave."""
    digests: dict[str, str] = {}
    for name, path in config.files:
        for file in saved_files(path) if path.is_dir() else [path]:
            if file.is_file():
                inside = Path(name) / file.relative_to(path)
                digests[str(inside)] = digest_of_file(file)
    return digests


def text_digest(text: str) -> str:
    """sha256, hexadecimal, of the normalised text; empty if no word is left."""
    words = normalise(text)
    return _sha256(words) if words else ""


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def check_disjoint(
    passages: "Iterable[Passage | PassageRecord]", held_out: Mapping[str, str]
) -> None:
    """Raises InputError for the first passage that is held out: `held_out` describes
    texts, by `text_digest`."""
    for passage in passages if held_out else ():
        digest = passage.text_digest
        if digest and digest in held_out:
            raise InputError(
                f"calibration.source: passage {passage.row} of {passage.origin} is also"
                f" {held_out[digest]}; leave one of the two out"
            )


_DRAWS = 2000  # documents in a row that may be too short before the source is given up


@dataclass(frozen=True, slots=True)
class Calibration:
    """Sequences of token ids and their manifest."""

    sequences: tuple[tuple[int, ...], ...]
    manifest: CalibrationManifest


def take_passages(
    config: CalibrationConfig, seed: int, sources: Sources
) -> list[Passage]:
    """The first `samples` passages. Raises InputError if there are fewer, saying how
    many there were."""
    taken = list(islice(iterate(config, seed, sources), config.samples))
    if len(taken) < config.samples:
        raise InputError(
            f"calibration.samples: {config.samples} passages were requested,"
            f" {config.source!r} has {len(taken)}"
        )
    origins = {passage.origin for passage in taken}
    for name, _ in config.files:
        if name not in origins:
            raise InputError(
                f"calibration.source: {name} gives nothing: the first"
                f" {config.samples} passages are in the files before it; raise samples"
                " or leave it out"
            )
    return taken


def check_named(config: CalibrationConfig, seed: int, sources: Sources) -> None:
    """Look at a source without the network. Raises InputError if it is unknown, or
    for files that lack the passages."""
    iterate(config, seed, sources)
    if config.source not in sources and config.files:
        take_passages(config, seed, sources)


def wrapped(config: CalibrationConfig) -> list[str]:
    """A note if the lines of text files seem to be parts of paragraphs."""
    if not config.source.startswith("text:"):
        return []
    lines = [each.text for each in islice(_files(config.files, False), config.samples)]
    open_ended = [line for line in lines if line.rstrip()[-1] not in _ENDS]
    longest = max(map(len, lines), default=0)
    if longest not in _WRAPPED or 2 * len(open_ended) <= len(lines):
        return []
    return [
        f"calibration: {config.source}: each line is a text, and these look wrapped:"
        " join the lines of each paragraph"
    ]


def load(
    config: CalibrationConfig,
    tokenizer: Any,
    seed: int,
    sources: Sources,
    held_out: Mapping[str, str] | None = None,
) -> Calibration:
    """Read and encode passages, none in `held_out`. Raises InputError for a bad
    source and one without a token."""
    if config.source == "c4:windows" and config.source not in sources:
        drawn = list(_windows(config, tokenizer, seed))
    else:
        drawn = []
        for passage in take_passages(config, seed, sources):
            HEARTBEAT.beat()
            ids = tokenizer(passage.text, verbose=False)["input_ids"]
            if not ids:
                raise InputError(
                    f"calibration passage {passage.row} of {passage.origin}: gives no"
                    " token"
                )
            drawn.append((passage, 0, ids))
    longest = config.sequence_length
    digest = hashlib.sha256()
    records, sequences = [], []
    for passage, offset, ids in drawn:
        kept = tuple(ids[:longest])
        digest.update(struct.pack(f"<{len(kept) + 1}q", len(kept), *kept))
        sequences.append(kept)
        record = PassageRecord(
            origin=passage.origin,
            row=passage.row,
            offset=offset,
            tokens=len(kept),
            sha256=_sha256(passage.text),
            text_digest=passage.text_digest,
        )
        records.append(record)
    manifest = CalibrationManifest(
        source=config.source,
        samples=len(sequences),
        sequence_length=longest,
        tokens=sum(map(len, sequences)),
        cut=sum(len(ids) > longest for _, _, ids in drawn),
        ids_sha256=digest.hexdigest(),
        files=digests_of(config),
        passages=tuple(records),
    )
    check_disjoint(records, held_out or {})
    return Calibration(tuple(sequences), manifest)


def _windows(
    config: CalibrationConfig, tokenizer: Any, seed: int
) -> Iterator[tuple[Passage, int, Sequence[int]]]:
    """Random stretches of `sequence_length` tokens from random documents of the whole
    shard that are longer: the draws of the Wanda authors' loader with Python's
    generator (an offset never reaches the last stretch).
    """
    # fetched whole once, then read from the hub's cache on disk
    with _reading(_C4["path"]) as load_dataset:
        documents = load_dataset(split=_TRAIN, **_C4)
    generator = random.Random(seed)
    length = config.sequence_length
    for _ in range(config.samples):
        for _ in range(_DRAWS):
            row = generator.randint(0, len(documents) - 1)
            ids = tokenizer(documents[row]["text"], verbose=False)["input_ids"]
            HEARTBEAT.beat()
            if len(ids) > length:
                break
        else:
            raise InputError(
                f"calibration.sequence_length: none of {_DRAWS} documents drawn is"
                f" longer than {length} tokens"
            )
        offset = generator.randint(0, len(ids) - length - 1)
        yield (
            Passage(documents[row]["text"], C4_ORIGIN, row),
            offset,
            ids[offset : offset + length],
        )
