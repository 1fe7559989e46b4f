"""The oracle: transformers, one request at a time, float32 by default.

Nothing here is fast; everything is plain. Tests compare the other engines with it,
and it serves where vLLM is not installed (`--engine torch`). torch is imported when
an engine is built.

Full forward passes define what is right. A cache of keys and values replaces them
only for a model that has shown, after it was loaded, that both agree. A recurrent
state or a convolution's lives elsewhere, and some models have no cache. They compute
the whole prefix again for each token."""

from __future__ import annotations

import inspect
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.files import check_files
from evaluator.checkpoints.info import CheckpointInfo
from evaluator.checkpoints.quantisation import Quantisation
from evaluator.checkpoints.tokenizer import read_eos_ids
from evaluator.core.errors import EngineError, InputError, one_line
from evaluator.core.records import EngineStats, TokenIds
from evaluator.engine.admission import refusal, refuse
from evaluator.engine.base import (
    Cancel,
    Generate,
    LoadReport,
    Request,
    RequestSource,
    Response,
    Score,
)
from evaluator.engine.cache import FLOAT8, new_cache
from evaluator.engine.config import AUTO_CACHE, EngineConfig, EngineKind
from evaluator.engine.distributions import divergences_from
from evaluator.engine.states import EngineHead, States
from evaluator.engine.tolerances import agree, precision

if TYPE_CHECKING:
    from torch import Generator, Tensor

# Of a model that gets what it cannot read: plain text, or a cache that is not its own.
_FAILURES = (
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    RuntimeError,
    TypeError,
    ValueError,
)
# of the passes that a model is examined with; the last ones come one by one
_TOKENS, _STEPS = 24, 6


