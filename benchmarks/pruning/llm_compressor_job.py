"""llm-compressor's side of `bench prune`, as a script in its own environment; it
imports none of our modules.

    python -P llm_compressor_job.py METHOD MODEL PASSAGES.txt OUT TOKENS THREADS

Prunes once, and prints one line of JSON: seconds, processor seconds, and peak memory
in GiB above what the process held after its imports."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def process_status(field: str) -> int:
    """A field of /proc/self/status, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


@contextmanager
def measured(threads: int) -> Iterator[dict[str, float]]:
    """What the block took, known after it: seconds, processor seconds, GiB above
    what the process held before it."""
    import torch

    torch.set_num_threads(threads)
    base, found = process_status("VmRSS"), dict[str, float]()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts here
    started, cpu = time.perf_counter(), time.process_time()
    yield found
    found |= {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu,
    }
    found["peak_gib"] = (process_status("VmHWM") - base) / 2**30


def _job(
    method: str, source: str, passages: str, out: str, tokens: int, threads: int
) -> dict[str, float]:
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.pruning import SparseGPTModifier, WandaPruningModifier
    from transformers import AutoModelForCausalLM, AutoTokenizer

    texts = Path(passages).read_text().splitlines()
    with measured(threads) as found:
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        encoded = [tokenizer(text)["input_ids"][:tokens] for text in texts]
        rows = [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in encoded]
        modifier = {"wanda": WandaPruningModifier, "sparsegpt": SparseGPTModifier}[
            method
        ]
        oneshot(
            model=model,
            dataset=Dataset.from_list(rows),
            recipe=modifier(
                sparsity=0.5,
                mask_structure="0:0",
                targets=[type(model.model.layers[0]).__name__],
            ),
            max_seq_length=tokens,
            num_calibration_samples=len(rows),
            shuffle_calibration_samples=False,
        )
        model.to(torch.bfloat16).save_pretrained(out)
        tokenizer.save_pretrained(out)
    return found


if __name__ == "__main__":
    method, source, passages, out, tokens, threads = sys.argv[1:]
    print(json.dumps(_job(method, source, passages, out, int(tokens), int(threads))))
