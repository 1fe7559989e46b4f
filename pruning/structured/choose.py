"""Which parts go: a walk through the dense layers, with the calibration text."""

import math
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from evaluator.core.errors import JobError
from pruning.config import PruneConfig
from pruning.layers.flow import Flow
from pruning.methods.base import Statistic
from pruning.methods.patterns import Share
from pruning.model.decoder import Decoder
from pruning.structured.cut import OUTPUT, Cut, Within, columns_of, first_cut, parts_of


def choose(config: PruneConfig, decoder: Decoder, flow: Flow | None, progress: Callable[[int, int], None]) -> Cut:
    """The parts to take out; `flow`: calibration, or None. Raises JobError if not finite."""
    if flow is None:
        return first_cut(decoder, config.removed)
    count = len(first_cut(decoder, config.removed).gone[0])
    with torch.no_grad():
        flow.start()
        assert isinstance(config.removed, Share)  # a list needs no text
        unit = config.removed.unit
        if unit == "layers":
            return _stillest(decoder, flow, count, progress)
        return _lowest(unit, decoder, flow, count, progress)


def _stillest(decoder: Decoder, flow: Flow, count: int, progress: Callable[[int, int], None]) -> Cut:
    """The block of layers with the smallest angular distance; see `pruning.methods.removals`."""
    states = deque([flow.ends()], maxlen=count + 1)
    distances: list[float] = []
    for index in range(len(decoder)):
        layer = decoder.load(index)
        flow.advance(index, layer, last=True)
        decoder.release(index)
        states.append(flow.ends())
        if len(states) == count + 1:
            distances.append(angular_distance(states[0], states[-1]))
        progress(index + 1, len(decoder))
    if not all(map(math.isfinite, distances)):
        raise JobError("the residual stream is zero at a calibration text's last token: no angle can be measured")
    first = distances.index(min(distances))
    gone = tuple(range(first, first + count))
    return Cut(unit="layers", of=len(decoder), gone=(gone,), distances=tuple(distances))


def angular_distance(one_NH: Tensor, other_NH: Tensor) -> float:
    """1/pi arccos of the cosine between two states of N texts, their mean (Gromov et al., eq. 7); NaN for a zero."""
    cosine_N = (one_NH * other_NH).sum(dim=1) / (one_NH.norm(dim=1) * other_NH.norm(dim=1))
    return float(cosine_N.clamp(-1, 1).arccos().mean()) / math.pi


def _lowest(unit: Within, decoder: Decoder, flow: Flow, count: int, progress: Callable[[int, int], None]) -> Cut:
    """In each layer the parts with the lowest scores, which the layers before it, already cut, decide too.

    Wanda-sp: An et al., Fluctuation-based Adaptive Structured Pruning for Large Language Models (arXiv:2312.11983), and
    its published code (`prune_wanda_sp`): |W| * ||x|| of the matrix that adds a part's result to the residual stream,
    averaged over rows, summed over the part's columns."""
    output, parts = OUTPUT[unit], parts_of(decoder, unit)
    width = columns_of(decoder, unit)[output][0].width
    gone: list[tuple[int, ...]] = []
    for index in range(len(decoder)):
        layer = decoder.load(index)
        observer = flow.observe(index, layer, [Statistic.COLUMN_NORMS])
        leader = next(leader for leader, members in observer.groups.items() if output in members)
        norm_sq_I = observer.take(leader)[Statistic.COLUMN_NORMS]
        del observer
        weight_OI = decoder.linears(index)[output].weight.data
        score_I = weight_OI.float().abs().mean(dim=0) * norm_sq_I.float().sqrt()
        if not bool(score_I.isfinite().all()):
            raise JobError(f"{decoder.tensor_name(index, output)}: the activations that it reads are not finite")
        score_P = score_I.double().view(parts, width).sum(dim=1)
        taken_P = torch.sort(score_P, stable=True).indices[:count]  # of equals the first
        # A zero column hides its input from later layers, as if the part were gone.
        zeroed_OI = weight_OI.clone()
        zeroed_OI.view(-1, parts, width)[:, taken_P] = 0
        decoder.replace(index, output, zeroed_OI)
        flow.advance(index, layer)
        decoder.release(index)
        gone.append(tuple(sorted(taken_P.tolist())))
        progress(index + 1, len(decoder))
    return Cut(unit=unit, of=parts, gone=tuple(gone))
