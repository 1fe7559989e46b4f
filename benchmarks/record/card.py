"""The card of a run of a division: all but `MEASURED` follows from the run directory,
so a verifier derives it again (verify.py)."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record.division import Division
from evaluator.core.errors import mapping_at, rows_at
from evaluator.store.reading import read_part, record_parts
from evaluator.store.schema import KEY, RECORD_COLUMNS, RECORDS

# The submitter's word: what only the run itself can tell.
MEASURED = ("began", "wall_s", "start_s", "usable_cores", "load")
_ELSEWHERE = ("checkpoint", "cached_tokens", "device")  # columns of where and when
Row = Mapping[str, Any]


def read_rows(run: Path) -> list[Row]:
    """The records of a run, in the order of their keys. Raises InputError."""
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
    run: Mapping[str, Any],
    rows: Sequence[Row],
    division: Division,
    measured: Mapping[str, Any],
) -> dict[str, Any]:
    """The card; `run` is run.json, `measured` has the fields of `MEASURED`."""
    config, engines = mapping_at(run, "config"), rows_at(run, "engine_stats")
    ((run_id, model),) = config["models"].items()
    items = sum(len(ids) for ids in division.items.values())
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
    provenance = mapping_at(run, "provenance")
    machine = ("processor", "cpus", "device", "platform")
    return {
        "division": division.name,
        "division_digest": division.digest,
        "run_id": run_id,
        "model": model.rstrip("/").rpartition("/")[2],
        "weights_digest": rows_at(run, "checkpoints")[0]["weights_digest"],
        "dtype": config["engine"]["dtype"],
        "items": items,
        "records": len(rows),
        "records_digest": records_digest(rows),
        "items_per_second": _short(items / measured["wall_s"]),
        "items_per_engine_second": engine_s and _short(items / engine_s),
        "engine_s": engine_s and _short(engine_s),
        "engines": len(engines),
        "computed_tokens": computed,
        "machine": {name: provenance.get(name) for name in machine},
        "versions": provenance.get("versions"),
        "commit": provenance.get("commit"),
        # whether the checkout differed from the commit
        "dirty": provenance.get("dirty"),
        **measured,
    }


def _short(value: float) -> float:
    return float(f"{value:.4g}")
