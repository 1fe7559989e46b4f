"""How an engine is built."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from evaluator.config import Frozen

DType = Literal["auto", "float32", "bfloat16"]
EngineKind = Literal["vllm", "torch"]
Scoring = Literal["forced", "prompt_logprobs"]


class EngineConfig(Frozen):
    """How an engine is built. `auto` computes in float32 on a CPU and in the checkpoint's own dtype on a GPU."""

    kind: EngineKind = "vllm"
    dtype: DType = "auto"
    max_model_len: int = Field(default=1088, ge=64)  # longest prompt + generated tokens
    block_size: int | None = None  # None: 32 on a CPU, vLLM's default on a GPU
    max_num_seqs: int = Field(default=128, ge=1)
    kv_cache_gib: int = Field(default=1, ge=1)  # CPU only
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    tensor_parallel: int = Field(default=1, ge=1)
    compile: bool = False  # vLLM's torch.compile: slower to start, faster for large models
    # How vLLM scores a continuation: by forced decoding after a shared prompt, or the reference for checking it, one
    # prompt-log-probability request per prompt and continuation.
    scoring: Scoring = "forced"
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _scoring_is_of_vllm(self) -> EngineConfig:
        if self.kind != "vllm" and self.scoring != "forced":
            raise ValueError(f"scoring {self.scoring!r} is a way of engine vllm, not of {self.kind}")
        return self
