"""The oracle: transformers, one request at a time, float32 by default.

Nothing here is fast; everything is plain. Tests compare the other engines with it, and it serves where vLLM is not
installed (`--engine torch`). torch is imported when an engine is built."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.checkpoints.blueprint import read_blueprint
from evaluator.checkpoints.files import check_files
from evaluator.checkpoints.quantisation import Quantisation
from evaluator.checkpoints.tokenizer import read_eos_ids
from evaluator.core.errors import EngineError, InputError, one_line
from evaluator.engine.admission import refusal, refuse
from evaluator.engine.base import Cancel, EngineStats, Generate, LoadReport, Request, RequestSource, Response, Score
from evaluator.engine.cache import FLOAT8, new_cache
from evaluator.engine.config import AUTO_CACHE, EngineConfig, EngineKind
from evaluator.engine.distributions import referred

if TYPE_CHECKING:
    import torch


class TorchEngine:
    """One transformers model on the GPU if there is one, else on the CPU; batch size 1."""

    name = "torch"

    def __init__(self, config: EngineConfig) -> None:
        import torch

        self.version = version("transformers")
        self.dtype: str = "float32" if config.dtype == "auto" else config.dtype
        self._config = config
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model: Any = None
        self._eos_ids: frozenset[int] = frozenset()
        self._vocabulary = 0
        self._max_model_len = config.max_model_len
        self._stats = EngineStats()

    def load(self, checkpoint: Path) -> LoadReport:
        """Any architecture that transformers knows. Raises InputError if it cannot read the checkpoint."""
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        started = time.monotonic()
        blueprint = read_blueprint(checkpoint)
        self._eos_ids = read_eos_ids(checkpoint, trust_remote_code=self._config.trust_remote_code)
        check_files(checkpoint)
        self._model = None
        try:
            how = {"trust_remote_code": self._config.trust_remote_code, "use_safetensors": True}
            model, loading = AutoModelForCausalLM.from_pretrained(
                checkpoint, dtype=self.dtype, output_loading_info=True, **how
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(f"{checkpoint}: transformers cannot load it: {one_line(error)}") from error
        for kind in ("missing_keys", "mismatched_keys"):
            if loading[kind]:
                raise InputError(f"{checkpoint}: {kind.replace('_', ' ')}: {sorted(map(str, loading[kind]))[0]}")
        self._model = model.to(self._device).eval()
        self._vocabulary = blueprint.vocabulary
        self._max_model_len = min(self._config.max_model_len, blueprint.longest or self._config.max_model_len)
        self._stats = EngineStats()
        tensors, seconds = len(blueprint.tensors), time.monotonic() - started
        scales = None if self._config.kv_cache == AUTO_CACHE else "none"
        return LoadReport(checkpoint=checkpoint, swapped=False, tensors=tensors, seconds=seconds, kv_scales=scales)

    def run(self, source: RequestSource) -> Iterator[Response]:
        """Answer one request after another, in the order of the source. Raises EngineError before a load."""
        if self._model is None:
            raise EngineError("the torch engine was asked to run before a checkpoint was loaded")
        while given := source.take(1):
            for request in given:
                if not isinstance(request, Cancel):  # a cancelled request was answered when it came
                    yield self.answer(request)

    def answer(self, request: Request) -> Response:
        import torch

        reason = refusal(request, self._max_model_len, self._vocabulary)
        if reason is not None:
            return refuse(request, reason)
        with torch.inference_mode():
            response = self._score(request) if isinstance(request, Score) else self._generate(request)
        self._stats = EngineStats(
            requests=self._stats.requests + 1,
            steps=self._stats.steps + len(response.token_ids),
            prompt_tokens=self._stats.prompt_tokens + len(request.prompt_ids),
            generated_tokens=self._stats.generated_tokens + len(response.token_ids),
        )
        return response.or_error(self._vocabulary)

    def stats(self) -> EngineStats:
        return self._stats

    def close(self) -> None:
        self._model = None
        if self._device.type == "cuda":
            import torch

            torch.cuda.empty_cache()

    def _tensor(self, ids: Sequence[Sequence[int]]) -> torch.Tensor:
        import torch

        return torch.tensor(ids, device=self._device)

    def _next(self, ids: Sequence[int], cache: Any) -> torch.Tensor:
        """The raw logits [V] after more tokens; the cache then holds these too."""
        out = self._model(self._tensor([ids]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        row_V: torch.Tensor = out.logits[0, -1]
        return row_V

    def _score(self, request: Score) -> Response:
        """One forward pass over prompt and continuation; with a rounded cache, one for each token, as an answer is
        generated. The log-softmax is in float32."""
        import torch

        continuation = request.continuation_ids
        if self._config.kv_cache == AUTO_CACHE:
            ids = self._tensor([request.prompt_ids + continuation[:-1]])
            raw_TV = self._model(ids, logits_to_keep=len(continuation)).logits[0]
        else:
            cache = new_cache(self._config.kv_cache)
            steps = (request.prompt_ids, *((token,) for token in continuation[:-1]))
            raw_TV = torch.stack([self._next(step, cache) for step in steps])
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
            divergences=() if request.reference is None else referred(request.reference, raw_TV, continuation),
        )

    def _generate(self, request: Generate) -> Response:
        import torch

        draw = torch.Generator(device=self._device)
        if request.seed is not None:
            draw.manual_seed(request.seed)
        else:
            draw.seed()
        with_logprobs = request.temperature == 0 or request.top_logprobs > 0
        cache, ids = new_cache(self._config.kv_cache), request.prompt_ids
        tokens: list[int] = []
        logprobs: list[float] = []
        top: list[tuple[tuple[int, ...], tuple[float, ...]]] = []
        while len(tokens) < request.max_tokens:
            logits_V = self._next(ids, cache).float()
            token = int(logits_V.argmax()) if request.temperature == 0 else _nucleus(logits_V, request, draw)
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


def _top(logprobs_V: torch.Tensor, count: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The `count` most likely tokens, ties to the lower id."""
    values, ids = logprobs_V.sort(descending=True, stable=True)
    return tuple(ids[:count].tolist()), tuple(values[:count].tolist())


def _nucleus(logits_V: torch.Tensor, request: Generate, draw: torch.Generator) -> int:
    """Draw from the smallest set of most likely tokens whose probability reaches top_p (Holtzman et al., 2020)."""
    values, ids = (logits_V / request.temperature).softmax(-1).sort(descending=True, stable=True)
    before = values.cumsum(-1) - values
    values[before >= request.top_p] = 0.0
    return int(ids[values.multinomial(1, generator=draw)])


def _refuse(config: EngineConfig, place: str, quantisation: Quantisation, here: bool) -> None:
    """Raises InputError: the oracle computes with plain weights."""
    raise InputError(f"{place}: {quantisation.label}: engine torch serves no quantised checkpoint; use --engine vllm")


TORCH = EngineKind(
    name="torch",
    help="one request at a time",
    build=TorchEngine,
    references=True,
    check_quantisation=_refuse,
    cache_dtypes=lambda here: (AUTO_CACHE, *FLOAT8),
)
