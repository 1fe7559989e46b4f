"""llm-compressor's side of `benchmarks/prune.py`: its Wanda and SparseGPT modifiers, in an environment of their own.

It asks for versions of torch and transformers that are not ours, so it gets a virtual environment in the user's cache
directory, made on first use (peer_environment.py). This file is run there as a script, and needs nothing of ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from peer_environment import python_of

NAME = "llm-compressor"
_REQUIREMENT = "llmcompressor==0.14.0.1"


def environment() -> Path | str:
    """The interpreter of llm-compressor's environment; in words why there is none."""
    return python_of(NAME, [_REQUIREMENT])


def run(
    python: Path, method: str, source: Path, passages: Path, out: Path, tokens: int, threads: int
) -> dict[str, float]:
    """One pruning in a process of llm-compressor's environment; a matrix's share of zeros is 0.5. CPU only."""
    done = subprocess.run(
        [
            python,
            Path(__file__).resolve(),
            method,
            source.resolve(),
            passages.resolve(),
            out,
            str(tokens),
            str(threads),
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=out.parent,  # it leaves logs where it runs
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode:
        raise SystemExit(f"{NAME} failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _status(field: str) -> int:
    """A field of /proc/self/status, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def _job(method: str, source: str, passages: str, out: str, tokens: int, threads: int) -> dict[str, Any]:
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.pruning import SparseGPTModifier, WandaPruningModifier
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)
    texts = Path(passages).read_text().splitlines()
    base = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    started, cpu = time.perf_counter(), time.process_time()
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    encoded = [tokenizer(text)["input_ids"][:tokens] for text in texts]
    rows = [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in encoded]
    modifier = {"wanda": WandaPruningModifier, "sparsegpt": SparseGPTModifier}[method]
    recipe = modifier(sparsity=0.5, mask_structure="0:0", targets=[type(model.model.layers[0]).__name__])
    oneshot(
        model=model,
        dataset=Dataset.from_list(rows),
        recipe=recipe,
        max_seq_length=tokens,
        num_calibration_samples=len(rows),
        shuffle_calibration_samples=False,
    )
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu,
        "peak_gib": (_status("VmHWM") - base) / 2**30,
    }


if __name__ == "__main__":
    print(json.dumps(_job(*sys.argv[1:5], int(sys.argv[5]), int(sys.argv[6]))))
