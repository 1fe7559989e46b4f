"""Our code inside vLLM's worker: it puts our parts into the model runner, swaps the
weights in place, compares them with the files, and checks ranks.

vLLM mixes `WorkerExtension` into its worker class (`worker_extension_cls`) and
`collective_rpc` calls its methods by name, in this process or, with tensor
parallelism, in each worker's.

On a CPU, vLLM 0.32's `reload_weights` silently leaves the packed copy of a tied
output head stale. The swapped engine then computes with the old output matrix.
`swap_weights` packs it again."""

import functools
import multiprocessing
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional

from evaluator.core.memory import peak_resident
from evaluator.engine.states import EngineHead
from evaluator.engine.vllm.verify.weights import Comparison, compare

_V2_RUNNER = "vllm.v1.worker.gpu.model_runner"  # the module of vLLM's V2 model runner
_PLANTED_ROWS = 8
# on either side of 0; a vocabulary has far more tokens, so that most values are tied
_PLANTED_VALUES = 40


class _Head:
    """`LogitsProcessor._apply_head` on a CPU: vLLM's casts the whole output head to
    float32 in each call, which takes a third of a small model's time."""

    def __init__(self) -> None:
        self._layer: Any = None
        self._weight_VH: Tensor | None = None  # its weight, cast

    def __call__(
        self, layer: Any, states_TH: Tensor, bias_V: Tensor | None = None
    ) -> Tensor:
        if self._weight_VH is None or self._layer is not layer:
            self._layer, self._weight_VH = layer, layer.weight.float()
        bias_V = None if bias_V is None else bias_V.float()
        return functional.linear(states_TH.float(), self._weight_VH, bias_V)


