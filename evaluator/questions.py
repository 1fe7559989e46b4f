"""Which questions a task asks, and with which candidates: everything about an item that does not depend on a model.

Pure text, made once per task and shipped to every engine; tokenising it is `probes.plan`'s work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evaluator.config import EvalConfig
from evaluator.prompts import exemplar_of
from evaluator.records import Format, Item
from evaluator.tasks import TaskData, deep_items, is_excluded, select
from evaluator.tasks.distractors import Options, choose_options, unrelated_candidates

# Formats whose prompt lists candidates.
CANDIDATE_FORMATS: tuple[Format, ...] = ("shown", "distractors_only", "unrelated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One item as it will be asked."""

    item: Item
    excluded: bool  # no gold answer that grading could find: recorded, never sent
    deep: bool  # belongs to the first half of its language, which beam and sample probes are asked of
    options: Options | None  # the choice probe's options; None when neither it nor a format needs them
    candidates: Mapping[Format, tuple[str, ...]]  # what a format's prompt lists, in order
    exemplar: Item | None  # the one-shot exemplar of the item's language


def questions_of(data: TaskData, config: EvalConfig) -> list[Question]:
    """The questions of a task, language by language in the data's order, each language's in its drawn order.

    Raises InputError when a language's pool has no distractor to offer for an item.
    """
    wants_options = "choice" in config.probes or any(form in ("shown", "distractors_only") for form in config.formats)
    questions = []
    for pool in data.pools.values():
        subset = select(pool, config.items)
        exemplar = exemplar_of(pool, subset)
        deep = deep_items(subset, config.items)
        for position, item in enumerate(subset):
            excluded = is_excluded(item)
            options = choose_options(item, pool, config.seed) if wants_options and not excluded else None
            questions.append(
                Question(
                    item=item,
                    excluded=excluded,
                    deep=position < deep,
                    options=options,
                    candidates={} if excluded else _candidates(item, options, data, config),
                    exemplar=exemplar,
                )
            )
    return questions


def _candidates(
    item: Item, options: Options | None, data: TaskData, config: EvalConfig
) -> dict[Format, tuple[str, ...]]:
    listed: dict[Format, tuple[str, ...]] = {}
    if options is not None:
        if "shown" in config.formats:
            listed["shown"] = options.texts
        if "distractors_only" in config.formats:
            listed["distractors_only"] = tuple(t for i, t in enumerate(options.texts) if i != options.gold)
    if "unrelated" in config.formats:
        listed["unrelated"] = unrelated_candidates(item, data.every_pool, config.seed)
    return listed
