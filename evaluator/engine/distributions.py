"""The distributions at the positions of a score: kept by a base, and compared with
those of its compressed checkpoints.

Each `Score` that stores distributions writes one safetensors file. It has the
model's logits in their own dtype, without loss. With `top`, it has instead the
log-probabilities of each row's `top` likeliest tokens and of all others together.
Merging tokens can only hide differences (the data processing inequality). So with
`top`, both divergences are lower bounds, and the acceptance is an upper bound. The
file also has the continuation's log-probabilities and its ids; only a score of the
same ids is compared with it.

Engines call `unusable` before they compute and `divergences_from` on the rows that they have
computed. Everything is done in float32, with sums in float64. torch is imported when
there are rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.core.errors import one_line
from evaluator.engine.base import Divergence, Reference

if TYPE_CHECKING:
    import torch

RANKS = 5  # the first ranks that are compared one by one
WIDTH = len(Divergence._fields)  # columns of a table of divergences


def unusable(
    reference: Reference, continuation_ids: Sequence[int], vocabulary: int
) -> str | None:
    """Why a kept reference cannot be compared with a score of these tokens; None if
    it can."""
    from safetensors import SafetensorError, safe_open

    if reference.keep:
        return None
    try:
        with safe_open(reference.path, framework="pt") as file:
            kept: dict[str, str] = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        return (
            f"{reference.path}: the base's distributions are not there:"
            f" {one_line(error)}"
        )
    if kept.get("tokens") != ",".join(map(str, continuation_ids)):
        return f"{reference.path}: the base's distributions are those of other tokens"
    if kept.get("columns") != str(vocabulary):
        return (
            f"the base's distributions have {kept.get('columns')} columns, the"
            f" vocabulary here has {vocabulary}"
        )
    return None


def divergences_from(
    reference: Reference, logits_TV: Any, continuation_ids: Sequence[int]
) -> tuple[Divergence, ...]:
    """Store the rows, or return their Divergences from the stored ones. Row t
    predicts token t of the continuation."""
    import torch

    table_TC = divergence_table(reference, torch.as_tensor(logits_TV), continuation_ids)
    return () if table_TC is None else divergences_of(table_TC.tolist())


def divergences_of(rows: Sequence[Sequence[float]]) -> tuple[Divergence, ...]:
    """The rows of a table of `divergence_table` by name."""
    return tuple(
        Divergence(kld, reverse, acceptance, same > 0, agreement, own, top)
        for kld, reverse, acceptance, same, agreement, own, top in rows
    )


def divergence_table(
    reference: Reference,
    logits_TV: torch.Tensor,
    continuation_ids: Sequence[int],
    first: int = 0,
) -> torch.Tensor | None:
    """`divergences_from` as a float32 table [T, WIDTH] of Divergence's fields; None: stored.
    Raises OSError for the file. What is kept is compared from its row `first` on."""
    import torch

    tokens_T1 = torch.tensor(continuation_ids, device=logits_TV.device)[:, None]
    if not reference.keep:
        return _compare(
            reference, logits_TV, tokens_T1, slice(first, first + len(continuation_ids))
        )
    from safetensors.torch import save_file

    columns = logits_TV.shape[1]
    if reference.top:
        logprobs_TV = _logprobs(logits_TV)
        ids_TK, logprobs_TK = _ordered(logprobs_TV, min(reference.top, columns))
        kept = {
            "ids": ids_TK.int(),
            "logprobs": logprobs_TK.contiguous(),
            "rest": _rest(logprobs_TV, ids_TK),
            "own": logprobs_TV.gather(1, tokens_T1)[:, 0].contiguous(),
        }
    else:
        kept = {"logits": logits_TV.contiguous()}
    path = Path(reference.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # the store removes such files when a run begins
    temporary = path.parent / f".{path.name}.{os.getpid()}.writing"
    try:
        save_file(
            kept,
            temporary,
            metadata={
                "tokens": ",".join(map(str, continuation_ids)),
                "columns": str(columns),
            },
        )
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return None


def _compare(
    reference: Reference, logits_TV: torch.Tensor, tokens_T1: torch.Tensor, rows: slice
) -> torch.Tensor:
    import torch
    from safetensors import safe_open

    with safe_open(
        reference.path, framework="pt", device=str(logits_TV.device)
    ) as file:
        kept = {name: file.get_slice(name)[rows] for name in file.keys()}  # noqa: SIM118  (not a dict)
    logprobs_q = _logprobs(logits_TV)
    if "logits" in kept:
        logprobs_p = _logprobs(kept["logits"])
        own_T = logprobs_p.gather(1, tokens_T1)[:, 0]
        first_p, top_T1 = _ordered(logprobs_p, RANKS)
        best_T = top_T1[:, 0]
    else:
        ids_TK, own_T = kept["ids"].long(), kept["own"]
        first_p, best_T = ids_TK[:, :RANKS], kept["logprobs"][:, 0]
        rest_T = _rest(logprobs_q, ids_TK)
    first_q, _ = _ordered(logprobs_q, first_p.shape[1])
    if "logits" not in kept:
        logprobs_p = torch.cat((kept["logprobs"], kept["rest"][:, None]), 1)
        logprobs_q = torch.cat((logprobs_q.gather(1, ids_TK), rest_T[:, None]), 1)
    same_TK = first_p == first_q
    p, q = logprobs_p.exp(), logprobs_q.exp()
    difference = logprobs_p - logprobs_q
    columns = (
        _expected(p, difference),
        _expected(q, difference.neg_()),
        torch.minimum(p, q).sum(1, dtype=torch.float64),
        same_TK[:, 0],
        same_TK.float().mean(1),
        own_T,
        best_T.exp(),
    )
    return torch.stack([column.float() for column in columns], 1)


def _expected(p: torch.Tensor, difference: torch.Tensor) -> torch.Tensor:
    """The mean of each row's differences under p. What cannot happen counts nothing;
    rounding gives nothing below 0."""
    import torch

    return (
        (p * difference)
        .masked_fill_(p == 0, 0)
        .sum(1, dtype=torch.float64)
        .clamp_(min=0)
    )


def _logprobs(logits_TV: torch.Tensor) -> torch.Tensor:
    """float32, the sum in float64: torch's own log_softmax of long float32 rows errs
    by 1e-5, always to one side."""
    import torch

    shifted = logits_TV.float()
    shifted = shifted - shifted.amax(1, keepdim=True)
    return shifted.sub_(
        shifted.exp().sum(1, keepdim=True, dtype=torch.float64).log_().float()
    )


def _rest(logprobs_TV: torch.Tensor, ids_TK: torch.Tensor) -> torch.Tensor:
    """The log-probability of all tokens but those of `ids_TK`, [T]."""
    return logprobs_TV.scatter(1, ids_TK, float("-inf")).logsumexp(1)


def _ordered(values_TV: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids of each row's `count` highest values, and these, descending; equal
    ones by id, but for the last."""
    highest_TK, ids_TK = values_TV.topk(min(count, values_TV.shape[1]), 1)
    ids_TK, by_id = ids_TK.sort(1)
    ordered_TK, order = highest_TK.gather(1, by_id).sort(
        dim=1, descending=True, stable=True
    )
    return ids_TK.gather(1, order), ordered_TK
