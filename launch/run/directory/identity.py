"""Which sweeps continue a run: it may grow, but no finished cell changes.

A cell is a checkpoint, a task, a language and a probe, with all settings that its
records depend on. Another call may add checkpoints, tasks, languages, probes and
items, and run seeds. What it leaves out stays in the run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from evaluator.core.errors import Document, InputError, Json, mapping_at, rows_at
from evaluator.probes import PROBES
from evaluator.tasks.base import plain_task, task_and_prompt

if TYPE_CHECKING:
    from pathlib import Path

    from launch.sweep.prepared_tasks import Asked, PreparedTask

_Prepared = dict[tuple[str, str], "PreparedTask"]  # by checkpoint and task
# settings of a task
_GROWING = ("items", "languages", "probes", "seeds")
# sections of an identity by checkpoint, in words
_SECTIONS = {
    "models": "its weights and configuration",
    "bases": "its base",
    "kv_cache": "kv_cache",
}


def continued(file: Path, stored: Json, now: Document, asked: Asked) -> Json:
    """The identity of the run with the cells of `stored` and of this call.

    Raises InputError, which names the cell and the setting, if a cell of both
    differs."""
    joined: Json = json.loads(json.dumps(now, default=str))
    changes = [*_of_checkpoints(stored, joined)]
    changes += _of_tasks(stored, joined, asked)
    if changes:
        raise InputError(
            f"{file}: {changes[0]}; finished cells keep their settings: use a new --out"
        )
    return joined


def _of_checkpoints(stored: Document, joined: Json) -> Iterator[str]:
    """What differs beside tasks; adds the stored checkpoints to `joined`."""
    now = {**mapping_at(joined, "models")}
    engine = stored.get("engine"), joined.get("engine")
    for problem in differences("engine", *engine):
        yield f"all cells: {problem}"
    for section, words in _SECTIONS.items():
        before, after = mapping_at(stored, section), mapping_at(joined, section)
        for name in before.keys() & after.keys():
            for problem in differences(words, before[name], after[name]):
                yield f"{name}: {problem}"
        if before:
            joined[section] = {**before, **after}
    made = {str(row.get("name")): row for row in rows_at(stored, "checkpoints")}
    for row in rows_at(joined, "checkpoints"):
        name = str(row.get("name"))
        for problem in differences("", made.get(name, row), row):
            yield f"{name}: {problem}"
        made[name] = row
    yield from _renamed(stored, joined, made)
    yield from _renamed_base(stored, now)
    joined["checkpoints"] = [made[name] for name in sorted(made)]


def _renamed(
    stored: Document, joined: Json, made: Mapping[str, Document]
) -> Iterator[str]:
    """The checkpoints that this call makes under another name: a second model, say,
    puts the model's name before those of its prunings."""
    before: dict[str, str] = {}
    for row in rows_at(stored, "checkpoints"):
        before[_made_as(row, joined)] = str(row.get("name"))
    for name, row in made.items():
        earlier = before.get(_made_as(row, joined), name)
        if earlier != name:
            yield f"{earlier}: its name is {earlier!r} there, {name!r} here"


def _renamed_base(stored: Document, now: Document) -> Iterator[str]:
    """The base that the models `now` have under another name: two runs in one."""
    before = mapping_at(stored, "models")
    for base in {*mapping_at(stored, "bases").values()} - now.keys():
        for name in now.keys() - before.keys():
            if before.get(base) == now[name]:
                yield f"{base}: its name is {base!r} there, {name!r} here"


def _made_as(row: Document, joined: Document) -> str:
    settings = {key: value for key, value in row.items() if key != "name"}
    base = mapping_at(joined, "bases").get(str(row.get("name")))
    return json.dumps([base, settings], sort_keys=True)


def _of_tasks(stored: Document, joined: Json, asked: Asked) -> Iterator[str]:
    """What differs in tasks; adds the stored cells to `joined`."""
    prepared: _Prepared = {
        (name, task.name): task for name, tasks in asked.items() for task in tasks
    }
    for name, keys in mapping_at(stored, "tasks").items():
        new_keys = joined["tasks"].setdefault(name, {})
        new_settings = joined["task_settings"].setdefault(name, {})
        for task, key in mapping_at(keys).items():
            settings = mapping_at(stored, "task_settings", name, task)
            if (name, task) not in prepared:
                yield from _posed_again(name, task, settings, prepared)
                new_keys[task], new_settings[task] = key, settings
                continue
            cell = f"{name}, task {task}"
            for problem in settings_differ(settings, new_settings[task]):
                yield f"{cell}: {problem}"
            this = prepared[name, task]
            if this.key_under(settings) != key:
                yield f"{cell}: its data have changed"
            yield from _examples(cell, this, settings)
            grown = new_settings[task] | _grown(settings, new_settings[task])
            new_settings[task], new_keys[task] = grown, this.key_under(grown)


def _posed_again(
    name: str, task: str, settings: Document, prepared: _Prepared
) -> Iterator[str]:
    """A task of the run that this call names otherwise: its name has the length of
    its contexts where there are several."""
    for (checkpoint, other), now in prepared.items():
        same = plain_task(other), task_and_prompt(other)[1]
        if checkpoint != name or same != (plain_task(task), task_and_prompt(task)[1]):
            continue
        if list(now.config.context_tokens) == settings.get("context_tokens"):
            yield f"{name}, task {task}: its name is {task!r} there, {other!r} here"


def _examples(cell: str, task: PreparedTask, before: Document) -> Iterator[str]:
    """The first solved example that another number of items changes: an item that is
    asked is no example."""
    for item, example, other in task.moved_examples(int(before["items"])):
        yield (
            f"{cell}: items is {before['items']} there, {task.config.items} here: the"
            f" one_shot example of {item!r} is {example!r} there, {other!r} here"
        )
        return


def _grown(before: Document, after: Document) -> Json:
    """The growing settings of both."""
    grown: Json = {"items": max(before["items"], after["items"])}
    if 0 in (before["items"], after["items"]):  # all
        grown["items"] = 0
    languages = before["languages"], after["languages"]
    grown["languages"] = None  # all
    if None not in languages:
        grown["languages"] = list(dict.fromkeys([*languages[1], *languages[0]]))
    seeds = [each["seeds"] or [each["seed"]] for each in (after, before)]
    grown["seeds"] = after["seeds"]
    if seeds[0] != seeds[1]:
        grown["seeds"] = list(dict.fromkeys([*seeds[0], *seeds[1]]))
    probes = {*before["probes"], *after["probes"]}
    grown["probes"] = [name for name in PROBES.names if name in probes]
    return grown


def settings_differ(before: Document, after: Document) -> list[str]:
    """How the settings of a task differ, without those that grow."""
    sides = []
    for settings in (before, after):
        sides.append({k: v for k, v in settings.items() if k not in _GROWING})
    return list(differences("", *sides))


def differences(setting: str, before: Any, after: Any) -> Iterator[str]:
    """The settings that differ inside two values."""
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted(before.keys() | after.keys()):
            inner = f"{setting}.{name}" if setting else name
            yield from differences(inner, before.get(name), after.get(name))
        return
    there, here = (json.dumps(each)[:60] for each in (before, after))
    yield f"{setting} is {there} there, {here} here"
