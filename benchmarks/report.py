"""What a report costs: processor time and peak memory of `resurface report`.

    python -m benchmarks.report [--large]

The records are made up. Every item is asked by `greedy`, `choice` and `rank`, and the
first 100 of a language by beams and samples too. A base knows 80 % of the items, and
its checkpoints lose up to half of these. `--large` adds the row of 20,000 items."""

import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from benchmarks.harness import Child, Options, module_command, print_table, run_main
from evaluator.core.errors import Json, json_text
from evaluator.core.files import write_parquet
from evaluator.core.memory import rare_collections
from evaluator.core.records import Origin
from evaluator.report import write_report
from evaluator.store.cells import Cells
from evaluator.store.schema import ITEMS, RECORDS

SIZES = ((6, 360), (20, 400))  # checkpoints, items
LARGE = (30, 20_000)
LANGUAGES = ("english", "finnish", "korean", "russian", "swahili", "telugu")
BROAD = 100  # items of a language with beams and samples
PROBES = {"greedy": 1, "beam": 5, "sample": 10, "choice": 4, "rank": 1}
COMMON: Json = {
    "method": "wanda",
    "pattern": "unstructured",
    "sparsity": 0.5,
    "task": "made",
}
COMMON |= {"format": "open", "seed": 0, "status": "ok", "truncated": False}
COMMON |= {"engine": "none", "engine_version": "0", "dtype": "float32"}


def make_run(run: Path, checkpoints: int, items: int) -> None:
    """A run directory with all that a report reads."""
    (run / "run.json").write_text(json.dumps({"schema_version": 2, "provenance": {}}))
    numbers, cells = np.arange(items // len(LANGUAGES)), Cells(run)
    for at, language in enumerate(LANGUAGES):
        for number in range(checkpoints):
            records = _records(number, number / checkpoints / 2, numbers, at)
            records = records.assign(language=language)
            name = records["checkpoint"].iloc[0]
            columns = [
                pa.array(records[field.name], field.type)
                if field.name in records
                else pa.nulls(len(records), field.type)
                for field in RECORDS
            ]
            table = pa.table(columns, RECORDS)
            first = table.slice(0, 1).to_pylist()[0]
            origin = {each: first[each] for each in Origin.__struct_fields__}
            cells.put(Origin(**origin), "made", name, {})
            write_parquet(table, run / "records" / name / f"part-{at:06d}.parquet")
    cells.save()
    asked = pd.DataFrame({"item_id": [*map(str, numbers)]}).assign(
        task="made", context="A fact.", question="Which?", cluster=numbers // 3
    )
    asked["answers"] = asked["options"] = [["gold"]] * len(asked)
    parts = [asked.assign(language=language) for language in LANGUAGES]
    rows = pd.concat(parts).astype({"cluster": str}).assign(digest=None, groups=None)
    table = pa.Table.from_pandas(rows, ITEMS, preserve_index=False)
    write_parquet(table, run / "items" / "made.parquet")


def _records(
    checkpoint: int, loss: float, numbers: np.ndarray, language: int
) -> pd.DataFrame:
    """One checkpoint's records of one language, probe by probe."""
    draws = np.random.default_rng([language, checkpoint])
    knows = np.random.default_rng(language).random(len(numbers)) < 0.8
    said = knows & (draws.random(len(numbers)) >= loss)
    picked = knows & (draws.random(len(numbers)) >= loss / 2)
    parts = []
    for probe, count in PROBES.items():
        here = numbers[:BROAD] if probe in ("beam", "sample") else numbers
        item, index = np.repeat(here, count), np.tile(np.arange(count), len(here))
        hit = said[item] | ((index > 0) & (draws.random(len(item)) < 0.1))
        part = pd.DataFrame({"item_id": item.astype(str), "probe": probe})
        part = part.assign(
            index=index, prompt_tokens=140, logprob=-draws.random(len(item))
        )
        if probe == "rank":
            part = part.assign(
                rank=np.where(hit, 1, 9), margin=np.where(hit, 0.0, -1.0)
            )
        elif probe == "choice":
            gold = index == 0
            score = np.where(gold, np.where(picked[item], 0.0, -2.0), -1.0)
            part = part.assign(is_gold=gold, logprob=score + part["logprob"] / 2)
            part["option_text"] = np.where(gold, "gold", index.astype(str))
        else:
            part = part.assign(
                contains=hit, exact_match=hit, token_f1=hit.astype(float)
            )
            part["text"] = np.where(hit, "gold", "another answer")
            part["token_ids"] = [[5, 6, 7]] * len(part)
        parts.append(part)
    name = f"pruned-{checkpoint:02}" if checkpoint else "dense"
    base = "dense" if checkpoint else None
    common: Json = COMMON | {"checkpoint": name, "weights_digest": name, "base": base}
    return pd.concat(parts).assign(**common)


def measure(checkpoints: int, items: int) -> Json:
    """A report's own time, and the peak memory of this process, which made the run."""
    with tempfile.TemporaryDirectory() as folder:
        make_run(Path(folder), checkpoints, items)
        began = time.process_time()
        with rare_collections():  # as in the command
            write_report(Path(folder))
        seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"checkpoints": checkpoints, "items": items, "cpu_s": seconds, "gib": peak}


def main() -> None:
    options = Options(__doc__)
    options.add_argument("--large", action="store_true", help="also 30 x 20,000 items")
    options.add_argument("--one", nargs=2, type=int, help="checkpoints and items: JSON")
    given = options.parse_args()
    if given.one:
        print(json_text(measure(*given.one)))
        return
    rows = []
    for size in (*SIZES, LARGE)[: None if given.large else len(SIZES)]:
        command = module_command("benchmarks.report", "--one", *size)
        rows.append(Child(f"report of {size}", command).only())
    names = ("checkpoints", "items", "cpu_s", "gib")
    shown = [[f"{row[name]:,.4g}" for name in names] for row in rows]
    print_table("report", ("checkpoints", "items", "processor s", "peak GiB"), shown)
    print(json_text({"benchmark": "report", "rows": rows}))


if __name__ == "__main__":
    run_main(main)
