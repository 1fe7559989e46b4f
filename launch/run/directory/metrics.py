"""`RUN/metrics.prom`: the counts of a run as Prometheus text, for the textfile collector of a node exporter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from launch.run.directory.events import History, State

if TYPE_CHECKING:
    from launch.run.decide.assignments import Event, Part

NAME = "metrics.prom"


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
            case "decided":
                self.planned[part] = max(event.items, self.done[part])
        if event.kind not in ("advanced", "decided") or self.done[part] < self.planned.get(part, 0):
            return None
        left = any(self.done[each] < items for each, items in self.planned.items() if each[0] == part[0])
        return None if left else part[0]

    def states(self) -> Counter[str]:
        """The number of checkpoints in each state."""
        left = {part[0] for part, items in self.planned.items() if self.done[part] < items}
        busy = {name for name, _ in self.busy.values()}
        found = Counter(done=0, running=0, waiting=0, failed=0)
        for name in {part[0] for part in self.planned} | self.lost:
            open_state = "running" if name in busy else "waiting"
            found["failed" if name in self.lost - busy else open_state if name in left else "done"] += 1
        return found


def prometheus(tally: Tally, earlier: History, seconds: float, state: str, stats: Collection[Mapping[str, Any]]) -> str:
    """The file. `earlier`: what former calls counted; `seconds`: of this call; `stats`: rows of all calls' engines."""
    done = sum(min(tally.done[part], items) for part, items in tally.planned.items())
    tokens = {kind: [row.get(f"{kind}_tokens") for row in stats] for kind in ("prompt", "generated", "cached")}
    values: list[tuple[str, str, Mapping[str, float] | float]] = [
        ("items_done", "Items with all their records.", done),
        ("items_planned", "Items that the run evaluates.", sum(tally.planned.values())),
        ("failures", "Checkpoints, tasks and items that were given up.", tally.failures),
        ("checkpoints", "Checkpoints by state.", tally.states()),
        ("engines_alive", "Engines with a process.", len(tally.alive)),
        ("engine_deaths", "Deaths of engines, over all calls.", earlier.deaths + tally.counts["died"]),
        ("retries", "Repeated starts, jobs and shards, over all calls.", earlier.retries + tally.counts["retried"]),
        (
            "tokens",
            "Tokens computed, or found in the cache.",
            {kind: sum(filter(None, n)) for kind, n in tokens.items()},
        ),
        ("seconds", "Seconds of all calls.", round(earlier.seconds + seconds, 3)),
        ("calls", "Calls of the command.", max(1, earlier.calls)),
        ("state", "1 for the state of the run.", {name: int(name == state) for name in get_args(State)}),
    ]
    lines = []
    for name, told, value in values:
        lines += [f"# HELP resurface_{name} {told}", f"# TYPE resurface_{name} gauge"]
        label = "kind" if name == "tokens" else "state"
        samples = (
            {f'{{{label}="{each}"}}': n for each, n in value.items()} if isinstance(value, Mapping) else {"": value}
        )
        lines += [f"resurface_{name}{labels} {number}" for labels, number in samples.items()]
    return "\n".join(lines) + "\n"
