"""RUN/metrics.prom: what its numbers count, and that Prometheus can read it."""

import re
from pathlib import Path

from launch.run.decide.assignments import Event
from launch.run.directory.live import LiveState
from launch.run.directory.metrics import Plan

SAMPLE = re.compile(r'(resurface_[a-z_]+)(?:\{([a-z]+)="([a-z_]+)"\})? (-?[0-9.e+-]+)')


def _read(file: Path) -> dict[tuple[str, str], float]:
    """The samples, by name without prefix and label; each after the help and the type of its name."""
    found, described = {}, []
    for line in file.read_text().splitlines():
        if line.startswith("# "):
            described.append(re.fullmatch(r"# (HELP|TYPE) (resurface_[a-z_]+) (.+)", line).group(2))
        else:
            name, _, label, value = SAMPLE.fullmatch(line).groups()
            assert described[-2:] == [name, name]
            found[name.removeprefix("resurface_"), label or ""] = float(value)
    assert len(described) == 2 * len(set(described))
    return found


def test_the_counts_of_a_run_continue_those_of_earlier_calls(tmp_path: Path) -> None:
    logs = tmp_path / "logs" / "events.jsonl"
    logs.parent.mkdir()
    earlier = ("started", 0), ("died", 30), ("retried", 40), ("started", 50)
    logs.write_text(
        "".join(f'{{"time": "2026-01-01T00:00:{second:02}Z", "event": "{event}"}}\n' for event, second in earlier)
    )
    planned = {("dense", "t"): 40, ("dense", "u"): 20, ("wanda", "t"): 40, ("owl", "t"): 40}
    now = iter(range(0, 10_000, 10))
    live = LiveState(tmp_path, Plan(planned=planned, lost={"owl"}, failures=1), clock=lambda: float(next(now)))
    live.earlier_stats = [{"generated_tokens": 100, "prompt_tokens": None}]
    live.plan.done["dense", "t"] = 40
    told = [
        Event(kind="placed", engine=0), Event(kind="loading", engine=0, checkpoint="dense"),
        Event(kind="began", engine=0, checkpoint="dense", task="u", items=20),
        Event(kind="advanced", engine=0, items=10),
    ]  # fmt: skip
    assert [live.on(event) for event in told] == [None] * 4
    live.look(lambda: [{"engine": 0, "generated_tokens": 11, "idle_share": 0.1, "waiting_share": 0.1}])
    found = _read(tmp_path / "metrics.prom")
    states = {label: value for (name, label), value in found.items() if name == "checkpoints"}
    assert states == {"done": 0, "running": 1, "waiting": 1, "failed": 1}
    assert (found["items_done", ""], found["items_planned", ""], found["failures", ""]) == (50, 140, 1)
    assert (found["engines_alive", ""], found["engine_deaths", ""], found["retries", ""]) == (1, 1, 1)
    assert (found["tokens", "generated"], found["calls", ""], found["state", "running"]) == (111, 2, 1)
    assert found["seconds", ""] > 40
    assert live.on(Event(kind="advanced", engine=0, items=10)) == ("dense", 60.0)
    live.on(Event(kind="ended", engine=0))
    live.on(Event(kind="decided", checkpoint="wanda", task="t", items=0, total=40))
    live.on(Event(kind="died", engine=0))
    live.write_metrics("finished_with_failures", [])
    found = _read(tmp_path / "metrics.prom")
    assert (found["checkpoints", "done"], found["items_planned", ""], found["engines_alive", ""]) == (2, 100, 0)
    assert (found["state", "running"], found["state", "finished_with_failures"], found["engine_deaths", ""]) == (
        0,
        1,
        2,
    )
