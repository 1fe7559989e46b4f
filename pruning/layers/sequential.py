"""The layer-by-layer driver: each decoder layer is read, observed, pruned, written, run
again and forgotten.

Statistics of a layer are gathered on inputs that the pruned layers before it produced.
One dense pass observes all its Linear modules at once. Then all of them are pruned,
perhaps repaired, and the layer runs again for the next one's inputs. Memory holds one
layer's weights and statistics, and the calibration's activations (or one batch of
them).

Where the Hessians of many experts would fill the memory, `portions` splits a layer:
some experts at a time, the rest last. No expert reads another's output, so the outcome
is that of one pass. `owl` divides the sparsity over layers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from evaluator.checkpoints.manifests import MatrixRecord
from evaluator.core.errors import InputError, JobError
from pruning.config import PruneConfig
from pruning.layers.flow import Flow, Observer
from pruning.layers.repair import LeastSquares
from pruning.methods import METHODS
from pruning.methods.base import Method, Statistic
from pruning.methods.masks import check_counts, count_zeros
from pruning.methods.patterns import Pattern, Unstructured
from pruning.methods.scores import Wanda
from pruning.model.architectures import Routed
from pruning.model.decoder import Decoder

OWL_TIMES = 5.0  # an outlier's score is more than this many times the mean of its layer
# a layer's ratio differs from the mean of all by less than twice this
OWL_SPREAD = 0.08


def owl(shares: Sequence[float], ratio: float) -> list[Unstructured]:
    """A ratio per layer: layers with more outliers keep more, and the mean is
    `ratio` (Yin et al., OWL, section 3).

    `shares` are scaled to a spread of 2 * OWL_SPREAD and shifted to a mean of the
    density 1 - ratio (all equal: uniform). Raises InputError if a ratio leaves [0,
    1)."""
    low, high = min(shares), max(shares)
    scale = 2 * OWL_SPREAD / (high - low) if high > low else 0.0
    scaled = [(share - low) * scale for share in shares]
    mean = sum(scaled) / len(scaled)
    ratios = [ratio - (value - mean) for value in scaled]
    for layer, value in enumerate(ratios):
        if not 0 <= value < 1:
            raise InputError(
                f"sparsity: {ratio} with allocation 'owl' gives layer {layer} the ratio"
                f" {value:.4f}"
            )
    return [Unstructured(value) for value in ratios]


def outlier_shares(decoder: Decoder, flow: Flow) -> list[float]:
    """Each dense layer's share of Wanda scores above OWL_TIMES its mean. Raises
    JobError if not finite."""
    shares: list[float] = []
    score = Wanda().score
    with torch.no_grad():
        flow.start()
        for index in range(len(decoder)):
            layer = decoder.load(index)
            observer = flow.observe(index, layer, [Statistic.COLUMN_NORMS])
            norms: dict[str, Tensor] = {}
            for leader, members in observer.groups.items():
                norm_sq_I = observer.take(leader)[Statistic.COLUMN_NORMS]
                if not bool(torch.isfinite(norm_sq_I).all()):
                    raise JobError(
                        f"layer {index}, input of {leader}: activations are not finite"
                    )
                norms |= dict.fromkeys(members, norm_sq_I)
            weights = {
                name: module.weight.data
                for name, module in decoder.linears(index).items()
            }
            size = sum(weight_OI.numel() for weight_OI in weights.values())
            total = sum(
                score(weight_OI, norms[name]).double().sum().item()
                for name, weight_OI in weights.items()
            )
            bar = OWL_TIMES * total / size
            above = sum(
                int((score(weight_OI, norms[name]) > bar).sum())
                for name, weight_OI in weights.items()
            )
            shares.append(above / size)
            flow.advance(index, layer)
            decoder.release(index)
    return shares


# Called with each pruned matrix, in the checkpoint's dtype: (tensor name, weight_OI on
# the CPU).
Writer = Callable[[str, Tensor], None]
Progress = Callable[[int, int], None]  # called with the layers that are done, and all


def prune_layers(
    config: PruneConfig,
    decoder: Decoder,
    patterns: list[Pattern],
    flow: Flow | None,
    write: Writer,
    report: Progress,
) -> list[MatrixRecord]:
    """Prune every layer; returns records of matrices. Raises JobError if not as
    sparse as requested, or not finite."""
    own = _method(config).statistic
    statistics = [] if own is None else [own]
    if config.repair != "none" and own is not Statistic.HESSIAN:
        statistics.append(Statistic.HESSIAN)
    outcomes: list[MatrixRecord] = []
    with torch.no_grad():
        if flow is not None and statistics:
            flow.start()
        for index, pattern in enumerate(patterns):
            layer = decoder.load(index)
            if flow is None or not statistics:
                outcomes += _prune_layer(config, decoder, index, pattern, None, write)
            else:
                heaviest = (
                    Statistic.HESSIAN
                    if Statistic.HESSIAN in statistics
                    else statistics[0]
                )
                for modules in portions(decoder.linears(index), heaviest):
                    observer = flow.observe(index, layer, statistics, modules)
                    outcomes += _prune_layer(
                        config, decoder, index, pattern, observer, write
                    )
                    del observer
                flow.advance(index, layer)
            decoder.release(index)
            report(index + 1, len(decoder))
    return outcomes


def _prune_layer(
    config: PruneConfig,
    decoder: Decoder,
    index: int,
    pattern: Pattern,
    observer: Observer | None,
    write: Writer,
) -> Iterator[MatrixRecord]:
    """Prune, write and put back every matrix of a loaded layer; those that read the
    same input at once."""
    method, linears = _method(config), decoder.linears(index)
    group, own_kind = config.comparison, method.statistic
    for leader, members in (
        {name: [name] for name in linears} if observer is None else observer.groups
    ).items():
        tokens = None if observer is None else observer.tokens.get(leader)
        where = decoder.tensor_name(index, f"{leader}.weight")
        known = {} if observer is None else observer.take(leader)
        least_squares = None
        if config.repair != "none" and tokens != 0:
            hessian_II = known[Statistic.HESSIAN]  # the method may overwrite its own
            least_squares = LeastSquares(
                hessian_II.clone() if own_kind is Statistic.HESSIAN else hessian_II,
                where,
            )
            del hessian_II
        own = None if own_kind is None else known.pop(own_kind)
        del known
        pruned = method.prune(
            (linears[name].weight.data for name in members), own, pattern, group, where
        )
        del own
        for name, matrix in zip(members, pruned, strict=True):
            dtype = decoder.checkpoint_dtype(index, name)
            repaired = (
                None
                if least_squares is None
                else least_squares.repair(matrix, linears[name].weight.data, dtype)
            )
            stored_OI = (
                matrix.weight_OI.to(dtype) if repaired is None else repaired.weight_OI
            )
            stored_OI = stored_OI + 0  # a weight that was or became -0.0 is +0.0
            # later layers see exactly what was written
            decoder.replace(index, name, stored_OI)
            tensor = decoder.tensor_name(index, f"{name}.weight")
            written_OI = stored_OI.cpu()
            write(tensor, written_OI)
            rows, columns = stored_OI.shape
            requested, zeros = (
                method.taken(rows, columns, pattern, group),
                count_zeros(written_OI),
            )
            check_counts(tensor, matrix.mask_OI, requested=requested, zeros=zeros)
            yield MatrixRecord(
                name=tensor,
                rows=rows,
                columns=columns,
                requested=requested,
                zeros=zeros,
                tokens=tokens,
                dead_columns=None if tokens == 0 else matrix.dead_columns,
                damping=matrix.damping,
                solver_dtype=matrix.solver_dtype,
                pruned_error=None if repaired is None else repaired.error_before,
                repaired_error=None if repaired is None else repaired.error,
                repair_steps=None if repaired is None else repaired.steps,
            )


def _method(config: PruneConfig) -> Method:
    method = METHODS[config.method]
    assert isinstance(method, Method), config.method
    return method


def leave_dense(decoder: Decoder) -> list[MatrixRecord]:
    """The records of a job that prunes nothing: they count the zeros of the dense
    model."""
    tensors = decoder.checkpoint.tensors
    return [
        MatrixRecord(
            name=name,
            rows=rows,
            columns=columns,
            requested=0,
            zeros=count_zeros(tensors[name].read()),
        )
        for name, (rows, columns) in decoder.matrices().items()
    ]


HESSIAN_BYTES = 8 << 30  # of experts whose statistics are held at once
_ENTRY = 4  # bytes, float32


def portions(
    linears: Mapping[str, nn.Linear], statistic: Statistic, limit: int = HESSIAN_BYTES
) -> list[dict[str, nn.Linear]]:
    """A layer's modules in the order of observation; each portion takes its own
    pass."""
    experts: dict[str, dict[str, nn.Linear]] = {}
    for name, module in linears.items():
        if isinstance(module, Routed):
            experts.setdefault(name.rpartition(".")[0], {})[name] = module
    sizes = {  # of an expert's Hessians: gate and up read the same input
        name: sum(
            width**2 * _ENTRY
            for width in {module.in_features for module in modules.values()}
        )
        for name, modules in experts.items()
    }
    if statistic is not Statistic.HESSIAN or sum(sizes.values()) <= limit:
        return [dict(linears)]
    found: list[dict[str, nn.Linear]] = []
    room = 0
    for name, modules in experts.items():
        if sizes[name] > room:
            found.append({})
            room = limit
        found[-1] |= modules
        room -= sizes[name]
    return [
        *found,
        {
            name: module
            for name, module in linears.items()
            if not isinstance(module, Routed)
        },
    ]
