"""llm-compressor's side of `bench prune`: its Wanda and SparseGPT modifiers, in an environment of their own.

It needs versions of torch and transformers that are not ours, so it gets a virtual environment in the user's cache
directory, made on first use (quantising/environment.py), in which llm_compressor_job.py runs.
"""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.processes import answer_of
from quantising.llm_compressor import process

NAME = process.NAME
_JOB = Path(__file__).with_name("llm_compressor_job.py")


def environment() -> Path | str:
    """The interpreter of llm-compressor's environment, or a sentence that says why there is none."""
    return process.interpreter()


def run(
    python: Path, method: str, source: Path, passages: Path, out: Path, tokens: int, threads: int
) -> dict[str, float]:
    """One pruning in a process of llm-compressor's environment, half of each matrix's weights; on the CPU.

    Returns seconds, processor seconds and peak memory in GiB. Raises SystemExit if it fails.
    """
    parts = (python, "-P", _JOB, method, source.resolve(), passages.resolve(), out, tokens, threads)
    return answer_of(
        NAME,
        list(map(str, parts)),
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
        cwd=out.parent,  # it leaves logs where it runs
    )
