"""`resurface sweep RECIPE --explain`: the recipe's question, what it fills of the
paper, its cost in answers, and what it cannot measure. Starts and reads nothing."""

from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

from evaluator.core.errors import InputError
from evaluator.metrics.published import paper
from launch.sweep.config import SweepConfig, bundled_recipes
from launch.sweep.estimate import Work, estimate


def explanation(file: Path, config: SweepConfig) -> Iterator[str]:
    """Lines of text. Raises InputError for a file that is no bundled recipe."""
    recipes: dict[str, Any] = paper()["recipes"]
    names = {path: name for name, path in bundled_recipes().items()}
    name = names.get(file, "")
    full = name.removeprefix("small/")
    if full not in recipes:
        raise InputError(
            f"--explain: {file} is no bundled recipe ({', '.join(recipes)}); --dry-run"
            " estimates any sweep"
        )
    about = recipes[full]
    yield f"question: {about['question']}"
    yield f"fills: {about['fills']} ({paper()['paper']})"
    if full != name:
        yield "The bundled model and items stand in for the paper's: no number compares."
    estimates = estimate(config)
    made = sum(row.job.is_made for row in estimates)
    yield f"checkpoints: {len(estimates)}, {made} of them made by the sweep"
    total = reduce(Work.plus, (row.work for row in estimates), Work())
    yield (
        f"cost: {total.items:,} items over all checkpoints, {total.requests:,} requests;"
        " --dry-run estimates the time"
    )
    if "excludes" in about and full == name:
        yield f"excludes: {about['excludes']}"
