"""Calibration passages that Resurface brings itself, for `pruning`, which must not know the evaluator's tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from evaluator.tasks.gazetteer import LANGUAGES, gazetteer_passages
from pruning.passages import PassageSource


def gazetteer(samples: int, seed: int) -> Iterator[str]:
    """Bundled passages, the languages in turn, disjoint from the bundled items; each seed has its own."""
    each = -(-samples // len(LANGUAGES))
    streams = [gazetteer_passages(language, start=seed * each, count=each) for language in LANGUAGES]
    for number in range(samples):
        yield next(streams[number % len(streams)])


SOURCES: Mapping[str, PassageSource] = {"gazetteer": gazetteer}
