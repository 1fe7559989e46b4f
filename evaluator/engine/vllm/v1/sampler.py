"""The sampler for vLLM's V1 model runner, the one that serves CPUs: every row gets
what its request needs, no more.

If one row of a step needs something, vLLM's own sampler computes it for every row.
This can be log-probabilities of the whole vocabulary, the top list of the widest
row, ranks, and noise for each token of the vocabulary. Here a sampled row takes one
uniform variate and looks at its likeliest tokens; only scored rows are ranked, and
only beams have top lists.

- A scored row generates a given token (*forced*); its log-probability, rank and the
  top token are the raw model's.
- A greedy row generates the likeliest token. Among equals it is the one with the
  lowest id.
- A sampled row draws from its nucleus (Holtzman et al., 2020) with its request's
  generator. So the same seed gives the same draw in any batch.

Replaces `GPUModelRunner.sampler`, a `Sampler`, and
`vllm.v1.sample.sampler.batched_count_greater_than`. With it vLLM ranks prompts.
Subclasses `Sampler` (`forward`) and `LogitsProcessor` (`update_state`, from a
`BatchUpdate` and its `MoveDirectionality`); makes `SamplerOutput` and
`LogprobsTensors`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.interface import MoveDirectionality
from vllm.v1.sample.sampler import Sampler

from evaluator.engine.base import Reference
from evaluator.engine.vllm.prompt_scores import (
    FORCED,
    NUCLEUS,
    reference_of,
    with_divergences,
)

# tokens: the best of a row are looked for in the blocks with the highest peaks
_BLOCK = 64
_FIRST_LOOK = 64  # how many of the likeliest tokens are tried first as the nucleus
_GROWTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The tokens that one row of the batch generates, and the contents of its
    report."""

    forced: list[int] | None = None  # the tokens to generate; None: the model chooses
    output_ids: Sequence[int] = ()  # vLLM's own, growing list of generated tokens
    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0
    top: int = 0  # likeliest tokens to report
    reported: bool = True  # whether log-probabilities are reported at all
    # what the rows of forced tokens are compared with
    reference: Reference | None = None

    @property
    def token(self) -> int | None:
        """The forced token, if there is one; the last one again for a request that
        is about to end."""
        if self.forced is None:
            return None
        return self.forced[min(len(self.output_ids), len(self.forced) - 1)]


class Orders(LogitsProcessor):  # type: ignore[misc]  # vllm is not followed by mypy
    """Knows the order of every batch row while vLLM adds, removes and moves rows. It
    leaves the logits alone."""

    def __init__(
        self, vllm_config: Any, device: torch.device, is_pin_memory: bool
    ) -> None:
        self.rows: dict[int, Order] = {}

    def is_argmax_invariant(self) -> bool:
        return True

    def apply(self, logits: Tensor) -> Tensor:
        return logits

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the rows; the order removed, added, moved is vLLM's."""
        if batch_update is None:
            return
        rows = self.rows
        for row in batch_update.removed:
            rows.pop(row, None)
        for row, parameters, _prompt_ids, output_ids in batch_update.added:
            arguments = parameters.extra_args or {}
            rows[row] = Order(
                forced=arguments.get(FORCED),
                output_ids=output_ids,
                temperature=parameters.temperature,
                top_p=arguments.get(NUCLEUS, 1.0),
                top=parameters.logprobs or 0,
                reported=parameters.logprobs is not None,
                reference=reference_of(arguments),
            )
        for source, target, direction in batch_update.moved:
            moved, replaced = rows.pop(source, None), rows.pop(target, None)
            if moved is not None:
                rows[target] = moved
            if replaced is not None and direction == MoveDirectionality.SWAP:
                rows[source] = replaced


class RowSampler(Sampler):  # type: ignore[misc]
    """Takes the place of vLLM's sampler in the V1 model runner."""

    def __init__(self, runner: Any) -> None:
        super().__init__()
        self._runner = runner

    def forward(
        self,
        logits: Tensor,
        sampling_metadata: Any,
        predict_bonus_token: bool = False,
        logprobs_mode_override: Any = None,
    ) -> SamplerOutput:
        """`logits` [rows, vocabulary] of one step; returns vLLM's output for the
        same rows."""
        rows = next(
            each
            for each in sampling_metadata.logitsprocs.all
            if isinstance(each, Orders)
        ).rows
        orders = [rows[row] for row in range(len(logits))]
        tokens_R, tables = sample(logits.float(), orders, sampling_metadata.generators)
        compared = []
        for row, order in enumerate(orders):
            place, forced = len(order.output_ids), order.forced or ()
            if order.reference is not None and place < len(forced):
                compared.append((row, order.reference, forced[place], place))
        if compared:
            head = self._runner.output_head
            tables = with_divergences(tables, logits, compared, head)
        return SamplerOutput(
            sampled_token_ids=tokens_R[:, None].int(), logprobs_tensors=tables
        )


