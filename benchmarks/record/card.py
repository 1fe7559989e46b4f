"""The card of a record: all but the measured fields follows from the run directories,
so a verifier derives it again (verify.py)."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.record.division import Draw
from evaluator.core.errors import Document, Json, mapping_at, rows_at
from evaluator.store.reading import read_part, read_run, record_parts
from evaluator.store.schema import KEY, RECORD_COLUMNS, RECORDS

# The submitter's word: what only the run itself can tell. Of a round, of the card.
MEASURED = ("began", "wall_s", "start_s", "steady_s", "load")
STATED = ("usable_cores", "clocks", "patches", "without_patches")
ROUNDS = 3
STEADY_S = {"cpu": 60, "gpu": 600}  # of a round that is compared with other machines
_ELSEWHERE = ("checkpoint", "cached_tokens", "device")  # columns of where and when
_STATUSES = {
    "ok": "completed",
    "truncated": "completed",
    "engine_error": "failed",
    "excluded": "excluded",
}
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A run directory that has been read, and what was measured while it ran."""

    run: Document  # run.json
    rows: Sequence[Row]
    measured: Document  # the fields of `MEASURED`


def read_round(folder: Path, measured: Document) -> Round:
    """Raises InputError for a directory that cannot be read."""
    return Round(run=read_run(folder), rows=_read_rows(folder), measured=measured)


def _read_rows(run: Path) -> list[Row]:
    """The records of a run, in the order of their keys."""
    rows: list[Row] = []
    for parts in record_parts(run):
        for part in parts:
            rows += read_part(part, RECORDS.names, RECORD_COLUMNS).to_pylist()
    return sorted(rows, key=lambda row: json.dumps([row[name] for name in KEY]))


def records_digest(rows: Iterable[Row]) -> str:
    """Of sorted rows. Without the columns of where and when, honest runs on one
    machine have the same."""
    hashed = hashlib.sha256()
    for row in rows:
        kept = {name: row[name] for name in row if name not in _ELSEWHERE}
        hashed.update(json.dumps(kept, ensure_ascii=False).encode() + b"\n")
    return hashed.hexdigest()


def card_of(
    draw: Draw, rounds: Sequence[Round], unshared: Round | None, stated: Document
) -> Json:
    """The card; `stated` has the fields of `STATED`. `unshared`: a round without
    prefix caching."""
    run = rounds[0].run
    config, provenance = mapping_at(run, "config"), mapping_at(run, "provenance")
    (model,) = config["models"].values()
    device = "cpu" if provenance.get("device") == "cpu" else "gpu"
    described = [round_of(each) for each in rounds]
    seconds = [each["steady_s"] for each in described]
    speeds = [each["items_per_steady_second"] for each in described]
    machine = ("processor", "cpus", "device", "platform")
    return {
        "division": draw.division.name,
        "division_digest": draw.division.digest,
        "nonce": draw.nonce,
        "items_per_language": draw.items,
        "model": model.rstrip("/").rpartition("/")[2],
        "weights_digest": rows_at(run, "checkpoints")[0]["weights_digest"],
        "dtype": config["engine"]["dtype"],
        "items_per_steady_second": {
            "median": _short(median(speeds)),
            "least": min(speeds),
            "most": max(speeds),
        },
        "comparable": len(rounds) >= ROUNDS and min(seconds) >= STEADY_S[device],
        "quality": _quality(rounds[0].rows),
        "rounds": described,
        "without_sharing": unshared and round_of(unshared),
        "machine": {name: provenance.get(name) for name in machine},
        "versions": provenance.get("versions"),
        "commit": provenance.get("commit"),
        # whether the checkout differed from the commit
        "dirty": provenance.get("dirty"),
        **stated,
    }


def round_of(of: Round) -> Json:
    """A round's figures. `steady_s` begins at the first item and ends at the last
    one; start, tables and page are apart."""
    engines = rows_at(of.run, "engine_stats")
    items = len({(row["language"], row["item_id"]) for row in of.rows})
    computed = sum(
        row["prompt_tokens"] + row["generated_tokens"] - row["requests"]
        for row in engines
    )
    engine_s = None  # if the engine cannot tell
    if all(row["busy_seconds"] is not None for row in engines):
        engine_s = sum(
            row["busy_seconds"] + row["waiting_seconds"] + row["idle_seconds"]
            for row in engines
        ) / len(engines)  # of one of several, which ran side by side
    statuses = Counter(_STATUSES[row["status"]] for row in of.rows)
    return {
        "run_id": next(iter(mapping_at(of.run, "config")["models"])),
        "items": items,
        "records": {name: statuses[name] for name in sorted({*_STATUSES.values()})},
        "records_digest": records_digest(of.rows),
        "requests": sum(row["requests"] for row in engines),
        "computed_tokens": computed,
        "engines": len(engines),
        "engine_s": engine_s and _short(engine_s),
        "items_per_second": _short(items / of.measured["wall_s"]),
        "items_per_steady_second": _short(items / of.measured["steady_s"]),
        **of.measured,
    }


def _quality(rows: Iterable[Row]) -> Json:
    """Of the questions that were answered, the share whose greedy answer contains a
    gold answer (`open`), and whose gold option is likelier than all others
    (`choice`)."""
    contains: list[bool] = []
    gold: dict[tuple[str, str], float] = {}
    others: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        key = row["language"], row["item_id"]
        if row["probe"] == "greedy" and row["contains"] is not None:
            contains.append(row["contains"])
        elif row["probe"] == "choice" and row["logprob"] is not None:
            if row["is_gold"]:
                gold[key] = row["logprob"]
            else:
                others.setdefault(key, []).append(row["logprob"])
    chosen = [gold[key] > max(scores) for key, scores in others.items()]
    return {"open": _share(contains), "choice": _share(chosen)}


def _share(values: Sequence[bool]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def _short(value: float) -> float:
    return float(f"{value:.4g}")
