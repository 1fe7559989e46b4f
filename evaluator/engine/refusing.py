"""An engine that answers nothing: for items that kill engines, whose records are to say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from evaluator.engine.base import Cancel, Engine, EngineStats, LoadReport, RequestSource, Response

_LIMIT = 64  # requests at a time


class Refusing:
    """Stands before an engine, under its name, and fails every request with one reason; the engine is never asked."""

    def __init__(self, engine: Engine, reason: str) -> None:
        self._engine = engine
        self._reason = reason

    @property
    def name(self) -> str:
        return self._engine.name

    @property
    def version(self) -> str:
        return self._engine.version

    @property
    def dtype(self) -> str:
        return self._engine.dtype

    def load(self, checkpoint: Path) -> LoadReport:
        return self._engine.load(checkpoint)

    def run(self, source: RequestSource) -> Iterator[Response]:
        while given := source.take(_LIMIT):
            for request in given:
                if not isinstance(request, Cancel):
                    yield Response(request_id=request.request_id, status="engine_error", error=self._reason)

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def close(self) -> None:
        self._engine.close()
