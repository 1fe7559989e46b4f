"""The compressed checkpoints that a sweep requests: names, settings, and the bundled
calibration passages.

The source `gazetteer` alternates nine languages; `gazetteer:LANG` uses one, given by
name or code.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from evaluator.core.config import validated
from evaluator.core.document import read_document
from evaluator.core.errors import InputError, Json, unknown
from evaluator.core.text import name_of
from evaluator.tasks.gazetteer import BUNDLED_PASSAGES, LANGUAGES, gazetteer_passages
from launch.sweep.config import DENSE, SweepConfig
from pruning.calibration import KINDS as PASSAGE_KINDS
from pruning.calibration import PassageSource
from pruning.config import CalibrationConfig, PruneConfig, needs_calibration
from quantising.config import QuantiseConfig
from quantising.methods import METHODS
from quantising.schemes import SCHEMES

# The names of calibration sources, for help texts.
KINDS = (*PASSAGE_KINDS, "gazetteer", "gazetteer:LANG")
_IN_NAMES = str.maketrans({":": "of", "-": "to", ",": "_"})


def gazetteer(
    samples: int, seed: int, languages: Sequence[str] = LANGUAGES
) -> Iterator[str]:
    """`samples` bundled passages in alternating languages. No passage is a bundled
    item; seeds have other passages as far as the bundled 512 of a language reach.
    Raises InputError for more."""
    each = -(-samples // len(languages))
    if each > BUNDLED_PASSAGES:
        raise InputError(
            f"calibration: samples: {samples}: gazetteer has {BUNDLED_PASSAGES}"
            " passages of a language"
        )
    streams = [
        gazetteer_passages(language, start=seed * each, count=each)
        for language in languages
    ]
    for number in range(samples):
        yield next(streams[number % len(streams)])


SOURCES: Mapping[str, PassageSource] = {
    "gazetteer": gazetteer,
    **{
        f"gazetteer:{language}": partial(gazetteer, languages=(language,))
        for language in LANGUAGES
    },
}


def spelled_source(calibration: CalibrationConfig) -> CalibrationConfig:
    """The settings with the language's name in `gazetteer:LANG`, as SOURCES lists
    it."""
    kind, colon, language = calibration.source.partition(":")
    if kind != "gazetteer" or not colon:
        return calibration
    return calibration.model_copy(update={"source": f"{kind}:{name_of(language)}"})


def prunings(
    grid: SweepConfig, source: Path, usual: CalibrationConfig
) -> Iterator[tuple[str, PruneConfig]]:
    """The prunings of one model, with the end of each checkpoint's name. `source`:
    the dense model's directory."""
    for setting in grid.prune:
        for cell in setting.cells():
            calibration = None
            if needs_calibration(cell["method"], cell["allocation"]):
                calibration = spelled_source(setting.calibration or grid.calibration)
            config = PruneConfig(
                source=source, seed=grid.seed, calibration=calibration, **cell
            )
            own_group = config.model_copy(update={"group": None})
            # the method's own group gives the same job as none
            if own_group.comparison == config.comparison:
                config = own_group
            how_much = str(config.sparsity)
            if config.sparsity is None:  # "2:4", or a list of layers: "20-25,28"
                how_much = config.pattern.translate(_IN_NAMES)
            words = [config.method, how_much]
            words += [] if config.allocation == "uniform" else [config.allocation]
            words += [] if config.group is None else [config.group]
            words += _label(setting.label, calibration, usual)
            yield "-".join(words), config


def quantisations(
    grid: SweepConfig, source: Path, usual: CalibrationConfig, prunings: Collection[str]
) -> Iterator[tuple[str, str, QuantiseConfig]]:
    """One model's quantisations: DENSE or a pruning, name's end, settings. Raises
    InputError for an impossible line."""
    for number, setting in enumerate(grid.compress):
        if setting.method is None:
            continue
        place = f"compress.{number}"
        method = METHODS[setting.method]
        recipe, named = None, list[str]()
        if setting.recipe is not None:
            recipe, named = read_recipe(setting.recipe, place)
        if not setting.scheme and setting.recipe is not None and len(named) != 1:
            found = (
                f"its schemes are {', '.join(named) or 'none'}: choose the one to serve"
                " (scheme: W4A16)"
            )
            raise InputError(f"{place}: recipe: {setting.recipe}: {found}")
        calibration = None
        if method.needs_calibration:
            calibration = spelled_source(setting.calibration or grid.calibration)
        schemes = setting.scheme or named or ("",)
        for scheme, share in product(schemes, setting.experts or (None,)):
            wanted: Json = {
                "source": source,
                "scheme": scheme,
                "recipe": recipe,
                "experts": share,
                "seed": grid.seed,
                "calibration": calibration,
            }
            for name in ("method", "group_size", "ignore"):
                wanted[name] = getattr(setting, name)
            config = validated(QuantiseConfig, wanted, place)
            known = SCHEMES.get(config.scheme)
            if known is not None and config.group_size == known.group:
                # the same job as with none
                config = config.model_copy(update={"group_size": None})
            words = [config.method, config.scheme.lower() or str(share)]
            if setting.recipe is not None:
                words = [_word(setting.recipe.stem) or "recipe"]
            words += [] if config.group_size is None else [f"g{config.group_size}"]
            words += _label(setting.label, config.calibration, usual)
            for after in setting.after:
                if after != DENSE and after not in prunings:
                    raise InputError(
                        f"{place}: after:"
                        f" {unknown('pruning', after, (DENSE, *prunings))}"
                    )
                yield after, "-".join(words), config


def _label(
    label: str | None, calibration: CalibrationConfig | None, usual: CalibrationConfig
) -> list[str]:
    """A setting's label in a name; without one, the calibration's source unless it
    is the usual one."""
    if label is not None:
        return [label]
    if calibration is None or calibration == usual:
        return []
    return [_word(calibration.source)]


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")


def given(grid: SweepConfig) -> Iterator[tuple[str, str, str]]:
    """The given checkpoints: label, directory or hub id, and base. Raises
    InputError."""
    for number, setting in enumerate(grid.compress):
        if setting.checkpoint is None or setting.label is None:
            continue
        place = f"compress.{number}"
        base = setting.base or grid.base
        if base is None and len(grid.models) == 1:
            (base,) = grid.models
        if base is None:
            raise InputError(
                f"{place}: base: several models need one to be named:"
                f" {', '.join(grid.models)}"
            )
        if base not in grid.models:
            raise InputError(f"{place}: base: {unknown('model', base, grid.models)}")
        if setting.label in grid.models:
            raise InputError(
                f"{place}: label: {setting.label!r} is the name of a model"
            )
        yield setting.label, setting.checkpoint, base


def read_recipe(file: Path, place: str) -> tuple[str, list[str]]:
    """A recipe's text, and the schemes that it names. Raises InputError if it is no
    mapping."""
    try:
        document = read_document(file, "the recipe")
        if not isinstance(document, dict):
            raise InputError(f"{file}: a recipe is a mapping of stages")
    except InputError as error:
        raise InputError(f"{place}: recipe: {error}") from error
    named: set[str] = set()
    waiting: list[Any] = [document]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            scheme = each.get("scheme")
            named |= {scheme.upper()} if isinstance(scheme, str) else set()
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return file.read_text(encoding="utf-8"), sorted(named)
