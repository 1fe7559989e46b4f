"""`resurface sweep RECIPE --explain`: the recipe's question, what it fills of the
paper, its cost in answers, and what it cannot measure. Starts and reads nothing."""

from collections.abc import Iterator
from pathlib import Path

from evaluator.core.errors import InputError, Json
from evaluator.metrics.published import paper
from launch.documents import Explanation
from launch.sweep.config import SweepConfig, bundled_recipes
from launch.sweep.estimate import estimate, total_of
from launch.sweep.machines import machine_of


def explanation(file: Path, config: SweepConfig) -> Explanation:
    """Raises InputError for a file that is no bundled recipe."""
    recipes: Json = paper()["recipes"]
    names = {path: name for name, path in bundled_recipes().items()}
    name = names.get(file, "")
    full = name.removeprefix("small/")
    if full not in recipes:
        raise InputError(
            f"--explain: {file} is no bundled recipe ({', '.join(recipes)}); --dry-run"
            " estimates any sweep"
        )
    about = recipes[full]
    estimates = estimate(config, machine_of(None))
    total = total_of(estimates)
    return Explanation(
        recipe=name,
        question=about["question"],
        fills=f"{about['fills']} ({paper()['paper']})",
        stand_in=full != name,
        checkpoints=len(estimates),
        made=sum(row.job.is_made for row in estimates),
        items=total.items,
        requests=total.requests,
        excludes=about.get("excludes") if full == name else None,
    )


def lines_of(about: Explanation) -> Iterator[str]:
    yield f"question: {about.question}"
    yield f"fills: {about.fills}"
    if about.stand_in:
        yield "The bundled model and items stand in for the paper's: no number compares."
    yield f"checkpoints: {about.checkpoints}, {about.made} of them made by the sweep"
    yield (
        f"cost: {about.items:,} items over all checkpoints, {about.requests:,} requests;"
        " --dry-run estimates the time"
    )
    if about.excludes:
        yield f"excludes: {about.excludes}"
