"""What an evaluation is told: frozen, checked when it is made, unknown keys are errors."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from evaluator.records import Format, Probe

DType = Literal["auto", "float32", "bfloat16"]
EngineKind = Literal["vllm", "torch"]
Scoring = Literal["forced", "prompt_logprobs"]


class Frozen(BaseModel):
    """Base of every configuration: immutable, and a key that it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class EvalConfig(Frozen):
    """Which items are asked, how they are posed, and how their answers are looked for (protocol.md's defaults)."""

    task: str  # TASK[:PATH]
    # What records call it; None: the task's own name, a file's stem for jsonl:FILE and text:FILE.
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    languages: tuple[str, ...] | None = None  # None: every language of the task
    items: int = Field(default=200, ge=0)  # per language; 0 = all
    formats: tuple[Format, ...] = ("open",)
    probes: tuple[Probe, ...] = ("greedy", "beam", "sample", "choice", "rank")
    seed: int = Field(default=0, ge=0)
    chat: bool = False  # prompt through the tokenizer's chat template
    prompt_tokens: int = Field(default=512, ge=32)  # cap of a prompt; the context is cut to fit
    one_shot_prompt_tokens: int = Field(default=1024, ge=32)
    max_new_tokens: int = Field(default=32, ge=1)
    beam_width: int = Field(default=5, ge=1, le=10)
    samples: int = Field(default=10, ge=1)
    sample_seeds: tuple[int, ...] | None = None  # of the sample probe; None: the run seed. It must be one of them
    top_p: float = Field(default=0.9, gt=0, le=1)
    temperature: float = Field(default=1.0, gt=0)
    window: int = Field(default=2048, ge=2)  # tokens of a perplexity window; at most what the model has positions for

    @field_validator("formats", "probes", "sample_seeds")
    @classmethod
    def _no_repeats(cls, value: tuple[object, ...] | None) -> tuple[object, ...] | None:
        if value is not None and (not value or len(set(value)) != len(value)):
            raise ValueError(f"must name each one once, and at least one: {', '.join(map(str, value)) or '(empty)'}")
        return value

    @field_validator("sample_seeds")
    @classmethod
    def _seeds(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and min(value) < 0:
            raise ValueError(f"{min(value)}: a seed is 0 or more")
        return value

    @model_validator(mode="after")
    def _text_has_perplexity(self) -> EvalConfig:
        """A text has no questions, and questions have no windows."""
        if self.is_text and self.probes != ("perplexity",):
            raise ValueError(f"task {self.task!r} takes the probe perplexity and no other: {', '.join(self.probes)}")
        if not self.is_text and "perplexity" in self.probes:
            raise ValueError(f"probe perplexity takes a text, as in task text:FILE, not {self.task!r}")
        return self

    @property
    def is_text(self) -> bool:
        return self.task.partition(":")[0] == "text"

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the sample probe."""
        return (self.seed,) if self.sample_seeds is None else self.sample_seeds


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