class TorchEngine:
    """One transformers model on the GPU if there is one and `gpu` is true, else on
    the CPU; batch size 1."""

    name = "torch"

    def __init__(self, config: EngineConfig, *, gpu: bool = True) -> None:
        import torch

        self.version = version("transformers")
        self.dtype: str = "float32" if config.dtype == "auto" else config.dtype
        self._config = config
        self._device = torch.device(
            "cuda" if gpu and torch.cuda.is_available() else "cpu"
        )
        self._model: Any = None
        # whether a cache of keys and values agrees with full passes
        self.cached = False
        # whether the model can leave out the logits of early tokens
        self._keeps = False
        # the states that its output head reads
        self._states_TH = torch.empty(0)
        # states for the head in the place of those; None: its own
        self._given_TH: Tensor | None = None
        # LongRoPE rotates every token of a longer text in another way
        self._turns = False
        self._eos_ids: frozenset[int] = frozenset()
        self._vocabulary = 0
        self._max_model_len = config.max_model_len
        self._stats = EngineStats()

    def load(self, checkpoint: Path) -> LoadReport:
        """Any causal architecture that transformers knows. Raises InputError for
        another one, and for a checkpoint that it cannot read."""
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        started = time.monotonic()
        stored = Checkpoint(checkpoint)
        stored.check_served()
        self._eos_ids = read_eos_ids(
            checkpoint, trust_remote_code=self._config.trust_remote_code
        )
        check_files(checkpoint)
        self._model = None
        try:
            model, loading = AutoModelForCausalLM.from_pretrained(
                checkpoint,
                dtype=self.dtype,
                output_loading_info=True,
                trust_remote_code=self._config.trust_remote_code,
                use_safetensors=True,
            )
        except (OSError, ValueError, RuntimeError) as error:
            why = f"transformers cannot load it: {one_line(error)}"
            if "Unrecognized configuration class" in why:
                kind = stored.config["model_type"]
                why = (
                    f"architecture {kind!r}: transformers has no causal language model"
                    " of it; use another model"
                )
            raise InputError(f"{checkpoint}: {why}") from error
        for kind in ("missing_keys", "mismatched_keys"):
            if loading[kind]:
                raise InputError(
                    f"{checkpoint}: {kind.replace('_', ' ')}:"
                    f" {sorted(map(str, loading[kind]))[0]}"
                )
        self._model = model.to(self._device).eval()
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        model.get_output_embeddings().register_forward_pre_hook(self._at_head)
        self._head = EngineHead(checkpoint, self._head_logits)
        self._vocabulary = stored.vocabulary
        self._max_model_len = min(
            self._config.max_model_len, stored.longest or self._config.max_model_len
        )
        self._turns = _turning_point(model) < self._max_model_len
        self._stats = EngineStats()
        with torch.inference_mode():
            self._examine(f"checkpoint {checkpoint}: {type(model).__name__}")
        return LoadReport(
            checkpoint=checkpoint,
            swapped=False,
            tensors=len(stored.tensors),
            seconds=time.monotonic() - started,
            kv_scales=None if self._config.kv_cache == AUTO_CACHE else "none",
        )

    def run(self, source: RequestSource) -> Iterator[Response]:
        """Answer one request after another, in the order of the source. Raises
        EngineError before a load."""
        if self._model is None:
            raise EngineError(
                "the torch engine was asked to run before a checkpoint was loaded"
            )
        while given := source.take(1):
            for request in given:
                # a cancelled request was answered when it came
                if not isinstance(request, Cancel):
                    yield self.answer(request)

    def answer(self, request: Request) -> Response:
        import torch

        reason = refusal(request, self._max_model_len, self._vocabulary)
        if reason is not None:
            return refuse(request, reason)
        with torch.inference_mode():
            response = (
                self._score(request)
                if isinstance(request, Score)
                else self._generate(request)
            )
        tokens = len(response.token_ids)
        counted = EngineStats(
            requests=1,
            steps=tokens,
            prompt_tokens=len(request.prompt_ids),
            generated_tokens=tokens,
        )
        self._stats = self._stats.plus(counted)
        return response.or_error(self._vocabulary)

    def confirm(self) -> None:
        """It holds the weights itself."""

    def stats(self) -> EngineStats:
        return self._stats

    def close(self) -> None:
        self._model = None
        if self._device.type == "cuda":
            import torch

            torch.cuda.empty_cache()

    def _tensor(self, ids: Sequence[Sequence[int]]) -> Tensor:
        import torch

        return torch.tensor(ids, device=self._device)

    def _examine(self, place: str) -> None:
        """Find out whether a cache serves the model. Raises InputError if its full
        passes contradict each other.

        Random tokens are read in one pass, once more, in parts, and the last ones
        one by one. Where one pass gives NaN, the others must too: answers are errors
        then."""
        draw, length = random.Random(0), min(_TOKENS, self._max_model_len)
        ids = [draw.randrange(self._vocabulary) for _ in range(length)]
        padding = getattr(self._model.config, "pad_token_id", None)
        if isinstance(padding, int) and 0 <= padding < self._vocabulary:
            ids[length // 2] = padding  # some models count positions without it
        known = length - min(_STEPS, length - 1)
        try:
            whole_TV = self._logits(ids, length)
            sound = all(
                self._agree(whole_TV[:count], self._logits(ids[:count], count))
                for count in (length, 1, known)
            )
        except _FAILURES as error:
            raise InputError(
                f"{place} cannot read plain text: {type(error).__name__}:"
                f" {one_line(error)}"
            ) from error
        if not sound:
            raise InputError(
                f"{place} draws at random, or lets a token see those after it: no"
                " causal language model; use another one, or set is_decoder: true in"
                " config.json if it was trained so"
            )
        self.cached = not self._turns and self._caches(whole_TV, ids, known)
        if not self.cached and self._config.kv_cache != AUTO_CACHE:
            raise InputError(
                f"{place} does not keep all in a cache of keys and values, so kv_cache"
                f" {self._config.kv_cache!r} cannot round it; use {AUTO_CACHE}"
            )

    def _caches(self, whole_TV: Tensor, ids: list[int], known: int) -> bool:
        """Whether steps after the `known` first tokens, with a cache, agree with one
        pass."""
        import torch

        kept = {"past_key_values": new_cache(AUTO_CACHE), "use_cache": True}
        try:
            steps = [self._logits(ids[:known], 1, **kept)[0]]
            for token in ids[known:]:
                steps.append(self._logits([token], 1, **kept)[0])
            return self._agree(whole_TV[known - 1 :], torch.stack(steps))
        except _FAILURES:
            return False

    def _agree(self, one_TV: Tensor, other_TV: Tensor) -> bool:
        """Whether two computations of the same logits are as close as rounding
        explains."""
        on_gpu = self._device.type == "cuda"
        computed = precision(self.dtype, self.dtype, on_gpu=on_gpu)
        return agree(one_TV, other_TV, computed)

    def _logits(
        self, ids: Sequence[int], count: int, *, use_cache: bool = False, **more: Any
    ) -> Tensor:
        """The raw logits [count, V] after the last tokens of a pass."""
        if self._keeps:
            more["logits_to_keep"] = count
        rows_TV: Tensor = self._model(
            self._tensor([ids]), use_cache=use_cache, **more
        ).logits[0, -count:]
        return rows_TV

    def _at_head(self, _module: Any, inputs: tuple[Tensor]) -> tuple[Tensor] | None:
        """Note the head's input, or replace it by given states."""
        if self._given_TH is not None:
            return (self._given_TH.to(inputs[0])[None],)
        self._states_TH = inputs[0][0]
        return None

    def _head_logits(self, states_TH: Tensor) -> Tensor:
        """What the model makes of given states after its last norm: it reads as many
        tokens, whose own states are dropped."""
        count = len(states_TH)
        self._given_TH = states_TH
        try:
            return self._logits([0] * count, count)
        finally:
            self._given_TH = None

    def _reader(self) -> Callable[[Sequence[int]], Tensor]:
        """A function of more tokens: the raw logits [V] after all it was given."""
        ids: list[int] = []
        kept: dict[str, Any] = {}
        if self.cached:
            kept["past_key_values"] = new_cache(self._config.kv_cache)
            kept["use_cache"] = True

        def read(more: Sequence[int]) -> Tensor:
            ids[:] = more if self.cached else [*ids, *more]
            return self._logits(ids, 1, **kept)[0]

        return read

    def _score(self, request: Score) -> Response:
        """One forward pass over prompt and continuation; with a rounded cache or
        LongRoPE's turn, one for each token, as an answer is generated. The
        log-softmax is in float32."""
        import torch

        continuation = request.continuation_ids
        if self._config.kv_cache == AUTO_CACHE and not self._turns:
            ids = request.prompt_ids + continuation[:-1]
            raw_TV = self._logits(ids, len(continuation))
            states = States(self._head, self._states_TH[-len(continuation) :])
        else:
            read = self._reader()
            steps = (request.prompt_ids, *((token,) for token in continuation[:-1]))
            raw_TV = torch.stack([read(step) for step in steps])
            states = States(self._head)
        logits_TV = raw_TV.float()
        logprobs_TV = logits_TV.log_softmax(-1)
        targets_T1 = self._tensor([continuation]).T
        ranks_T = 1 + (logits_TV > logits_TV.gather(1, targets_T1)).sum(-1)
        top = [_top(row, 1) for row in logprobs_TV]
        return Response(
            request_id=request.request_id,
            token_ids=continuation,
            logprobs=tuple(logprobs_TV.gather(1, targets_T1)[:, 0].tolist()),
            ranks=tuple(ranks_T.tolist()),
            top_ids=tuple(ids for ids, _ in top),
            top_logprobs=tuple(values for _, values in top),
            cached_tokens=0,
            divergences=(
                ()
                if request.reference is None
                else divergences_from(request.reference, raw_TV, continuation, states)
            ),
        )

    def _generate(self, request: Generate) -> Response:
        import torch

        draw = torch.Generator(device=self._device)
        if request.seed is not None:
            draw.manual_seed(request.seed)
        else:
            draw.seed()
        with_logprobs = request.temperature == 0 or request.top_logprobs > 0
        ids = request.prompt_ids
        read = self._reader()
        tokens: list[int] = []
        logprobs: list[float] = []
        top: list[tuple[TokenIds, tuple[float, ...]]] = []
        while len(tokens) < request.max_tokens:
            logits_V = read(ids).float()
            token = (
                int(logits_V.argmax())
                if request.temperature == 0
                else _nucleus(logits_V, request, draw)
            )
            tokens.append(token)
            if with_logprobs:
                logprobs_V = logits_V.log_softmax(-1)
                logprobs.append(float(logprobs_V[token]))
                if request.top_logprobs:
                    top.append(_top(logprobs_V, request.top_logprobs))
            if token in self._eos_ids or token in request.stop_ids:
                break
            ids = (token,)
        return Response(
            request_id=request.request_id,
            token_ids=tuple(tokens),
            logprobs=tuple(logprobs),
            top_ids=tuple(ids for ids, _ in top),
            top_logprobs=tuple(values for _, values in top),
            cached_tokens=0,
        )


def _top(logprobs_V: Tensor, count: int) -> tuple[TokenIds, tuple[float, ...]]:
    """The `count` most likely tokens, ties to the lower id."""
    values, ids = logprobs_V.sort(descending=True, stable=True)
    return tuple(ids[:count].tolist()), tuple(values[:count].tolist())


def _nucleus(logits_V: Tensor, request: Generate, draw: Generator) -> int:
    """Draw from the smallest set of most likely tokens whose probability reaches
    top_p (Holtzman et al., 2020)."""
    values, ids = (
        (logits_V / request.temperature).softmax(-1).sort(descending=True, stable=True)
    )
    before = values.cumsum(-1) - values
    values[before >= request.top_p] = 0.0
    return int(ids[values.multinomial(1, generator=draw)])


def _refuse(
    config: EngineConfig, place: str, quantisation: Quantisation, here: bool
) -> None:
    """Raises InputError: the oracle computes with plain weights."""
    raise InputError(
        f"{place}: {quantisation.label}: engine torch serves no quantised checkpoint;"
        " use --engine vllm"
    )


def _turning_point(model: Any) -> float:
    """The longest text with LongRoPE's short factors; infinity where no length
    changes the rotation."""
    for module in model.modules():
        if "longrope" in str(getattr(module, "rope_type", "")):
            parameters = module.config.rope_parameters
            # of all layers, or by their types
            kinds = [each for each in parameters.values() if isinstance(each, dict)]
            name = "original_max_position_embeddings"
            return float(
                min(each.get(name, math.inf) for each in kinds or [parameters])
            )
    return math.inf


def _rehearse(config: EngineConfig, info: CheckpointInfo) -> tuple[str, ...]:
    """Loads a checkpoint. A note if it has no cache. Raises InputError as a load
    does."""
    engine = TorchEngine(
        config.model_copy(update={"kv_cache": info.kv_cache}), gpu=False
    )
    engine.load(info.path)
    if engine.cached:
        return ()
    return (
        f"{info.name}: engine torch computes each token from the whole text,"
        " without a cache",
    )


TORCH = EngineKind(
    name="torch",
    help="one request at a time",
    build=TorchEngine,
    references=True,
    check_quantisation=_refuse,
    rehearse=_rehearse,
    cache_dtypes=lambda here: (AUTO_CACHE, *FLOAT8),
)