class WorkerExtension:
    """Methods that vLLM's worker gains. Names must not clash with the worker's own."""

    model_runner: Any
    reload_weights: Any

    def swap_weights(self, files: list[str]) -> list[str]:
        """Load the tensors of `files` into the running model. Returns the parameters
        that did not get a value."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        model = self.model_runner.get_model()
        expected = {name for name, _ in model.named_parameters()}
        loaded: set[str] = set()
        load_weights = model.load_weights

        def remember(weights: Iterable[tuple[str, Tensor]]) -> set[str]:
            loaded.update(load_weights(weights))
            return loaded

        model.load_weights = remember
        try:
            self.reload_weights(weights_iterator=_read(files))
        finally:
            del model.load_weights
        for module in model.modules():  # pack the output head again
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
        return sorted(expected - loaded)

    def note_head(self, checkpoint: str) -> None:
        """The runner's output head is that of `checkpoint`, which was just loaded."""
        runner = self.model_runner

        def logits(states_TH: Tensor) -> Tensor:
            states_TH = states_TH.to(runner.model_config.dtype)
            logits_TV: Tensor = runner.get_model().compute_logits(states_TH)
            return logits_TV

        runner.output_head = EngineHead(Path(checkpoint), logits)
        if runner.device.type == "cpu" and runner.model_config.dtype != torch.float32:
            for module in runner.get_model().modules():
                if getattr(module, "head_dtype", None) == torch.float32:
                    module._apply_head = _Head()

    def compare_weights(self, files: list[str]) -> Comparison:
        """Compare the weights in this worker with its part of the files."""
        return compare(self.model_runner.get_model(), files)

    def logits_dtype(self) -> str:
        """What this worker's output head computes its logits in: "float32",
        "bfloat16"."""
        from vllm.model_executor.layers.logits_processor import LogitsProcessor

        dtype = self.model_runner.model_config.dtype
        for module in self.model_runner.get_model().modules():
            if isinstance(module, LogitsProcessor):
                dtype = getattr(module, "head_dtype", None) or dtype
                break
        return str(dtype).removeprefix("torch.")

    def kv_scales(self) -> str | None:
        """The source of the scales of this worker's cache, as
        `LoadReport.kv_scales`."""
        layers = [
            each
            for each in self.model_runner.get_model().modules()
            if hasattr(each, "_k_scale_float")
        ]
        dtypes = {str(each.kv_cache_dtype) for each in layers} - {
            "auto",
            "float16",
            "bfloat16",
        }
        if not dtypes:
            return None
        for name in dtypes:
            if not name.startswith("fp8") or name.endswith("per_token_head"):
                return "calculated"
        for layer in layers:
            if not layer._k_scale_float == layer._v_scale_float == 1.0:
                return "from the checkpoint"
        return "none"

    def peak_memory(self) -> int:
        """Bytes: torch's peak of reserved memory on this worker's GPU, or the peak
        of its resident memory."""
        device = self.model_runner.device
        return (
            torch.cuda.max_memory_reserved(device)
            if device.type == "cuda"
            else peak_resident()
        )

    def end_with_parent(self) -> None:
        """From now on this worker's process ends when the engine's process ends, even
        in the middle of a step.

        vLLM only closes the queues of a worker whose parent was killed. A worker that
        waits for another worker in a step would never look at its queues. It would keep
        the GPU memory that the next engine needs.
        """
        parent = multiprocessing.parent_process()
        if parent is not None:

            def end_after() -> None:
                parent.join()
                os._exit(1)

            threading.Thread(
                target=end_after, daemon=True, name="end with parent"
            ).start()

    def wrong_rank(self) -> str | None:
        """The first wrong rank of a planted table, in words, as the runner ranks
        now; None if all are right.

        The table has ties, tokens with probability 0, and rows that are not
        contiguous. It is as wide as the vocabulary. torch counts on the CPU,
        independently of the checked code."""
        runner = self.model_runner
        # a CPU's runner is a subclass
        if any(kind.__module__ == _V2_RUNNER for kind in type(runner).__mro__):
            from evaluator.engine.vllm.v2.kernels import ranks_in_place
        else:
            from evaluator.engine.vllm.v1.sampler import ranks_in_place
        table_RV, tokens_R = _planted(runner.model_config.get_vocab_size())
        expected_R = (table_RV > table_RV.gather(1, tokens_R[:, None])).sum(1) + 1
        rows, vocabulary = table_RV.shape
        for dtype in dict.fromkeys((runner.model_config.dtype, torch.float32)):
            # one column more: rows that are not contiguous
            wide_RV = torch.empty(
                rows, vocabulary + 1, dtype=dtype, device=runner.device
            )
            planted_RV = wide_RV[:, :vocabulary].copy_(table_RV)
            ranks_R = ranks_in_place(planted_RV, tokens_R.to(runner.device)).cpu()
            wrong_W = (ranks_R != expected_R).nonzero()[:, 0].tolist()
            for row in wrong_W[:1]:
                return (
                    f"a token of rank {int(expected_R[row])} got {int(ranks_R[row])}"
                    f" (in {str(dtype).removeprefix('torch.')})"
                )
        return None

    def prepare_v1(self) -> None:
        """Put our sampler and scores into the V1 runner."""
        from evaluator.engine.vllm.v1.one_step import scores_of_prompts
        from evaluator.engine.vllm.v1.sampler import RowSampler, rank_strictly

        rank_strictly()
        runner = self.model_runner
        runner.sampler = RowSampler(runner)
        own = runner._get_prompt_logprobs_dict
        runner._get_prompt_logprobs_dict = functools.partial(
            scores_of_prompts, runner, own
        )

    def prepare_v2(self) -> None:
        """Put our ranks, scores and schedules into the V2 runner."""
        from evaluator.engine.vllm.v2.kernels import rank_strictly
        from evaluator.engine.vllm.v2.schedules import describe_as_captured
        from evaluator.engine.vllm.v2.scores import ComparingSampler, ScoringWorker

        rank_strictly()
        runner = self.model_runner
        if runner.device.type == "cuda":
            describe_as_captured()
        runner.prompt_logprobs_worker = ScoringWorker(
            runner.prompt_logprobs_worker, runner
        )
        runner.sampler = ComparingSampler(runner.sampler, runner)


def _planted(vocabulary: int) -> tuple[Tensor, Tensor]:
    """The planted table, exact in every dtype, and a token of each row."""
    draw = torch.Generator().manual_seed(0)
    shape = _PLANTED_ROWS, vocabulary
    drawn_RV = torch.randint(
        -_PLANTED_VALUES, _PLANTED_VALUES + 1, shape, generator=draw
    )
    table_RV = drawn_RV.float().div_(8)
    table_RV[0] = 1.0
    table_RV[1, ::2] = float("-inf")
    return table_RV, torch.randint(vocabulary, (_PLANTED_ROWS,), generator=draw)


def _read(files: list[str]) -> Iterator[tuple[str, Tensor]]:
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  (not a dict)
                yield name, opened.get_tensor(name)
