"""The layer-by-layer driver: each decoder layer is read, observed, pruned, written, run
again and forgotten.

Statistics of a layer are gathered on inputs that the pruned layers before it produced.
One dense pass observes all its Linear modules at once. Then all of them are pruned,
and the layer runs again for the next one's inputs. Memory holds one
layer's weights and statistics, and the calibration's activations (or one batch of
them).

Where the Hessians of many experts would fill the memory, `portions` splits a layer:
some experts at a time, the rest last. No expert reads another's output, so the outcome
is that of one pass. `owl` divides the sparsity over layers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from evaluator.checkpoints.manifests import MatrixRecord
from evaluator.core.errors import InputError, JobError
from pruning.config import PruneConfig
from pruning.layers.flow import Flow, Gathered
from pruning.methods import METHODS
from pruning.methods.base import Method, Statistic
from pruning.methods.masks import check_counts, count_zeros
from pruning.methods.patterns import Pattern, Unstructured
from pruning.methods.scores import Wanda
from pruning.model.architectures import Routed
from pruning.model.decoder import Decoder, Progress

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
    shares = []
    for index, layer in flow.layers():
        norms: dict[str, Tensor] = {}
        for gathered in flow.collect(index, layer, [Statistic.COLUMN_NORMS]):
            norm_sq_I = gathered.take()[Statistic.COLUMN_NORMS]
            if not bool(torch.isfinite(norm_sq_I).all()):
                raise JobError(
                    f"layer {index}, input of {gathered.members[0]}: activations are"
                    " not finite"
                )
            norms |= dict.fromkeys(gathered.members, norm_sq_I)
        score, linears = Wanda().score, decoder.linears(index)
        size, total, above = 0, 0.0, 0
        for name, linear in linears.items():
            size += linear.weight.numel()
            total += score(linear.weight.data, norms[name]).double().sum().item()
        bar = OWL_TIMES * total / size
        for name, linear in linears.items():
            above += int((score(linear.weight.data, norms[name]) > bar).sum())
        shares.append(above / size)
    return shares


# Called with each pruned matrix, in the checkpoint's dtype: (tensor name, weight_OI on
# the CPU).
Writer = Callable[[str, Tensor], None]


@dataclass(frozen=True, slots=True)
class LayerPruner:
    """A job that sets weights to zero, layer by layer: collect, prune, pass on.
    Raises JobError for a matrix that is not as sparse as requested, InputError for one
    that its dtype cannot hold."""

    config: PruneConfig
    decoder: Decoder
    flow: Flow | None  # None: no text
    write: Writer

    @property
    def method(self) -> Method:
        method = METHODS[self.config.method]
        assert isinstance(method, Method), method
        return method

    def run(self, patterns: Sequence[Pattern], report: Progress) -> list[MatrixRecord]:
        """Prune every layer by its pattern."""
        kinds = [] if self.method.statistic is None else [self.method.statistic]
        # an allocation may have looked at a text that the method does not need
        flow = self.flow if kinds else None
        records: list[MatrixRecord] = []
        for index, layer in (self.decoder if flow is None else flow).layers(report):
            for modules in portions(self.decoder.linears(index), kinds):
                inputs = [Gathered(name) for name in modules]
                if flow is not None:
                    inputs = flow.collect(index, layer, kinds, modules)
                while inputs:  # each is forgotten when it is pruned
                    records += self._prune(index, inputs.pop(0), patterns[index])
        return records

    def _prune(
        self, index: int, gathered: Gathered, pattern: Pattern
    ) -> Iterator[MatrixRecord]:
        """Prune, write and put back the matrices that read one input."""
        linears = self.decoder.linears(index)
        weights_OI = (linears[name].weight.data for name in gathered.members)
        where = self.decoder.tensor_name(index, f"{gathered.members[0]}.weight")
        kind = self.method.statistic
        own = None if kind is None else gathered.take()[kind]
        group = self.config.comparison
        pruned = self.method.prune(weights_OI, own, pattern, group, where)
        del own  # it can be gigabytes
        for name, matrix in zip(gathered.members, pruned, strict=True):
            dtype = self.decoder.checkpoint_dtype(index, name)
            tensor = self.decoder.tensor_name(index, f"{name}.weight")
            # a weight that was or became -0.0 is +0.0
            stored_OI = matrix.weight_OI.to(dtype) + 0
            if not bool(stored_OI.isfinite().all()):
                raise InputError(
                    f"{self.config.source}: tensor {tensor}: pruned, it has weights to"
                    f" {matrix.weight_OI.abs().max():.3g}, which {dtype} does not hold;"
                    " convert the checkpoint to bfloat16 or float32"
                )
            # later layers see exactly what was written
            self.decoder.replace(index, name, stored_OI)
            stored_OI = stored_OI.cpu()
            self.write(tensor, stored_OI)
            rows, columns = stored_OI.shape
            requested = self.method.taken(rows, columns, pattern, group)
            zeros = count_zeros(stored_OI)
            check_counts(tensor, matrix.mask_OI, requested=requested, zeros=zeros)
            yield MatrixRecord(
                name=tensor,
                rows=rows,
                columns=columns,
                requested=requested,
                zeros=zeros,
                tokens=gathered.tokens,
                dead_columns=None if gathered.tokens == 0 else matrix.dead_columns,
                damping=matrix.damping,
                solver_dtype=matrix.solver_dtype,
            )


def leave_dense(decoder: Decoder) -> list[MatrixRecord]:
    """The records of a job that prunes nothing: they count the zeros of the dense
    model."""
    records = []
    for name, (rows, columns) in decoder.matrices().items():
        zeros = count_zeros(decoder.checkpoint.tensors[name].read())
        record = MatrixRecord(
            name=name, rows=rows, columns=columns, requested=0, zeros=zeros
        )
        records.append(record)
    return records


HESSIAN_BYTES = 8 << 30  # of experts whose statistics are held at once
_ENTRY = 4  # bytes, float32


def portions(
    linears: Mapping[str, nn.Linear],
    kinds: Sequence[Statistic],
    limit: int = HESSIAN_BYTES,
) -> list[dict[str, nn.Linear]]:
    """A layer's modules in the order of observation; each portion takes its own
    pass."""
    experts: dict[str, dict[str, nn.Linear]] = {}
    rest: dict[str, nn.Linear] = {}
    for name, module in linears.items():
        if isinstance(module, Routed):
            experts.setdefault(name.rpartition(".")[0], {})[name] = module
        else:
            rest[name] = module
    sizes = []  # of each expert's Hessians: gate and up read the same input
    for modules in experts.values():
        widths = {module.in_features for module in modules.values()}
        sizes.append(sum(width**2 * _ENTRY for width in widths))
    if Statistic.HESSIAN not in kinds or sum(sizes) <= limit:
        return [dict(linears)]
    parts: list[dict[str, nn.Linear]] = []
    room = 0
    for modules, size in zip(experts.values(), sizes, strict=True):
        if size > room:
            parts.append({})
            room = limit
        parts[-1] |= modules
        room -= size
    return [*parts, rest]
