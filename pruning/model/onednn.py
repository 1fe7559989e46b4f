"""Float32 matrix products on a CPU by oneDNN, which torch carries beside MKL.

MKL keeps to AVX2 on processors that are not Intel's: half of what the machine can do where there is AVX-512, which
oneDNN uses (measured on two Zen 5 cores: 230 against 450 GFLOP/s). With AVX2 alone MKL is the faster of the two
(measured on an AMD EPYC core: 90 against 70 GFLOP/s), and keeps all products. How one is rounded depends on the order
in which its terms are added, so there are two ways to use oneDNN:

- `Linear`, for the forward passes, whose bits decide masks: it adds in MKL's order, each stretch of `_STRETCH` terms by
  itself and then the stretches, and for every new shape it computes the product by torch as well, once. Only a shape
  whose bits were all equal goes to oneDNN from then on: the result equals torch's on every machine.
- `add_second_moments`, for Hessians, which need to be equal within rounding only: it computes the upper half.

Neither measures how fast a product is: the same job gives the same bytes whatever else the machine is doing."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

_STRETCH = 192  # terms that MKL's AVX2 kernel adds up before it adds to the result
_SMALL = 1 << 22  # multiply-adds below which a product does not repay a second library
_FEW = 64  # tokens below which MKL may take another path
_BLOCK = 256  # columns of a symmetric product that are computed at once

# Shapes of a weight (columns, rows, biased, threads) -> token counts with torch's bits; None: they once were not.
_agreed: dict[tuple[int, int, bool, int], set[int] | None] = {}


def available() -> bool:
    """Whether this build of torch has oneDNN and the entry point to it that torch's own compiler uses."""
    return torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def faster() -> bool:
    """Whether oneDNN computes products: the processor's features decide, not the clock."""
    return available() and torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def times_transposed(left_MK: Tensor, right_NK: Tensor) -> Tensor:
    """left @ right^T by oneDNN, float32; `right_NK` may be packed."""
    return cast("Tensor", torch.ops.mkldnn._linear_pointwise(left_MK, right_NK, None, "none", [], ""))


class Linear(nn.Linear):
    """oneDNN's forward pass where its bits equal torch's; no gradients. Call `forget` after changing the weight."""

    def __init__(self, linear: nn.Linear) -> None:
        """Takes the place of `linear` and has its parameters."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self._packed: list[Any] = []

    def forget(self) -> None:
        """Drop oneDNN's layout of the weight, which has changed."""
        self._packed.clear()

    def forward(self, inputs: Tensor) -> Tensor:
        inputs_TI = inputs.reshape(-1, self.in_features)
        tokens, threads = len(inputs_TI), torch.get_num_threads()
        shape = self.in_features, self.out_features, self.bias is not None, threads
        agreed = _agreed.setdefault(shape, set())
        if agreed is None or tokens < _FEW or inputs_TI.numel() * self.out_features < _SMALL:
            return functional.linear(inputs, self.weight, self.bias)
        outputs_TO = self._by_stretches(inputs_TI)
        if tokens not in agreed:
            plain_TO = functional.linear(inputs_TI, self.weight, self.bias)
            if torch.equal(outputs_TO, plain_TO):
                agreed.add(tokens)
            else:
                _agreed[shape] = None
            outputs_TO = plain_TO
        return outputs_TO.view(*inputs.shape[:-1], self.out_features)

    def _by_stretches(self, inputs_TI: Tensor) -> Tensor:
        if not self._packed:
            parts = torch.split(self.weight.data, _STRETCH, dim=1)
            self._packed = [torch.ops.mkldnn._reorder_linear_weight(part.contiguous()) for part in parts]
        outputs_TO: Tensor | None = None
        for part_TK, packed in zip(torch.split(inputs_TI, _STRETCH, dim=1), self._packed, strict=True):
            product_TO = times_transposed(part_TK, packed)
            if outputs_TO is not None:
                outputs_TO += product_TO
            else:
                outputs_TO = product_TO if self.bias is None else product_TO.add_(self.bias)
        assert outputs_TO is not None
        return outputs_TO


def substitute(module: nn.Module) -> None:
    """Put a `Linear` in the place of every nn.Linear below `module`."""
    for child_name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, child_name, Linear(child))
        else:
            substitute(child)


def times_symmetric(left_OI: Tensor, symmetric_II: Tensor) -> Tensor:
    """left @ symmetric, by the faster library; its bits are not those of the other."""
    if left_OI.device.type == "cpu" and left_OI.dtype == torch.float32 and faster():
        return times_transposed(left_OI, symmetric_II)
    return left_OI @ symmetric_II


def add_second_moments(sum_II: Tensor, inputs_TI: Tensor) -> None:
    """Add the upper block triangle of x^T x to `sum_II`; `mirror` fills in the rest."""
    if sum_II.device.type == "cpu" and sum_II.dtype == torch.float32 and faster():
        # Stretches as short as MKL's: a running sum loses digits with its length.
        stretches_IT = [part_TI.T.contiguous() for part_TI in torch.split(inputs_TI, _STRETCH)]
        for start in range(0, len(sum_II), _BLOCK):
            for part_IT in stretches_IT:
                part_BT = part_IT[start : start + _BLOCK]
                sum_II[start : start + _BLOCK, start:] += times_transposed(part_BT, part_IT[start:])
        return
    for start in range(0, len(sum_II), _BLOCK):
        part_TB = inputs_TI[:, start : start + _BLOCK]
        sum_II[start : start + _BLOCK, start:].addmm_(part_TB.T, inputs_TI[:, start:])


def mirror(upper_II: Tensor) -> Tensor:
    """Copy what lies above the diagonal blocks to below them, in place."""
    for start in range(_BLOCK, len(upper_II), _BLOCK):
        upper_II[start : start + _BLOCK, :start] = upper_II[:start, start : start + _BLOCK].T
    return upper_II
