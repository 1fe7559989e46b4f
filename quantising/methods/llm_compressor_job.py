"""llm-compressor's side of a quantisation, as a script in its own environment; it
imports none of our modules.

    python -I llm_compressor_job.py REQUEST.json

REQUEST: `source` and `out` (directories), `recipe` (YAML), `sequences` (lists of token
ids, empty for a recipe that looks at no text), `answer` (a file: the versions of what
did the work, as JSON, written last). Nothing is fetched.
"""

import importlib.metadata
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any


def _end_with_parent() -> None:
    """Whoever asked may be killed; its quantisation must not go on for an hour."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


_OF_A_DENSE_MODEL = 0.001  # of its weights, at most, are zero


def _keep_zeros() -> None:
    """Make GPTQ round pruned weights to zero. What its corrections have added to them
    counts as their error, which the columns that are left correct in turn, as in
    SparseGPT. Other steps scale or round, which keeps zeros.
    """
    from llmcompressor.modifiers.gptq import gptq_quantize as gptq

    order, update, rounded = (
        gptq.apply_activation_ordering,
        gptq.gptq_block_update,
        gptq.fake_quantize,
    )
    # an iterator over those to come: which of their weights are pruned
    columns: list[Any] = []

    def ordered(weight_BOI: Any, *rest: Any) -> Any:
        made = order(weight_BOI, *rest)
        zero_BOI = made[0] == 0
        columns[:] = (
            [iter(zero_BOI.permute(2, 1, 0))]
            if zero_BOI.float().mean() > _OF_A_DENSE_MODEL
            else []
        )
        return made

    def masked(weight_OB: Any, *rest: Any) -> Any:
        made = rounded(weight_OB, *rest)
        return made.masked_fill(next(columns[0]), 0) if columns else made

    # Triton's kernel rounds by itself
    def updated(*made: Any, **settings: Any) -> None:
        (update.__wrapped__ if columns else update)(*made, **settings)

    gptq.apply_activation_ordering, gptq.gptq_block_update, gptq.fake_quantize = (
        ordered,
        updated,
        masked,
    )


def _keep_causal() -> None:
    """Without this, the tracer builds a configuration again, without its attention.
    Some models (Mistral, Phi-3, Qwen3-MoE) then get no mask, and tokens see later ones.
    """
    from llmcompressor.pipelines.sequential.helpers import SequentialTracer
    from transformers import PretrainedConfig

    create = SequentialTracer.create_arg

    def create_arg(self: Any, argument: Any) -> Any:
        made = create(self, argument)
        if isinstance(argument, PretrainedConfig):
            made.kwargs = {**made.kwargs, "attn_implementation": "eager"}
        return made

    SequentialTracer.create_arg = create_arg


def _quantise(request: dict[str, Any]) -> None:
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # AWQ pins memory for copies to a GPU, and a CUDA build then looks for one
    if not torch.cuda.is_available():
        torch.Tensor.pin_memory = lambda self, *_, **__: self  # type: ignore[method-assign]
    tokenizer = AutoTokenizer.from_pretrained(request["source"], local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(
        request["source"], dtype="auto", local_files_only=True, use_safetensors=True
    )
    sequences = request["sequences"]
    rows = [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in sequences]
    text: dict[str, Any] = {}
    if rows:
        text = {
            "dataset": Dataset.from_list(rows),
            "max_seq_length": max(map(len, sequences)),
            "num_calibration_samples": len(rows),
            "shuffle_calibration_samples": False,
        }
    _keep_zeros()
    _keep_causal()
    oneshot(model=model, tokenizer=tokenizer, recipe=request["recipe"], **text)
    model.save_pretrained(request["out"], save_compressed=True)


def main() -> None:
    _end_with_parent()
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    _quantise(request)
    packages = ("llmcompressor", "compressed-tensors", "torch", "transformers")
    answer = Path(request["answer"])
    answer.write_text(
        json.dumps({name: importlib.metadata.version(name) for name in packages}),
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
