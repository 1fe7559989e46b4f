"""The distributions at the positions of a score: kept by a base, and compared with
those of its compressed checkpoints.

Each `Score` that stores distributions writes one safetensors file. It has the states
before the output head in 16 bits, and the digest of that head (`states.py`). Where the
engine has no states, like a server, it has the model's logits in their own dtype. With
`top`, the log-probabilities of each row's `top` likeliest tokens are compared, and of
all others together; only these are stored in the place of logits. Merging tokens can
only hide differences (the data processing inequality). So with `top`, both divergences
are lower bounds, and the acceptance is an upper bound. The file also has the
continuation's log-probabilities, its ids and a digest of all; only a score of the same
ids is compared with it.

Engines call `unusable` before they compute and `divergences_from` on the rows that they have
computed. Everything is done in float32, with sums in float64. torch is imported when
there are rows."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.checkpoints.heads import head_of
from evaluator.core.errors import InputError, one_line
from evaluator.engine.base import Divergence, Reference
from evaluator.engine.states import States

if TYPE_CHECKING:
    from torch import Tensor

RANKS = 5  # the first ranks that are compared one by one
WIDTH = len(Divergence._fields)  # columns of a table of divergences


def unusable(
    reference: Reference, continuation_ids: Sequence[int], vocabulary: int
) -> str | None:
    """Why a kept reference cannot be compared with a score of these tokens; None if
    it can."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    if reference.keep:
        return None
    try:
        with safe_open(reference.path, framework="pt") as file:
            kept: dict[str, str] = file.metadata() or {}
        digest = _digest(load_file(reference.path), kept)
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
    if kept.get("digest") != digest:
        return (
            f"{reference.path}: is damaged, or of an older version; evaluate the base"
            " again, in a new run"
        )
    return _other_head(reference, kept["head"]) if "head" in kept else None


def _other_head(reference: Reference, name: str) -> str | None:
    """Why kept states cannot become logits; None if the base's files have their head."""
    needed, _ = name.split()
    try:
        head = head_of(Path(reference.base))
        if head is not None and head.digest == needed:
            return None
    except (OSError, InputError) as error:
        return f"{reference.base}: the base's head is not there: {one_line(error)}"
    return f"{reference.path}: its states need head {needed[:12]}, and {reference.base} has another one"


def divergences_from(
    reference: Reference,
    logits_TV: Any,
    continuation_ids: Sequence[int],
    states: States | None = None,
) -> tuple[Divergence, ...]:
    """Store the rows, or return their Divergences from the stored ones. Row t
    predicts token t of the continuation."""
    import torch

    logits_TV = torch.as_tensor(logits_TV)
    table_TC = divergence_table(reference, logits_TV, continuation_ids, states)
    return () if table_TC is None else divergences_of(table_TC.tolist())


def divergences_of(rows: Sequence[Sequence[float]]) -> tuple[Divergence, ...]:
    """The rows of a table of `divergence_table` by name."""
    return tuple(
        Divergence(kld, reverse, acceptance, same > 0, agreement, own, top)
        for kld, reverse, acceptance, same, agreement, own, top in rows
    )


def divergence_table(
    reference: Reference,
    logits_TV: Tensor,
    continuation_ids: Sequence[int],
    states: States | None = None,
    first: int = 0,
) -> Tensor | None:
    """`divergences_from` as a float32 table [T, WIDTH] of Divergence's fields; None: stored.
    Raises OSError for the file. What is kept is compared from its row `first` on."""
    if reference.keep:
        _keep(reference, logits_TV, continuation_ids, states)
        return None
    rows = slice(first, first + len(continuation_ids))
    return _compare(reference, logits_TV, states, rows)


