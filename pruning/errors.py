"""What pruning raises besides InputError: the error of a job that failed."""

from __future__ import annotations

from evaluator.core.errors import ResurfaceError


class PruneError(ResurfaceError):
    """A pruning job failed, and not because of its input; the text is one complete line."""
