"""Calibration passages as token ids, with a manifest that says exactly which tokens a pruning saw.

Each passage gives one sequence, encoded with the tokenizer's defaults and cut to the configured length; nothing is
packed. `c4:windows` is the Wanda authors' recipe instead: random stretches of that length, from longer documents.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from evaluator.checkpoints.files import digest_of_file
from evaluator.core.config import Frozen
from evaluator.core.errors import InputError
from evaluator.core.liveness import HEARTBEAT
from pruning.calibration import passages
from pruning.calibration.passages import Passage, PassageSource, check_disjoint, text_digest
from pruning.config import CalibrationConfig

_DRAWS = 2000  # documents in a row that may be too short before the source is given up
_UNITS = {"text": " (non-blank lines)", "jsonl": " (lines with a text)"}  # what a passage is, by the kind of source


class PassageRecord(Frozen):
    """One sequence: where its text came from and how many tokens it gave."""

    origin: str
    row: int
    offset: int = 0  # of the sequence's first token in its document
    tokens: int
    sha256: str  # of the passage's UTF-8 text
    text_digest: str = ""  # of its normalised text, by `text_digest`


class CalibrationManifest(Frozen):
    """The text that a job saw; part of the checkpoint's manifest."""

    source: str
    samples: int
    sequence_length: int
    tokens: int
    cut: int  # passages that were longer than the sequence length
    ids_sha256: str  # of every sequence's length and ids, little-endian 64-bit
    files: dict[str, str]  # sha256 of the calibration files
    passages: tuple[PassageRecord, ...]

    def check_disjoint(self, held_out: Mapping[str, str]) -> None:
        """Raises InputError if a passage that the pruning saw is held out (see `check_disjoint`)."""
        check_disjoint(((passage.origin, passage.row, passage.text_digest) for passage in self.passages), held_out)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Sequences of token ids and their manifest."""

    sequences: tuple[tuple[int, ...], ...]
    manifest: CalibrationManifest


def take_passages(config: CalibrationConfig, seed: int, sources: Mapping[str, PassageSource]) -> list[Passage]:
    """The first `samples` passages. Raises InputError if there are fewer, saying how many there were."""
    found = list(islice(passages.iterate(config, seed, sources), config.samples))
    if not found:
        raise InputError(f"calibration.source: {config.source!r} is empty: it holds no passage")
    if len(found) < config.samples:
        raise InputError(
            f"calibration.samples: {config.samples} passages were requested, {config.source!r} has {len(found)}"
            f"{_UNITS.get(config.source.partition(':')[0], '')}"
        )
    unused = [name for name, _ in config.files if name not in {p.origin for p in found}]
    if unused:
        raise InputError(
            f"calibration.source: {unused[0]} gives nothing: the first {config.samples} passages "
            "are in the files before it; raise samples or leave it out"
        )
    return found


def check_named(config: CalibrationConfig, seed: int, sources: Mapping[str, PassageSource]) -> None:
    """Look at a source without the network. Raises InputError if it is unknown, or for files that lack the passages."""
    passages.iterate(config, seed, sources)
    if config.source not in sources and config.files:
        take_passages(config, seed, sources)


def check_passages(found: Sequence[Passage], held_out: Mapping[str, str]) -> None:
    """Raises InputError for a passage that is held out."""
    if held_out:
        check_disjoint(((passage.origin, passage.row, text_digest(passage.text)) for passage in found), held_out)


def load(
    config: CalibrationConfig,
    tokenizer: Any,
    seed: int,
    sources: Mapping[str, PassageSource],
    held_out: Mapping[str, str] | None = None,
) -> Calibration:
    """Read and encode the calibration passages; `held_out`: forbidden texts (see `check_disjoint`).

    Raises InputError for whatever is wrong with the source (see `passages.iterate`, `take_passages`) and for a
    passage that gives no token.
    """
    if config.source == "c4:windows" and config.source not in sources:
        drawn = list(_windows(config, tokenizer, seed))
    else:
        found = take_passages(config, seed, sources)
        drawn = [(passage, 0, _encode(tokenizer, passage)) for passage in found]
    longest = config.sequence_length
    digest = hashlib.sha256()
    records, sequences = [], []
    for passage, offset, ids in drawn:
        kept = tuple(ids[:longest])
        digest.update(struct.pack(f"<{len(kept) + 1}q", len(kept), *kept))
        sequences.append(kept)
        records.append(
            PassageRecord(
                origin=passage.origin,
                row=passage.row,
                offset=offset,
                tokens=len(kept),
                sha256=hashlib.sha256(passage.text.encode("utf-8", "surrogatepass")).hexdigest(),
                text_digest=text_digest(passage.text),
            )
        )
    manifest = CalibrationManifest(
        source=config.source,
        samples=len(sequences),
        sequence_length=longest,
        tokens=sum(map(len, sequences)),
        cut=sum(len(ids) > longest for _, _, ids in drawn),
        ids_sha256=digest.hexdigest(),
        files={name: digest_of_file(path) for name, path in config.files},
        passages=tuple(records),
    )
    manifest.check_disjoint(held_out or {})
    return Calibration(tuple(sequences), manifest)


def _encode(tokenizer: Any, passage: Passage) -> Sequence[int]:
    HEARTBEAT.beat()
    ids: list[int] = tokenizer(passage.text, verbose=False)["input_ids"]
    if not ids:
        raise InputError(f"calibration passage {passage.row} of {passage.origin}: gives no token")
    return ids


def _windows(config: CalibrationConfig, tokenizer: Any, seed: int) -> Iterator[tuple[Passage, int, Sequence[int]]]:
    """Random stretches of `sequence_length` tokens from random documents of the whole shard that are longer.

    Each draw equals that of the Wanda authors' loader with Python's generator: a document, again while it is too short,
    then an offset, which never reaches the last stretch.
    """
    documents = passages.c4_shard()
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
                f"calibration.sequence_length: none of {_DRAWS} documents drawn is longer than {length} tokens"
            )
        offset = generator.randint(0, len(ids) - length - 1)
        yield Passage(documents[row]["text"], passages.C4_ORIGIN, row), offset, ids[offset : offset + length]
