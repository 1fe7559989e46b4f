"""ServedModel models: one engine over HTTP, and one small object for each kind of server."""

from evaluator.core.errors import InputError
from evaluator.engine.base import Engine
from evaluator.engine.config import EngineConfig, EngineKind


def _build(config: EngineConfig) -> Engine:
    from evaluator.engine.endpoint.engine import EndpointEngine  # httpx

    return EndpointEngine(config)


def _refuse(config: EngineConfig) -> None:
    """Raises InputError: only a served model has this engine."""
    raise InputError(
        "--engine endpoint: a served model has it by itself (--endpoint URL#MODEL, or a"
        " GGUF file); choose the engine of its base: vllm or torch"
    )


ENDPOINT = EngineKind(
    name="endpoint",
    help="a served model: --endpoint URL#MODEL, or a GGUF file",
    build=_build,
    check_here=_refuse,
    references=True,
)