def sample(
    logits_RV: Tensor,
    orders: Sequence[Order],
    generators: Mapping[int, torch.Generator],
) -> tuple[Tensor, LogprobsTensors | None]:
    """Carry out the orders of all rows: the tokens [rows], and their report, if one
    is wanted.

    Column 0 of the tables is the generated token, the others are the likeliest ones.
    A row has only the values that its order requests. `logits_RV` are float32 and
    stay unchanged. `generators`: for the sampled rows with a seed; other rows draw
    from torch's own."""
    best_R, argmax_R = _argmax(logits_RV)
    tokens_R = argmax_R.clone()
    drawn = [row for row, order in enumerate(orders) if order.temperature > 0]
    if drawn:
        tokens_R[drawn] = _drawn(logits_RV, orders, generators, drawn)
    ranks_R = torch.zeros_like(tokens_R, dtype=torch.int32)
    forced = [row for row, order in enumerate(orders) if order.forced is not None]
    if forced:
        tokens = [orders[row].token for row in forced]
        tokens_R[forced] = torch.tensor(tokens, device=tokens_R.device)
        logits_FV = logits_RV[forced]
        own_F1 = logits_FV.gather(1, tokens_R[forced, None])
        ranks_R[forced] = (logits_FV > own_F1).sum(1, dtype=torch.int32) + 1
    if not any(order.reported for order in orders):
        return tokens_R, None
    ids_RK, logits_RK = _listed(logits_RV, orders, tokens_R, best_R, argmax_R)
    reported = [row for row, order in enumerate(orders) if order.reported]
    # log p = (logit - best) - log(sum(exp(logit - best))): no digit is lost to large
    # logits.
    shifted_LV = logits_RV[reported].sub_(best_R[reported, None])
    mass_L1 = shifted_LV.exp_().sum(1, keepdim=True).log_()
    logprobs_RK = logits_RK - best_R[:, None]
    logprobs_RK[reported] -= mass_L1
    return tokens_R, LogprobsTensors(ids_RK.int(), logprobs_RK, ranks_R)


def _drawn(
    logits_RV: Tensor,
    orders: Sequence[Order],
    generators: Mapping[int, torch.Generator],
    rows: Sequence[int],
) -> Tensor:
    """The tokens of the sampled `rows`; each takes one uniform variate."""
    device = logits_RV.device
    temperatures = [[orders[row].temperature] for row in rows]
    temperature_S1 = torch.tensor(temperatures, device=device)
    top_p_S = torch.tensor([orders[row].top_p for row in rows], device=device)
    variates = [
        torch.rand(1, generator=generators.get(row), device=device) for row in rows
    ]
    scaled_SV = logits_RV[rows].div_(temperature_S1)
    return draw(scaled_SV, top_p_S, torch.cat(variates))


def _listed(
    logits_RV: Tensor,
    orders: Sequence[Order],
    tokens_R: Tensor,
    best_R: Tensor,
    argmax_R: Tensor,
) -> tuple[Tensor, Tensor]:
    """The ids and logits of each row's generated token and likeliest tokens. Places
    that no order requests come last in every order: StepTable orders whole rows."""
    rows, width = len(orders), 1 + max(order.top for order in orders)
    ids_RK = torch.full(
        (rows, width), torch.iinfo(torch.int32).max, device=logits_RV.device
    )
    logits_RK = torch.full((rows, width), -torch.inf, device=logits_RV.device)
    ids_RK[:, 0] = tokens_R
    logits_RK[:, 0] = logits_RV.gather(1, tokens_R[:, None])[:, 0]
    if width > 1:
        ids_RK[:, 1], logits_RK[:, 1] = argmax_R, best_R
    for top in {order.top for order in orders if order.top > 1}:
        listed = [row for row, order in enumerate(orders) if order.top == top]
        logits_RK[listed, 1 : top + 1], ids_RK[listed, 1 : top + 1] = likeliest(
            logits_RV[listed], top
        )
    return ids_RK, logits_RK


def draw(logits_SV: Tensor, top_p_S: Tensor, uniform_S: Tensor) -> Tensor:
    """One token of each row's nucleus, shape [S]: the inverse of its distribution
    function at `uniform_S`, in [0, 1).

    `logits_SV` are the sampled rows after the temperature; `top_p_S` is in (0, 1]. The
    nucleus is the least number of likeliest tokens whose probabilities reach top_p.
    Tokens that tie with the last one belong to it too, and tokens count in the order of
    their ids. So a draw does not depend on the number of tokens that the code looked
    at.
    """
    tokens_S = torch.empty_like(top_p_S, dtype=torch.int64)
    whole_S = top_p_S >= 1
    if whole_S.any():  # no nucleus to look for
        tokens_S[whole_S] = _inverse(logits_SV[whole_S].softmax(1), uniform_S[whole_S])
    mass_S1 = logits_SV.logsumexp(1, keepdim=True)
    # rows whose nucleus has not been seen as a whole
    open_O = (~whole_S).nonzero()[:, 0]
    vocabulary = logits_SV.shape[1]
    look = min(_FIRST_LOOK, vocabulary)
    while len(open_O):
        every = len(open_O) == len(tokens_S)
        likeliest_OK = likeliest(logits_SV if every else logits_SV[open_O], look)
        chosen_O, seen_O = _look(
            *likeliest_OK, mass_S1[open_O], top_p_S[open_O], uniform_S[open_O]
        )
        if look == vocabulary:
            seen_O = torch.ones_like(seen_O)
        tokens_S[open_O[seen_O]] = chosen_O[seen_O]
        open_O = open_O[~seen_O]
        look = min(look * _GROWTH, vocabulary)
    return tokens_S


