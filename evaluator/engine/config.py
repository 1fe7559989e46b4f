"""The engines that exist, and how one is configured and built.

An engine is one file with a class that satisfies `base.Engine`, and an `EngineKind`
with the name for users. This folder's `__init__.py` fills `ENGINES`, one line for each
kind. Options, YAML validation and "did you mean" read it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.info import CheckpointInfo
from evaluator.checkpoints.quantisation import Quantisation
from evaluator.core.config import Frozen, Registry, validated
from evaluator.core.errors import Document, InputError, Json
from evaluator.engine.base import Engine

DType = Literal["auto", "float32", "bfloat16"]
Scoring = Literal["forced", "prompt_logprobs"]
Graphs = Literal["full", "piecewise", "decode", True, False]
# keys and values in the dtype of the computation, or in the checkpoint's
# kv_cache_scheme
AUTO_CACHE = "auto"


class EngineConfig(Frozen):
    """How an engine is built. `auto` computes in the checkpoint's own dtype on a
    GPU. On a CPU it computes in float32, or in the dtype that a quantised checkpoint
    needs."""

    kind: str = "vllm"  # a name in ENGINES
    dtype: DType = Field(
        default="auto", description="auto: float32 on a CPU, its own on a GPU"
    )
    max_model_len: int = Field(default=1088, ge=64)  # longest prompt + generated tokens
    # None: 32 on a CPU, vLLM's default on a GPU
    block_size: int | None = Field(default=None, ge=1)
    # requests at a time. None: 128; on a GPU 256; of a GGUF file 1
    max_num_seqs: int | None = Field(default=None, ge=1)
    # in a step. None: by memory; GPU only
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    # The dtype of cached keys and values. A sweep's own `kv_cache` sets it, for each
    # checkpoint.
    kv_cache: str = AUTO_CACHE
    # None: 1 on a CPU, on a GPU by gpu_memory_utilization
    kv_cache_gib: int | None = Field(default=None, ge=1)
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    # other processes may take and free memory of its GPU while it starts
    shared_gpu: bool = False
    tensor_parallel: int = Field(default=1, ge=1, le=64)  # GPUs of one node
    # vLLM's torch.compile: slower to start, faster for large models
    compile: bool = False
    # GPU only: which steps are CUDA graphs (vllm/arguments.py, docs/gpus.md). None and
    # true: full; false: none.
    cuda_graphs: Graphs | None = None
    # false: every request computes its whole prompt, whatever others share with it
    prefix_caching: bool = True
    # Whether a running engine takes the next checkpoint's weights in place; without,
    # each has a fresh engine.
    swap: bool = True
    # How a continuation is scored: `forced` computes it after a prompt that all
    # continuations share; `prompt_logprobs` sends prompt and continuation as one prompt
    # each, which is slower and checks the former.
    scoring: Scoring = Field(
        default="forced", description="forced, or vLLM's slow prompt_logprobs"
    )
    # No number depends on the other rows of its batch: vLLM's batch-invariant mode,
    # slower, on GPUs only. Engine torch computes one request at a time, so that it
    # holds there anyway.
    deterministic: bool = False
    # With `auto`, a checkpoint may be computed in another dtype than its base; then
    # every table shows that.
    mixed_dtypes: bool = Field(
        default=False, description="permit another dtype than the base's"
    )
    trust_remote_code: bool = Field(
        default=False, description="run the checkpoint's own code"
    )
    # The file that counts what a run sends to a served model; its actor sets it.
    spending: Path | None = Field(default=None, exclude=True)

    @field_validator("kind")
    @classmethod
    def _is_registered(cls, kind: str) -> str:
        return ENGINES.checked(kind)

    @model_validator(mode="after")
    def _settings_agree(self) -> "EngineConfig":
        if self.scoring not in ENGINES[self.kind].scorings:
            able = ", ".join(
                each.name for each in ENGINES if self.scoring in each.scorings
            )
            raise ValueError(
                f"scoring {self.scoring!r} is a way of engine {able}, not of"
                f" {self.kind}"
            )
        if self.compile and isinstance(self.cuda_graphs, str):
            raise ValueError(
                f"cuda_graphs: {self.cuda_graphs!r}: compile: true has graphs of its"
                " own, or none (false)"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    name: str
    help: str  # one clause for help texts
    # imports its packages only when it is called
    build: Callable[[EngineConfig], Engine]
    # the values of EngineConfig.scoring that it knows
    scorings: tuple[str, ...] = ("forced",)
    # Raises InputError for what certainly cannot be had on this machine, before
    # anything starts; imports nothing heavy.
    check_here: Callable[[EngineConfig], None] = lambda config: None
    # Raises InputError for a model that it certainly cannot compute on this machine;
    # imports nothing heavy.
    check_model: Callable[[EngineConfig, Checkpoint], None] = lambda *_: None
    # it keeps and compares the distributions of a Score (Score.reference)
    references: bool = False
    # on a GPU, a number depends on the other rows of its batch (`deterministic`)
    batches: bool = False
    # it divides a model among EngineConfig.tensor_parallel GPUs
    shares_models: bool = False
    # What it computes in another way than transformers, of a model's config.json with
    # requests of so many tokens; None: nothing.
    remark: Callable[[Document, int], str | None] = lambda model, tokens: None
    # Raises InputError for what it certainly cannot serve. Gets the checkpoint in
    # words, and `here` of `check_served`.
    check_quantisation: Callable[[EngineConfig, str, Quantisation, bool], None] = (
        lambda *_: None
    )
    # Tries a checkpoint before anything starts; as `check_served`.
    rehearse: Callable[[EngineConfig, CheckpointInfo], tuple[str, ...]] = lambda *_: ()
    # The values of EngineConfig.kv_cache that it serves; `here`: on this machine.
    # Imports nothing heavy.
    cache_dtypes: Callable[[bool], tuple[str, ...]] = lambda here: (AUTO_CACHE,)
    # What dtype `auto` is here, for a dense checkpoint (None) or a quantised one;
    # "auto": each checkpoint's own.
    auto_dtype: Callable[[Quantisation | None], DType] = lambda quantisation: "float32"


ENGINES: Registry[EngineKind] = Registry("engine")


def engines_help() -> str:
    """Every engine with its description, for help texts."""
    return "; ".join(f"{each.name}: {each.help}" for each in ENGINES)


_LESS = 16  # requests at a time, of the control `batch`


def engine_under(change: str | None, config: EngineConfig) -> EngineConfig:
    """The engine of a control (`evaluator.core.controls`). Raises InputError for one
    that is the run's own, or is none."""
    kind, _, value = (change or "").partition(":")
    changes: Json = {}
    if kind == "batch":
        rows = min(config.max_num_seqs or 2 * _LESS, 2 * _LESS) // 2
        changes["max_num_seqs"] = rows or 2
    elif kind == "dtype":
        changes["dtype"] = value
    elif kind == "engine":
        changes |= {"kind": value, "scoring": "forced"}
    document = config.model_dump()
    present = dict(document)
    if config.dtype == "auto" and config.kind in ENGINES:
        present["dtype"] = ENGINES[config.kind].auto_dtype(None)
    if any(present[name] == new for name, new in changes.items() if new == value):
        raise InputError(f"controls: {change}: is the run's own; use repeat")
    place = f"controls: {change}"
    return validated(EngineConfig, document | changes, place) if changes else config


def check_served(
    config: EngineConfig, info: CheckpointInfo, *, here: bool
) -> tuple[str, ...]:
    """Notes on how an engine serves a checkpoint, on this machine if `here`. Raises
    InputError if it cannot."""
    kind = ENGINES[config.kind]
    if info.quantisation is not None:
        kind.check_quantisation(
            config, f"checkpoint {info.path}", info.quantisation, here
        )
    return kind.rehearse(config, info) if here else ()


def build_engine(config: EngineConfig) -> Engine:
    """The named engine, without a checkpoint. Raises InputError where its package is
    not installed."""
    return ENGINES[config.kind].build(config)
