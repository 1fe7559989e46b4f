"""Our code inside vLLM's worker: it swaps the weights in place, compares them with
the files, and checks ranks.

vLLM mixes `WorkerExtension` into its worker class (`worker_extension_cls`) and
`collective_rpc` calls its methods by name, in this process or, with tensor
parallelism, in each worker's.

On a CPU, vLLM 0.32's `reload_weights` silently leaves the packed copy of a tied
output head stale. The swapped engine then computes with the old output matrix.
`swap_weights` packs it again."""

import contextlib
import functools
import multiprocessing
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from safetensors import safe_open

from evaluator.checkpoints.matrices import Tensors
from evaluator.core.memory import peak_resident
from evaluator.engine.vllm.verify.dequantised import (
    computes_with,
    computes_with_experts,
    quantised_sources,
)
from evaluator.engine.vllm.verify.sharding import pieces, rows_held, sampled

_FLOAT32_TOLERANCE = 1.0e-4  # relative; packed kernels sum in another order
_LOW_PRECISION_TOLERANCE = 3.0e-2
_V2_RUNNER = "vllm.v1.worker.gpu.model_runner"  # the module of vLLM's V2 model runner
_PLANTED_ROWS = 8
# on either side of 0; a vocabulary has far more tokens, so that most values are tied
_PLANTED_VALUES = 40
_PLAIN = (torch.float32, torch.bfloat16, torch.float16)


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

        def remember(weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
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

    def compare_weights(self, files: list[str]) -> tuple[int, list[str], list[str]]:
        """Compare a sample of every matrix and vector in this worker with the files.

        Returns how many matrices were compared, the names of those that differ
        (vectors as well), and of matrices that cannot be compared. The comparison
        uses a matrix's products if vLLM packed it for a CPU kernel and dropped the
        original, if it is quantised, or for experts. With tensor parallelism, this
        worker's shard is compared with its part of the files."""
        model = self.model_runner.get_model()
        packed: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
        compared = 0
        differing: list[str] = []
        not_compared: list[str] = []
        with contextlib.ExitStack() as stack, torch.no_grad():
            opened = [
                stack.enter_context(safe_open(file, framework="pt")) for file in files
            ]
            tensors = {
                name: file.get_slice(name)
                for file in opened
                for name in file.keys()  # noqa: SIM118  (not a dict)
            }
            for name, module in model.named_modules():
                matrices = quantised_sources(name, packed, tensors)
                if matrices or (
                    hasattr(module, "w13_weight") and hasattr(module, "w2_weight")
                ):
                    if matrices:
                        what, held = "product", "weight"
                        computed = computes_with(
                            module, matrices, self.model_runner.model_config.dtype
                        )
                    else:
                        what, held = "experts", "w13_weight"
                        computed = computes_with_experts(name, module, tensors)
                    compared += computed is not None
                    if computed is False:
                        differing.append(f"the {what} of {name}")
                    elif computed is None:
                        not_compared.append(f"{name}.{held}")
                    continue
                for own, parameter in module.named_parameters(recurse=False):
                    is_weight = own == "weight"
                    sources = _sources(name, packed, tensors) if is_weight else []
                    same = (
                        _same(module, [tensors[source] for source in sources])
                        if sources
                        else None
                    )
                    is_vector = parameter.ndim < 2 and not (
                        is_weight and _is_packed(module)
                    )
                    compared += same is not None and not is_vector
                    if same is False:
                        differing.append(f"{name}.{own}")
                    elif same is None and not is_vector:
                        not_compared.append(f"{name}.{own}")
        return compared, differing, not_compared

    def logits_dtype(self) -> str:
        """What this worker's output head computes its logits in: "float32",
        "bfloat16"."""
        from vllm.model_executor.layers.logits_processor import LogitsProcessor

        processors = (
            each
            for each in self.model_runner.get_model().modules()
            if isinstance(each, LogitsProcessor)
        )
        own = getattr(next(processors, None), "head_dtype", None)
        return str(own or self.model_runner.model_config.dtype).removeprefix("torch.")

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
        if any(
            not name.startswith("fp8") or name.endswith("per_token_head")
            for name in dtypes
        ):
            return "calculated"
        plain = all(
            each._k_scale_float == each._v_scale_float == 1.0 for each in layers
        )
        return "none" if plain else "from the checkpoint"

    def quantised_kernels(self) -> list[str]:
        """vLLM's names of the kernels that compute with this worker's quantised
        matrices."""
        found: set[str] = set()
        for module in self.model_runner.get_model().modules():
            for holder in (
                getattr(module, "scheme", None),
                getattr(module, "quant_method", None),
            ):
                held: Iterable[Any] = (
                    vars(holder).values() if hasattr(holder, "__dict__") else ()
                )
                found |= {
                    type(each).__name__
                    for each in held
                    if type(each).__name__.endswith("Kernel")
                }
        return sorted(found)

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
        vocabulary = runner.model_config.get_vocab_size()
        draw = torch.Generator().manual_seed(0)
        drawn_RV = torch.randint(
            -_PLANTED_VALUES,
            _PLANTED_VALUES + 1,
            (_PLANTED_ROWS, vocabulary + 1),
            generator=draw,
        )
        table_RV = drawn_RV.float().div_(8)[:, :vocabulary]  # exact in every dtype
        table_RV[0] = 1.0
        table_RV[1, ::2] = float("-inf")
        tokens_R = torch.randint(vocabulary, (_PLANTED_ROWS,), generator=draw)
        expected_R = (table_RV > table_RV.gather(1, tokens_R[:, None])).sum(1) + 1
        for dtype in dict.fromkeys((runner.model_config.dtype, torch.float32)):
            wide_RV = torch.empty(drawn_RV.shape, dtype=dtype, device=runner.device)
            planted_RV = wide_RV[:, :vocabulary].copy_(table_RV)
            found_R = ranks_in_place(planted_RV, tokens_R.to(runner.device)).cpu()
            for found, expected in zip(
                found_R.tolist(), expected_R.tolist(), strict=True
            ):
                if found != expected:
                    return (
                        f"a token of rank {expected} got {found} (in"
                        f" {str(dtype).removeprefix('torch.')})"
                    )
        return None

    def prepare_v1(self) -> None:
        """Put our sampler and scores into the V1 runner."""
        from evaluator.engine.vllm.v1.one_step import scores_of_prompts
        from evaluator.engine.vllm.v1.sampler import RowSampler, rank_strictly

        rank_strictly()
        runner = self.model_runner
        runner.sampler = RowSampler()
        own = runner._get_prompt_logprobs_dict
        runner._get_prompt_logprobs_dict = functools.partial(
            scores_of_prompts, runner, own
        )

    def prepare_v2(self) -> None:
        """Put our ranks, scores and schedules into the V2 runner, and have its top-p
        compiled."""
        from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

        from evaluator.engine.vllm.v2.kernels import rank_strictly, warm_top_p
        from evaluator.engine.vllm.v2.schedules import describe_as_captured
        from evaluator.engine.vllm.v2.scores import ComparingSampler, ScoringWorker

        rank_strictly()
        runner = self.model_runner
        if runner.device.type == "cuda":
            describe_as_captured()
        runner.prompt_logprobs_worker = ScoringWorker(runner.prompt_logprobs_worker)
        warm_top_p(runner, apply_top_k_top_p)
        runner.sampler = ComparingSampler(runner.sampler)


def _read(files: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  (not a dict)
                yield name, opened.get_tensor(name)


def _sources(module: str, packed: dict[str, list[str]], tensors: Tensors) -> list[str]:
    """The tensors of the files that form the rows of a module's weight, in order;
    empty if there are none."""
    if f"{module}.weight" in tensors:
        return [f"{module}.weight"]
    parent, _, name = module.rpartition(".")
    sources = [f"{parent}.{part}.weight" for part in packed.get(name, ())]
    if sources and all(source in tensors for source in sources):
        return sources
    if name == "lm_head" and "model.embed_tokens.weight" in tensors:
        return ["model.embed_tokens.weight"]  # tied
    return []


def _same(module: Any, slices: list[Any]) -> bool | None:
    """Whether sampled rows of a module's weight are those of the files; None if they
    cannot be compared.

    The module holds the weight itself, a kernel's packed copy, or both. The products of
    a packed copy are compared.
    """
    weight: torch.Tensor = module.weight
    shapes = [tuple(each.get_shape()) for each in slices]
    if len(shapes[0]) == 1:
        return (
            bool(torch.equal(slices[0][:].to(weight), weight))
            if weight.shape == shapes[0]
            else None
        )
    # a quantised weight has the files' values only together with scales
    is_plain = weight.dtype in _PLAIN
    held = pieces(module, shapes) if is_plain and len(shapes[0]) == 2 else None
    if not held:
        return None
    width = held[0].columns.stop - held[0].columns.start
    stored_RI = _stored(weight, rows_held(held), width)
    probe_PI = torch.randn(2, width, generator=torch.Generator().manual_seed(0)).to(
        weight
    )
    product_PR = (
        module.quant_method.apply(module, probe_PI) if _is_packed(module) else None
    )
    if stored_RI is None and product_PR is None:
        return None
    for piece, where, of_file in sampled(held):
        expected_RI = slices[piece.source][of_file, piece.columns].to(weight)
        if stored_RI is not None and not torch.equal(stored_RI[where], expected_RI):
            return False
        if product_PR is not None and not _close(
            product_PR[:, where], probe_PI, expected_RI
        ):
            return False
    return True


def _stored(weight: torch.Tensor, rows: int, columns: int) -> torch.Tensor | None:
    """A weight with its rows first, as some kernels store columns first. None if it
    lacks a part of the matrix."""
    if weight.ndim == 2 and weight.shape[0] < rows <= weight.shape[1]:
        weight = weight.T
    return (
        weight
        if weight.ndim == 2 and weight.shape[0] >= rows and weight.shape[1] == columns
        else None
    )


def _is_packed(module: Any) -> bool:
    """Whether a CPU kernel has its own copy of the weight, which may then be
    dropped."""
    return getattr(module, "cpu_linear", None) is not None


def _close(
    output_PR: torch.Tensor, probe_PI: torch.Tensor, weight_RI: torch.Tensor
) -> bool:
    expected_PR = probe_PI.float() @ weight_RI.float().T
    scale_PR = probe_PI.float().abs() @ weight_RI.float().abs().T
    tolerance = (
        _FLOAT32_TOLERANCE
        if output_PR.dtype == torch.float32
        else _LOW_PRECISION_TOLERANCE
    )
    return bool(
        ((output_PR.float() - expected_PR).abs() <= tolerance * scale_PR + 1e-12).all()
    )
