"""Moves unreadable files of an earlier call aside, so that their items are evaluated again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from evaluator.store.files import move_into
from evaluator.store.reading import damage_of
from evaluator.store.records import RecordStore
from evaluator.store.schema import CONTROL_COLUMNS, VERDICT_COLUMNS
from launch.run.decide.assignments import Part
from launch.run.directory.rundir import REFERENCES
from launch.sweep.preflight import Prepared

_NAMED = 3  # parts


def set_damaged_aside(
    prepared: Prepared, store: RecordStore, run_dir: Path, warn: Callable[[str], None] = lambda text: None
) -> None:
    """Move the unreadable parts aside; `warn` receives one line about them.

    Raises InputError if the system refuses to read or move a file, ResurfaceError if another driver has taken over
    the directory.
    """
    damaged = store.damaged()
    if not damaged:
        return
    parts = {(path.parent.parent.name, path.parent.name) for path in damaged}
    again = _bases(prepared, parts, run_dir)
    # Bases first: if the driver is killed in between, the next call finds the damaged parts again.
    for part in again:
        for path in store.parts(*part):
            if path not in damaged:
                store.set_aside(path)
    for path in damaged:
        store.set_aside(path)
    named = [f"{path} ({why})" for path, why in list(damaged.items())[:_NAMED]]
    more = f", and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
    bases = "".join(f"; all of {task} on {name} too, whose distributions are gone" for name, task in again)
    one = len(damaged) == 1
    warn(
        f"{len(damaged)} part{' is' if one else 's are'} damaged, and moved to {run_dir / 'damaged'}: "
        f"{', '.join(named)}{more}; {'its' if one else 'their'} items are evaluated again{bases}"
    )


def set_verdicts_aside(run_dir: Path, matcher: str, warn: Callable[[str], None]) -> None:
    """Move aside a matcher's unreadable verdicts on responses and control pairs, so that it judges those again.

    `warn` receives one line for each file. Raises InputError if the system refuses to read or move a file.
    """
    kinds = (("verdicts", VERDICT_COLUMNS), ("controls", CONTROL_COLUMNS))
    for kind, columns in kinds:
        needed = [name for name, column in columns.items() if not column.meaning.later]
        for path in sorted((run_dir / kind / matcher).rglob("*.parquet")):
            if (why := damage_of(path, columns, needed)) is not None:
                target = move_into(run_dir / "damaged" / path.relative_to(run_dir).parent, path)
                warn(f"{path} is damaged ({why}), and moved to {target}; this command judges again")


def _bases(prepared: Prepared, parts: set[Part], run_dir: Path) -> list[Part]:
    """The bases and tasks to evaluate again, because damaged checkpoints need their distributions.

    A finished run has removed these distributions. A base may need its own base's.
    """
    bases = {job.name: job.base for job in prepared.jobs if job.base is not None}
    compared = {(name, task.name) for name in bases for task in prepared.asked[name] if task.config.references}
    found: set[Part] = set()
    left = parts & compared
    while left:
        bases_of = {(bases[name], task) for name, task in left}
        gone = {part for part in bases_of - found if not (run_dir / REFERENCES / part[0] / part[1]).is_dir()}
        found |= gone
        left = gone & compared
    return sorted(found)
