"""A division, and the card of a run of it: everything but what is `measured` follows
from the run directory.

So a verifier derives it again (verify.py). The submitter's word are only the seconds of
the whole process, the peak of memory and the machine's measured peaks.

The digest of the records is that of their rows, sorted by their key. It leaves out
where and when they were computed (checkpoint's name, device, cached tokens), so that
honest runs on one machine have the same.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import roofline
from benchmarks.serving import workload
from evaluator.asking.prompts import Prompter
from evaluator.asking.questions import Posed, Question
from evaluator.core.errors import InputError, mapping_at, parse, rows_at, unknown
from evaluator.probes.config import EvalConfig
from evaluator.probes.planning import questions_of, tokenised
from evaluator.probes.rank import align, right
from evaluator.store.reading import read_part, read_run
from evaluator.store.schema import KEY, RECORD_COLUMNS, RECORDS
from evaluator.tasks import load_task
from evaluator.tasks.loading import gold_option
from launch.sweep.config import SweepConfig
from launch.sweep.document import digest, validated

DIVISIONS = {"closed": Path(__file__).with_name("closed.json")}
# closed-first-2: two items of each language, another division, for tests
SMALLER = "-first-"
_ELSEWHERE = ("checkpoint", "cached_tokens", "device")  # columns of where and when
Row = Mapping[str, Any]
Item = tuple[str, str]  # language, id


class Refused(Exception):
    """The card does not hold: the reason, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """What is asked, and how. `digest` covers all of it."""

    name: str
    task: str
    data: str  # the digest of the task's data
    # language -> ids, in the order in which they are asked
    items: Mapping[str, Sequence[str]]
    settings: Mapping[str, Any]  # of EvalConfig
    dtype: str
    digest: str

    def sweep(
        self,
        run_id: str,
        model: str,
        engine: Mapping[str, Any],
        resources: Mapping[str, Any],
    ) -> SweepConfig:
        """The sweep that runs it. Raises InputError for settings of the engine that
        the division fixes."""
        if "dtype" in engine:
            raise InputError(
                f"--engine-args: dtype: the division fixes it ({self.dtype})"
            )
        count = len(next(iter(self.items.values())))
        task = {
            "task": self.task,
            "languages": list(self.items),
            "items": count,
            **self.settings,
        }
        document = {
            "models": {run_id: model},
            "tasks": [task],
            "seed": self.settings["seed"],
            "resources": resources,
        }
        return validated(
            SweepConfig,
            {**document, "engine": {**engine, "dtype": self.dtype}},
            "resurface bench record",
        )

    def plans(self, model: Path) -> tuple[EvalConfig, Prompter, dict[Item, Posed]]:
        """Every item in the model's token ids. Raises InputError if this checkout's
        data are others."""
        (config,) = self.sweep("model", "", {}, {}).tasks
        data = load_task(self.task, list(self.items))
        questions = {
            (each.item.language, each.item.item_id): each
            for each in questions_of(data, config)
        }
        if data.digest != self.data or [*questions] != [
            (name, each) for name in self.items for each in self.items[name]
        ]:
            raise InputError(
                f"division {self.name}: this checkout has other data of task"
                f" {self.task}"
            )
        prompter = workload.prompter_of(model)
        return (
            config,
            prompter,
            {key: tokenised(each, prompter, config) for key, each in questions.items()},
        )


def division_of(name: str) -> Division:
    """A division by its name, or its first items. Raises InputError for an unknown
    one and for a changed file."""
    known, smaller, count = name.partition(SMALLER)
    if known not in DIVISIONS or (smaller and not (count.isdecimal() and int(count))):
        raise unknown("division", name, DIVISIONS)
    document = parse(DIVISIONS[known].read_bytes(), str(DIVISIONS[known]))
    if document.pop("digest") != digest(document):
        raise InputError(f"{DIVISIONS[known]}: digest: it is not that of the file")
    if smaller:
        items = {
            language: ids[: int(count)] for language, ids in document["items"].items()
        }
        document |= {"name": name, "items": items}
    return Division(**document, digest=digest(document))


def records_digest(rows: Iterable[Row]) -> str:
    """Of sorted rows, without the columns of where and when."""
    found = hashlib.sha256()
    for row in rows:
        kept = {name: value for name, value in row.items() if name not in _ELSEWHERE}
        found.update(json.dumps(kept, ensure_ascii=False).encode() + b"\n")
    return found.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a record must be of: the ids before its answer, and the answer's own
    where the model does not choose it."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...] | None = None
    excluded: bool = False


