"""The V2 runner's kernel for strict ranks, compared with a count in torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.engines import only_v2
from tests.support.v2 import HOOK

pytestmark = only_v2

# Triton's compiler needs no GPU. vLLM hides Triton where there is none, so a stand-in
# hands it out.
_COMPILE = """
import importlib.util, sys, types
import triton, triton.language
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
sys.modules["vllm"], stand_in = types.ModuleType("vllm"), types.ModuleType("vllm.triton_utils")
stand_in.triton, stand_in.tl = triton, triton.language
sys.modules["vllm.triton_utils"] = stand_in
spec = importlib.util.spec_from_file_location("ranks", sys.argv[1])
ranks = importlib.util.module_from_spec(spec)
sys.modules["ranks"] = ranks
spec.loader.exec_module(ranks)
for logits in ("*fp32", "*bf16"):
    types_of = {"output_ptr": "*i64", "logits_ptr": logits, "logits_stride": "i32", "token_ids_ptr": "*i64"}
    types_of |= {"vocab_size": "i32", "BLOCK_SIZE": "constexpr"}
    source = ASTSource(ranks.strict_ranks_kernel, types_of, constexprs={"BLOCK_SIZE": 8192})
    assert "cubin" in triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm
"""


def ranks_of(table, tokens):
    from evaluator.engine.vllm.v2 import kernels

    device = "cuda" if torch.cuda.is_available() else "cpu"
    kernels.rank_strictly()
    wide = torch.empty(
        table.shape[0], table.shape[1] + 3, dtype=table.dtype, device=device
    )
    given = wide[:, : table.shape[1]].copy_(table)  # rows that do not lie side by side
    return kernels.ranks_in_place(given, tokens.to(device)).tolist()


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str
)
@pytest.mark.parametrize("vocabulary", [1, 384, 8192, 8193])
def test_rank_counts_likelier_tokens(dtype, vocabulary):
    """A rank is one more than the number of likelier tokens."""
    draw = torch.Generator().manual_seed(1)
    # most values are tied
    table = torch.randint(-40, 41, (6, vocabulary), generator=draw).div(8).to(dtype)
    table[0] = 1.0
    table[1, ::2] = float("-inf")
    tokens = torch.randint(vocabulary, (6,), generator=draw)
    tokens[1] = 0
    own = table.gather(1, tokens[:, None])
    assert ranks_of(table, tokens) == [
        1 + int((row > value).sum()) for row, value in zip(table, own, strict=True)
    ]


def test_row_without_token_ranks_first():
    """A row without a token or without numbers ranks first."""
    table = torch.zeros(4, 5)
    table[3] = float("nan")
    assert ranks_of(table, torch.tensor([-1, 5, 2**40, 2])) == [1, 1, 1, 1]
    assert ranks_of(table[:0], torch.empty(0, dtype=torch.int64)) == []


def test_the_kernel_compiles_for_a_gpu(tmp_path):
    from evaluator.engine.vllm import v2

    environment = {
        name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"
    }
    paths = os.pathsep.join(each for each in sys.path if each and each != str(HOOK))
    environment |= {"PYTHONPATH": paths, "TRITON_CACHE_DIR": str(tmp_path)}
    command = [
        sys.executable,
        "-c",
        _COMPILE,
        str(Path(v2.__file__).with_name("kernels.py")),
    ]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
