"""Calibration passages that Resurface brings itself, for `pruning`, which must not know the evaluator's tasks.

`gazetteer` has the nine languages in turn, `gazetteer:LANG` one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from evaluator.tasks.gazetteer import LANGUAGES, gazetteer_passages
from pruning.calibration.passages import PassageSource


def gazetteer(samples: int, seed: int, languages: Sequence[str] = LANGUAGES) -> Iterator[str]:
    """Bundled passages, the languages in turn, disjoint from the bundled items; each seed has its own."""
    each = -(-samples // len(languages))
    streams = [gazetteer_passages(language, start=seed * each, count=each) for language in languages]
    for number in range(samples):
        yield next(streams[number % len(streams)])


SOURCES: Mapping[str, PassageSource] = {
    "gazetteer": gazetteer,
    **{f"gazetteer:{language}": partial(gazetteer, languages=(language,)) for language in LANGUAGES},
}