def _keep(
    reference: Reference,
    logits_TV: Tensor,
    continuation_ids: Sequence[int],
    states: States | None,
) -> None:
    import torch
    from safetensors.torch import save_file

    tokens_T1 = torch.tensor(continuation_ids, device=logits_TV.device)[:, None]
    logprobs_TV = _logprobs(logits_TV)
    kept = {"own": logprobs_TV.gather(1, tokens_T1)[:, 0]}
    metadata = {"tokens": ",".join(map(str, continuation_ids))}
    metadata["columns"] = str(logits_TV.shape[1])
    states_TH = None if states is None else states.kept()
    if states is not None and states_TH is not None:
        kept["states"] = states_TH
        metadata["head"] = str(states.head.name(states_TH))
    elif reference.top:
        kept |= _likeliest(logprobs_TV, reference.top)
    else:
        kept["logits"] = logits_TV
    kept = {name: tensor.cpu().contiguous() for name, tensor in kept.items()}
    metadata["digest"] = _digest(kept, metadata)
    path = Path(reference.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # the store removes such files when a run begins
    temporary = path.parent / f".{path.name}.{os.getpid()}.writing"
    try:
        save_file(kept, temporary, metadata=metadata)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _digest(kept: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """sha256 of what a file holds, but for the digest itself."""
    import torch

    described = {name: metadata[name] for name in metadata if name != "digest"}
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for name, tensor in sorted(kept.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _compare(
    reference: Reference, logits_TV: Tensor, states: States | None, rows: slice
) -> Tensor:
    import torch
    from safetensors import safe_open

    with safe_open(
        reference.path, framework="pt", device=str(logits_TV.device)
    ) as file:
        kept = {name: file.get_slice(name)[rows] for name in file.keys()}  # noqa: SIM118  (not a dict)
        head = file.metadata().get("head")
    if "states" in kept:
        kept["logits"], logits_TV = _from_states(
            reference, kept["states"], head, states, logits_TV
        )
    logprobs_q = _logprobs(logits_TV)
    if "logits" in kept:
        logprobs_p = _logprobs(kept["logits"])
        if reference.top:
            kept |= _likeliest(logprobs_p, reference.top)
    if "ids" in kept:
        ids_TK = kept["ids"].long()
        first_p, best_T = ids_TK[:, :RANKS], kept["logprobs"][:, 0]
        rest_T = _rest(logprobs_q, ids_TK)
    else:
        first_p, ordered_TK = _ordered(logprobs_p, RANKS)
        best_T = ordered_TK[:, 0]
    first_q, _ = _ordered(logprobs_q, first_p.shape[1])
    if "ids" in kept:
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
        kept["own"],
        best_T.exp(),
    )
    return torch.stack([column.float() for column in columns], 1)


def _from_states(
    reference: Reference,
    kept_TH: Tensor,
    name: str,
    states: States | None,
    logits_TV: Tensor,
) -> tuple[Tensor, Tensor]:
    """The base's logits from its states, and the checkpoint's: by the checkpoint's own
    head, if it is the base's."""
    import torch

    if states is not None and states.head.name(kept_TH) == name:
        compute = states.head.compute
        own_TH = states.kept()
        return compute(kept_TH), logits_TV if own_TH is None else compute(own_TH)
    head = head_of(Path(reference.base))
    assert head is not None, "unusable() has found it"
    return head.logits(kept_TH, getattr(torch, name.split()[1])), logits_TV


def _likeliest(logprobs_TV: Tensor, count: int) -> dict[str, Tensor]:
    """Of each row the likeliest tokens, and all others together."""
    ids_TK, logprobs_TK = _ordered(logprobs_TV, min(count, logprobs_TV.shape[1]))
    rest_T = _rest(logprobs_TV, ids_TK)
    return {"ids": ids_TK.int(), "logprobs": logprobs_TK, "rest": rest_T}


def _expected(p: Tensor, difference: Tensor) -> Tensor:
    """The mean of each row's differences under p. What cannot happen counts nothing;
    rounding gives nothing below 0."""
    import torch

    return (
        (p * difference)
        .masked_fill_(p == 0, 0)
        .sum(1, dtype=torch.float64)
        .clamp_(min=0)
    )


def _logprobs(logits_TV: Tensor) -> Tensor:
    """float32, the sum in float64: torch's own log_softmax of long float32 rows errs
    by 1e-5, always to one side."""
    import torch

    shifted = logits_TV.float()
    shifted = shifted - shifted.amax(1, keepdim=True)
    return shifted.sub_(
        shifted.exp().sum(1, keepdim=True, dtype=torch.float64).log_().float()
    )


def _rest(logprobs_TV: Tensor, ids_TK: Tensor) -> Tensor:
    """The log-probability of all tokens but those of `ids_TK`, [T]."""
    return logprobs_TV.scatter(1, ids_TK, float("-inf")).logsumexp(1)


def _ordered(values_TV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ids of each row's `count` highest values, and these, descending; equal
    ones by id, but for the last."""
    highest_TK, ids_TK = values_TV.topk(min(count, values_TV.shape[1]), 1)
    ids_TK, by_id = ids_TK.sort(1)
    ordered_TK, order = highest_TK.gather(1, by_id).sort(
        dim=1, descending=True, stable=True
    )
    return ids_TK.gather(1, order), ordered_TK
