"""The fused norms against vLLM's own passes of torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("vllm")

from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
from vllm.platforms import current_platform

from evaluator.engine.vllm.v1.norms import fuse_norms

WIDTH = 80
pytestmark = pytest.mark.skipif(not current_platform.is_cpu(), reason="the kernel of vLLM's CPU build")


def norm_of(kind: type = RMSNorm, dtype: torch.dtype = torch.float32, width: int = WIDTH, **how: int) -> nn.Module:
    current_platform.import_kernels()
    with set_current_vllm_config(VllmConfig()):
        made = kind(width, eps=1e-5, **how).to(dtype)
    nn.init.uniform_(made.weight, 0.5, 1.5)
    return made


def hidden(*shape: int) -> torch.Tensor:
    return 30 * torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def close(ours: torch.Tensor, slow: torch.Tensor) -> bool:
    return ours.shape == slow.shape and torch.allclose(ours, slow, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("rows", [1, 5, 128])
def test_a_fused_norm_is_that_of_torch(rows):
    norm = norm_of()
    x_TH, residual_TH = hidden(rows, WIDTH), hidden(rows, WIDTH, 1)[..., 0]
    slow = norm.forward_native(x_TH.clone())
    slow_sum, slow_residual = norm.forward_native(x_TH.clone(), residual_TH.clone())
    assert fuse_norms(nn.Sequential(norm)) == 1
    kept = x_TH.clone()
    assert close(norm(x_TH), slow)
    assert torch.equal(x_TH, kept)  # without a residual nothing is written in place
    ours, residual = norm(x_TH.clone(), residual_TH.clone())
    assert close(ours, slow_sum)
    assert close(residual, slow_residual)


def test_heads_that_are_parts_of_wider_rows_are_normed_alone():
    norm = norm_of()
    heads_TNH = hidden(6, 5 * WIDTH)[:, WIDTH : 3 * WIDTH].view(6, 2, WIDTH)
    assert not heads_TNH.is_contiguous()
    slow = norm.forward_native(heads_TNH.clone())
    residual = heads_TNH.clone()
    slow_pair = norm.forward_native(heads_TNH.clone(), residual.clone())
    fuse_norms(nn.Sequential(norm))
    assert close(norm(heads_TNH), slow)
    assert all(close(one, other) for one, other in zip(norm(heads_TNH, residual), slow_pair, strict=True))


def test_other_norms_stay_as_they_are():
    others = [norm_of(dtype=torch.bfloat16), norm_of(GemmaRMSNorm), norm_of(var_hidden_size=WIDTH // 2)]
    others.append(norm_of(width=72))  # the kernel takes whole vectors only
    assert fuse_norms(nn.Sequential(*others)) == 0