def _asked(
    question: Posed, config: EvalConfig, prompter: Prompter, greedy: Sequence[int]
) -> dict[tuple[str, int], Asked]:
    """What each probe asks of an item, by probe and index; `greedy` is the item's
    greedy answer."""
    assert isinstance(question, Question)
    if "open" not in question.prompts:
        return {(probe, 0): Asked(prompt=(), excluded=True) for probe in config.probes}
    prompt = question.prompts["open"].token_ids
    counts = {"greedy": 1, "beam": config.beam_width, "sample": config.samples}
    found = {
        (name, index): Asked(prompt=prompt)
        for name, count in counts.items()
        for index in range(count)
    }
    scored = {
        ("choice", index): text for index, text in enumerate(question.option_texts)
    }
    for place, text in (scored | {("rank", 0): gold_option(question.item)}).items():
        ids = question.scored[text]
        found[place] = Asked(prompt=ids.prompt_ids, answer=ids.continuation_ids)
    own = tuple(greedy[:-1] if greedy and greedy[-1] in prompter.eos_ids else greedy)
    aligned = align(own, partial(right, question.item, config.grading), prompter.decode)
    lead_in, answer = aligned or ((), ())
    found["aligned_rank", 0] = Asked(
        prompt=prompt + lead_in, answer=answer, excluded=aligned is None
    )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A run directory, read as a run of a division with a model."""

    run: Mapping[str, Any]  # run.json
    rows: Sequence[Row]  # in the order of their keys
    config: EvalConfig
    prompter: Prompter
    plans: Mapping[Item, Posed]
    asked: Mapping[Item, Mapping[tuple[str, int], Asked]]

    @classmethod
    def read(cls, folder: Path, division: Division, model: Path) -> "Submission":
        """Raises InputError for what cannot be read."""
        config, prompter, plans = division.plans(model)
        parts = (folder / "records").glob("*/*/*.parquet")
        rows = [
            row
            for part in parts
            for row in read_part(part, RECORDS.names, RECORD_COLUMNS).to_pylist()
        ]
        rows.sort(key=lambda row: json.dumps([row[name] for name in KEY]))
        greedy = {
            (row["language"], row["item_id"]): row["token_ids"] or ()
            for row in rows
            if row["probe"] == "greedy"
        }
        asked = {
            key: _asked(plan, config, prompter, greedy.get(key, ()))
            for key, plan in plans.items()
        }
        return cls(
            run=read_run(folder),
            rows=rows,
            config=config,
            prompter=prompter,
            plans=plans,
            asked=asked,
        )

    def asked_of(self, row: Row) -> Asked:
        return self.asked[row["language"], row["item_id"]][row["probe"], row["index"]]


def card_of(
    found: Submission, division: Division, model: Path, measured: Mapping[str, Any]
) -> dict[str, Any]:
    """The card; `measured` holds what only the run itself can tell (run.py)."""
    run, config, stats = (
        found.run,
        mapping_at(found.run, "config"),
        rows_at(found.run, "engine_stats"),
    )
    ((run_id, typed),) = config["models"].items()
    computed = sum(
        row["prompt_tokens"] + row["generated_tokens"] - row["requests"]
        for row in stats
    )
    asked = (
        (found.asked_of(row), row["token_ids"])
        for row in found.rows
        if row["token_ids"]
    )
    fewest = workload.fewest(
        (each.prompt, ids, each.answer is None) for each, ids in asked
    )
    needed, wall = min(1.0, fewest.forwards / max(1, computed)), measured["wall_s"]
    engine_s = split = None
    # else the engine cannot tell
    if all(row["busy_seconds"] is not None for row in stats):
        # Of one engine of several, which ran side by side.
        parts = ("busy", "waiting", "idle")
        busy, waiting, idle = (
            sum(row[f"{name}_seconds"] for row in stats) / len(stats) for name in parts
        )
        engine_s = busy + waiting + idle
        split = {
            "device": busy * needed,
            "unneeded_tokens": busy - busy * needed,
            "engine": waiting,
        }
        split["start"] = measured["start_s"]
        split["driver"] = wall - sum(split.values())
    provenance = mapping_at(run, "provenance")
    return {
        "division": division.name,
        "division_digest": division.digest,
        "run_id": run_id,
        "model": typed.rstrip("/").rpartition("/")[2],
        "weights_digest": next(
            (row["weights_digest"] for row in rows_at(run, "checkpoints")), None
        ),
        "dtype": config["engine"]["dtype"],
        "items": len(found.plans),
        "records": len(found.rows),
        "records_digest": records_digest(found.rows),
        "items_per_second": _short(len(found.plans) / wall),
        "items_per_engine_second": (
            None if engine_s is None else _short(len(found.plans) / engine_s)
        ),
        "engine_s": None if engine_s is None else _short(engine_s),
        "engines": len(stats),
        "computed_tokens": computed,
        "fewest_tokens": fewest.forwards,
        "fewest_distributions": fewest.distributions,
        "roofline": _roofline(model, fewest, measured["peaks"], wall, engine_s),
        "split": (
            None
            if split is None
            else {name: _short(seconds) for name, seconds in split.items()}
        ),
        "machine": {
            name: provenance.get(name)
            for name in ("processor", "cpus", "device", "platform")
        },
        "versions": provenance.get("versions"),
        "commit": provenance.get("commit"),
        # whether the checkout differed from the commit
        "dirty": provenance.get("dirty"),
        **measured,
    }


def _roofline(
    model: Path,
    fewest: workload.Fewest,
    peaks: Mapping[str, float],
    wall: float,
    engine_s: float | None,
) -> dict[str, float | None]:
    """Seconds of the fewest tokens' products, weights and cache at the measured
    peak, and the larger bound's shares."""
    counted, size, speed = (
        dataclasses.asdict(fewest),
        peaks["element_bytes"],
        peaks["bytes_per_second"],
    )
    products = roofline.read_products(model)
    whole = roofline.work(products, **counted, element_bytes=size)
    weights = roofline.work(products, **(counted | {"cached": 0}), element_bytes=size)[
        "bytes"
    ]
    found = {
        "products_s": whole["flops"] / peaks["flops_per_second"],
        "weights_s": weights / speed,
    }
    found["kv_reads_s"] = (whole["bytes"] - weights) / speed
    found = {name: seconds / peaks["devices"] for name, seconds in found.items()}
    bound = max(found["products_s"], found["weights_s"] + found["kv_reads_s"])
    shares = {
        name: _short(value)
        for name, value in (found | {"share_of_wall": bound / wall}).items()
    }
    return {
        **shares,
        "share_of_engine": None if engine_s is None else _short(bound / engine_s),
    }


def _short(value: float) -> float:
    return float(f"{value:.4g}")
