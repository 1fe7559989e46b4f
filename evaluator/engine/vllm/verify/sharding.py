"""Which part of a checkpoint's tensors a worker's weight holds.

vLLM's layers state it themselves, with or without tensor parallelism. They have the
rows of each fused part, the columns, and their worker (`tp_rank`, `tp_size`). If
there are fewer key-value heads than workers, they also have how often a head is
repeated. The rules are those of the layers' weight loaders
(vllm/model_executor/layers/linear.py and vocab_parallel_embedding.py)."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_SAMPLED_ROWS = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """A rectangle of one tensor of the files, and the row of the worker's weight
    where it begins."""

    source: int  # which tensor
    rows: slice
    columns: slice
    start: int

    @property
    def height(self) -> int:
        count: int = self.rows.stop - self.rows.start
        return count


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one projection or of the vocabulary, which are divided among the
    workers together."""

    whole: int  # rows in the files
    first: int  # the first row of this worker
    held: int


def pieces(module: Any, shapes: Sequence[tuple[int, ...]]) -> list[Piece] | None:
    """The pieces of a layer's weight [rows, columns], in the order of its rows,
    without padding.

    `shapes`: of the tensors in the files that the weight concatenates by rows, for
    example q, k and v. None if the layer's way to store them is unknown here."""
    width = shapes[0][1]
    held = getattr(module, "input_size_per_partition", width)
    if held not in (width, width / getattr(module, "tp_size", 1)):
        return None
    left = 0 if held == width else module.tp_rank * held
    columns = slice(left, left + held)
    parts = list(_parts(module, sum(shape[0] for shape in shapes)))
    if sum(part.whole for part in parts) != sum(shape[0] for shape in shapes):
        return None
    if any(part.first + part.held > part.whole for part in parts):
        return None
    ends = list(itertools.accumulate(shape[0] for shape in shapes))
    found: list[Piece] = []
    above = start = 0  # rows of the files, and of the weight, before a part
    for part in parts:
        first = above + part.first
        source = next((index for index, end in enumerate(ends) if first < end), 0)
        first -= ends[source] - shapes[source][0]
        if first + part.held > shapes[source][0]:
            return None
        if part.held:
            found.append(Piece(source, slice(first, first + part.held), columns, start))
        above += part.whole
        start += part.held
    return found


def sampled(held: Sequence[Piece]) -> Iterator[tuple[Piece, slice, slice]]:
    """A few rows at the start, the middle and the end of each piece: where they are
    in the weight, and in the file."""
    for piece in held:
        rows = piece.height
        for first in sorted(
            {0, max(0, rows // 2 - _SAMPLED_ROWS // 2), max(0, rows - _SAMPLED_ROWS)}
        ):
            stop = min(first + _SAMPLED_ROWS, rows)
            begins = piece.rows.start
            yield (
                piece,
                slice(piece.start + first, piece.start + stop),
                slice(begins + first, begins + stop),
            )


def rows_held(held: Sequence[Piece]) -> int:
    """How many rows of a weight they fill; what follows is padding."""
    return max((piece.start + piece.height for piece in held), default=0)


def _parts(module: Any, rows: int) -> Iterator[_Part]:
    """The parts of a layer whose tensors in the files have that many rows together."""
    rank = getattr(module, "tp_rank", 0)
    if (vocabulary := getattr(module, "shard_indices", None)) is not None:
        first = vocabulary.org_vocab_start_index
        yield _Part(
            module.org_vocab_size, first, vocabulary.org_vocab_end_index - first
        )
    elif (replicas := getattr(module, "num_kv_head_replicas", None)) is not None:
        heads = (module.num_heads, module.num_kv_heads, module.num_kv_heads)
        total = (
            module.total_num_heads,
            module.total_num_kv_heads,
            module.total_num_kv_heads,
        )
        sizes = (
            module.head_size,
            module.head_size,
            getattr(module, "v_head_size", module.head_size),
        )
        for number, (held, whole, size) in enumerate(
            zip(heads, total, sizes, strict=True)
        ):
            # workers that share a head hold the same rows
            owner = rank if number == 0 else rank // replicas
            yield _Part(whole * size, owner * held * size, held * size)
    else:
        held_rows = getattr(module, "output_partition_sizes", [rows])
        for whole, held in zip(
            getattr(module, "output_sizes", [rows]), held_rows, strict=True
        ):
            yield _Part(whole, 0 if held == whole else rank * held, held)
