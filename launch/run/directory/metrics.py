"""`RUN/metrics.prom`: the counts of a run as Prometheus text, for the textfile collector of a node exporter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from launch.run.directory.events import History, State

if TYPE_CHECKING:
    from launch.run.decide.assignments import Event, Part

NAME = "metrics.prom"
_TOKENS = ("prompt", "generated", "cached")
# All are gauges: an interrupted call's counts after its last write are lost.
_HELP = {
    "items_done": "Items with all their records.",
    "items_planned": "Items that the run evaluates.",
    "failures": "Checkpoints, tasks and items that were given up.",
    "checkpoints": "Checkpoints by state.",
    "engines_alive": "Engines with a process.",
    "engine_deaths": "Deaths of engines, over all calls.",
    "retries": "Repeated starts, jobs and shards, over all calls.",
    "tokens": "Tokens that engines computed, or found in their cache, over all calls.",
    "seconds": "Seconds of all calls.",
    "calls": "Calls of the command.",
    "state": "1 for the state of the run.",
}


@dataclass(slots=True)
class Tally:
    """What a run has done, from its events. `planned`, `done`: items by checkpoint and task."""

    planned: dict[Part, int] = field(default_factory=dict)
    done: Counter[Part] = field(default_factory=Counter)
    lost: set[str] = field(default_factory=set)  # checkpoints that failed, in whole or in part
    failures: int = 0
    alive: set[int] = field(default_factory=set)  # engines
    busy: dict[int, Part] = field(default_factory=dict)  # by engine
    counts: Counter[str] = field(default_factory=Counter)  # events, by kind

    def on(self, event: Event) -> str | None:
        """Count an event; returns the checkpoint that it completes."""
        self.counts[event.kind] += 1
        part = event.checkpoint, event.task
        match event.kind:
            case "placed":
                self.alive.add(event.engine)
            case "died" | "left":
                self.alive.discard(event.engine)
            case "began":
                self.busy[event.engine] = part
            case "ended":
                self.busy.pop(event.engine, None)
            case "gave_up":
                self.failures += 1
                self.lost |= set() if event.state == "item" else {event.checkpoint}
            case "advanced":
                part = self.busy[event.engine]
                self.done[part] += event.items
                return self._completed(part)
            case "decided":
                self.planned[part] = max(event.items, self.done[part])
                return self._completed(part)
        return None

    def states(self) -> dict[str, int]:
        """The number of checkpoints in each state."""
        names = dict.fromkeys(name for name, _ in self.planned)
        left = {part[0] for part, items in self.planned.items() if self.done[part] < items}
        busy = {name for name, _ in self.busy.values()}
        found = dict.fromkeys(("done", "running", "waiting", "failed"), 0)
        for name in names:
            state = "running" if name in busy else "failed" if name in self.lost else "waiting"
            found[state if name in left or name in self.lost else "done"] += 1
        found["failed"] += len(self.lost - names.keys())
        return found

    def _completed(self, part: Part) -> str | None:
        if self.done[part] < self.planned.get(part, 0):
            return None
        parts = [(each, items) for each, items in self.planned.items() if each[0] == part[0]]
        return part[0] if all(self.done[each] >= items for each, items in parts) else None


def prometheus(tally: Tally, earlier: History, seconds: float, state: str, stats: Collection[Mapping[str, Any]]) -> str:
    """The file. `earlier`: what former calls counted; `seconds`: of this call; `stats`: rows of all calls' engines."""
    tokens = {
        kind: sum(count for row in stats if isinstance(count := row.get(f"{kind}_tokens"), int)) for kind in _TOKENS
    }
    values: dict[str, Iterable[tuple[str, float]]] = {
        "items_done": [("", sum(min(tally.done[part], items) for part, items in tally.planned.items()))],
        "items_planned": [("", sum(tally.planned.values()))],
        "failures": [("", tally.failures)],
        "checkpoints": [(f'{{state="{name}"}}', count) for name, count in tally.states().items()],
        "engines_alive": [("", 0 if state != "running" else len(tally.alive))],
        "engine_deaths": [("", earlier.deaths + tally.counts["died"])],
        "retries": [("", earlier.retries + tally.counts["retried"])],
        "tokens": [(f'{{kind="{kind}"}}', count) for kind, count in tokens.items()],
        "seconds": [("", round(earlier.seconds + seconds, 3))],
        "calls": [("", max(1, earlier.calls))],
        "state": [(f'{{state="{name}"}}', int(name == state)) for name in get_args(State)],
    }
    lines = []
    for name, samples in values.items():
        lines += [f"# HELP resurface_{name} {_HELP[name]}", f"# TYPE resurface_{name} gauge"]
        lines += [f"resurface_{name}{labels} {value}" for labels, value in samples]
    return "\n".join(lines) + "\n"
