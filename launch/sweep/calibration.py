"""The calibration passages that come with Resurface, for `pruning`, which does not know the evaluator's tasks.

`gazetteer` takes the nine languages in turn, `gazetteer:LANG` is one of them, by name or by code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from evaluator.core.text import name_of
from evaluator.tasks.gazetteer import LANGUAGES, gazetteer_passages
from pruning.calibration import passages
from pruning.calibration.passages import PassageSource
from pruning.config import CalibrationConfig

# What a calibration source may be called, for help texts.
KINDS = (*passages.KINDS, "gazetteer", "gazetteer:LANG")


def gazetteer(samples: int, seed: int, languages: Sequence[str] = LANGUAGES) -> Iterator[str]:
    """`samples` bundled passages, the languages in turn, disjoint from the bundled items; every seed has its own."""
    each = -(-samples // len(languages))
    streams = [gazetteer_passages(language, start=seed * each, count=each) for language in languages]
    for number in range(samples):
        yield next(streams[number % len(streams)])


SOURCES: Mapping[str, PassageSource] = {
    "gazetteer": gazetteer,
    **{f"gazetteer:{language}": partial(gazetteer, languages=(language,)) for language in LANGUAGES},
}


def spelled_source(calibration: CalibrationConfig) -> CalibrationConfig:
    """The same settings with the language of `gazetteer:LANG` by its name, under which SOURCES has it."""
    kind, colon, language = calibration.source.partition(":")
    if kind != "gazetteer" or not colon:
        return calibration
    return calibration.model_copy(update={"source": f"{kind}:{name_of(language)}"})
