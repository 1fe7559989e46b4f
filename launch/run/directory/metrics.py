"""`RUN/metrics.prom`: the counts of a run as Prometheus text, for the textfile collector of a node exporter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader

if TYPE_CHECKING:
    from launch.run.decide.assignments import Event, Part

NAME = "metrics.prom"
_TEMPLATES = Environment(loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True)  # noqa: S701


@dataclass(slots=True)
class Plan:
    """The items of a run, by checkpoint and task; `lost`: checkpoints that failed, in whole or in part."""

    planned: dict[Part, int] = field(default_factory=dict)
    done: Counter[Part] = field(default_factory=Counter)
    lost: set[str] = field(default_factory=set)
    failures: int = 0

    def on(self, event: Event, part: Part) -> bool:
        """Count an event of a part; returns whether it completes the part's checkpoint."""
        match event.kind:
            case "advanced":
                self.done[part] += event.items
                return self.has(part)
            case "decided":
                self.planned[part] = max(event.items, self.done[part])
                return self.has(part)
            case "gave_up":
                self.failures += 1
                self.lost |= set() if event.state == "item" else {event.checkpoint}
        return False

    def has(self, part: Part) -> bool:
        """Whether all items of its checkpoint are done."""
        if self.done[part] < self.planned.get(part, 0):
            return False
        return all(self.done[each] >= items for each, items in self.planned.items() if each[0] == part[0])

    def states(self, busy: Collection[str | None]) -> Counter[str]:
        """The number of checkpoints in each state. `busy`: those that engines evaluate."""
        left = {part[0] for part, items in self.planned.items() if self.done[part] < items}
        found = Counter(done=0, running=0, waiting=0, failed=0)
        for name in {part[0] for part in self.planned} | self.lost:
            state = "running" if name in busy else "failed" if name in self.lost else "waiting"
            found[state if name in left or name in self.lost else "done"] += 1
        return found


def prometheus(**values: Any) -> str:
    """The file, from the values that its template names."""
    return _TEMPLATES.get_template(f"{NAME}.j2").render(values)