def _look(
    values_OK: Tensor,
    ids_OK: Tensor,
    mass_O1: Tensor,
    top_p_O: Tensor,
    uniform_O: Tensor,
) -> tuple[Tensor, Tensor]:
    """The tokens drawn among the likeliest ones, and whether these hold the whole
    nucleus, [O]."""
    probability_OK, goes_on_O = _nucleus(values_OK, mass_O1, top_p_O)
    ordered_OK, place_OK = ids_OK.sort(1)
    chosen_O = _inverse(probability_OK.gather(1, place_OK), uniform_O)
    return ordered_OK.gather(1, chosen_O[:, None])[:, 0], ~goes_on_O


def _nucleus(
    values_OK: Tensor, mass_O1: Tensor, top_p_O: Tensor
) -> tuple[Tensor, Tensor]:
    """The probabilities of the likeliest tokens, 0 outside the nucleus, and whether
    it may go on behind them, [O].

    `values_OK` are falling logits, `mass_O1` the log-sum of the whole row."""
    probability_OK = (values_OK - mass_O1).exp_()
    before_OK = probability_OK.cumsum(1) - probability_OK
    # The last of the nucleus. A row that is not finite has none, and must not end the
    # step of the others.
    last_O1 = (before_OK < top_p_O[:, None]).sum(1, keepdim=True).sub_(1).clamp_(min=0)
    floor_O1 = values_OK.gather(1, last_O1)
    probability_OK.masked_fill_(values_OK < floor_O1, 0)
    return probability_OK, ~(values_OK[:, -1:] < floor_O1)[:, 0]


def _inverse(weight_OK: Tensor, uniform_O: Tensor) -> Tensor:
    """The place at which each row's cumulated weights pass the share `uniform_O` of
    their sum, shape [O]."""
    cumulated_OK = weight_OK.cumsum(1, dtype=torch.float64)
    total_O1 = cumulated_OK[:, -1:]
    passed_O = (cumulated_OK <= uniform_O[:, None] * total_O1).sum(1)
    # rounding may make the product the whole sum
    return torch.minimum(passed_O, (cumulated_OK < total_O1).sum(1))


def likeliest(logits_RV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest logits of each row, falling, and their ids, both [R, count].

    They are in the `count` blocks with the highest peaks. The choice among tied tokens
    is arbitrary.
    """
    # the blocks would hold too much of the row to be worth it
    if 4 * count * _BLOCK >= logits_RV.shape[1]:
        values_RK, ids_RK = logits_RV.topk(count, 1)
        return values_RK, ids_RK
    blocks_RNB = _blocks(logits_RV)
    highest_RK = blocks_RNB.amax(2).topk(count, 1, sorted=False).indices
    among_RC = blocks_RNB.gather(
        1, highest_RK[:, :, None].expand(-1, -1, _BLOCK)
    ).flatten(1)
    values_RK, place_RK = among_RC.topk(count, 1)
    return (
        values_RK,
        highest_RK.gather(1, place_RK // _BLOCK) * _BLOCK + place_RK % _BLOCK,
    )


def _argmax(logits_RV: Tensor) -> tuple[Tensor, Tensor]:
    """The highest logit of each row and its id, of equals the lowest one; both [R]."""
    blocks_RNB = _blocks(logits_RV)
    block_R = blocks_RNB.amax(2).argmax(1)
    best_R, place_R = blocks_RNB[
        torch.arange(len(block_R), device=block_R.device), block_R
    ].max(1)
    return best_R, block_R * _BLOCK + place_R


def _blocks(logits_RV: Tensor) -> Tensor:
    """The rows cut into blocks, [R, N, _BLOCK]; the last one is filled up with
    tokens that are never the best."""
    missing = -logits_RV.shape[1] % _BLOCK
    if missing:
        logits_RV = torch.nn.functional.pad(
            logits_RV, (0, missing), value=float("-inf")
        )
    return logits_RV.reshape(len(logits_RV), -1, _BLOCK)


def rank_strictly() -> None:
    """From now on the V1 runner of this process ranks prompts strictly: 1 + the
    number of tokens that are likelier."""
    from vllm.v1.sample import sampler

    sampler.batched_count_greater_than = _strict_ranks


def ranks_in_place(logits_RV: Tensor, tokens_R: Tensor) -> Tensor:
    """The ranks that the V1 runner finds, with the count that is in place now."""
    from vllm.v1.sample import sampler

    found_R: Tensor = sampler.batched_count_greater_than(
        logits_RV, logits_RV.gather(1, tokens_R[:, None])
    )
    return found_R


def _strict_ranks(scores_RV: Tensor, values_R1: Tensor) -> Tensor:
    ranks: Tensor = (scores_RV > values_R1).sum(-1, dtype=torch.int32) + 1
    return ranks
