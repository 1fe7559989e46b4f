"""A record of evaluation throughput: a fixed division of work through the whole
product, with a card of it.

    resurface bench record --division closed [--model DIR] --out DIR
                                            runs it: DIR/run, DIR/card.json
    resurface bench record --verify DIR [--model DIR]
                                            0: the card holds; 4: it does not

The division fixes items, prompts, probes, limits, seeds and dtype. Any model may run
it.
"""

import argparse
import os
import secrets
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import typer

from benchmarks.harness import Options, count, run_main, settings
from benchmarks.record.card import Row, card_of, read_rows
from benchmarks.record.division import DIVISIONS, SMALLER, division_of
from benchmarks.serving import workload
from benchmarks.serving.launching import start
from evaluator.core.errors import InputError, ResurfaceError, json_text
from evaluator.core.files import write_atomically
from evaluator.store.reading import read_run
from launch.commands.running import run_and_report
from launch.run.directory.lock import need_place
from launch.run.events import Began, Event
from launch.sweep.models import resolve_model

DOES_NOT_HOLD = 4  # exit code
_LOOK_SECONDS = 0.5


class Memory(threading.Thread):
    """The most bytes that this process and its descendants held at once; looked at
    twice a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.ended = threading.Event()

    def run(self) -> None:
        this = psutil.Process()
        while not self.ended.wait(_LOOK_SECONDS):
            held = 0
            for process in (this, *this.children(recursive=True)):
                with suppress(psutil.Error):
                    held += process.memory_info().rss
            self.peak = max(self.peak, held)


def record(options: argparse.Namespace) -> None:
    """Run the division, write the card, print it as the last line. Raises
    ResurfaceError if a part of it failed."""
    smaller = f"{SMALLER}{options.items}" if options.items else ""
    division = division_of(f"{options.division}{smaller}")
    out, run = options.out, options.out / "run"
    resolve_model(options.model)  # a missing one is bad input at once
    need_place(run)
    if run.exists() or (out / "card.json").exists():
        raise InputError(
            f"{out}: --out: holds a record already; a record is one run from its start,"
            " use a new folder"
        )
    began = psutil.Process().create_time()
    stamp, first, memory = datetime.fromtimestamp(began, UTC), list[float](), Memory()
    run_id = f"{division.name}-{stamp:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    config = division.sweep(
        run_id, options.model, options.engine_args, options.resources
    )

    def on(event: Event, _: object) -> None:
        if isinstance(event, Began):
            first.append(time.time())

    memory.start()
    try:
        run_and_report(config, run, listeners=(on,))
    except typer.Exit:
        raise ResurfaceError(
            f"{run}: a part of the division failed: there is no card"
        ) from None
    wall_s = time.time() - began
    memory.ended.set()
    document, rows = read_run(run), read_rows(run)
    measured: dict[str, Any] = {
        "began": stamp.isoformat(timespec="seconds"),
        "wall_s": round(wall_s, 3),
        "start_s": round(first[0] - began, 3),
        "peak_memory_bytes": memory.peak,
        "usable_cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),  # of the last minute: what else ran
        "peer": None,
    }
    card = card_of(document, rows, division, measured)
    _write(out, card)  # it is there before the peer begins
    if options.peer:
        options.task, options.items = division.task, card["items"]
        card["peer"] = _peer(options, rows)
        _write(out, card)
    print(json_text(card))


def _write(out: Path, card: dict[str, Any]) -> None:
    write_atomically(out / "card.json", (json_text(card, indent=2) + "\n").encode())


def _peer(options: argparse.Namespace, rows: list[Row]) -> dict[str, Any]:
    """The same items by vLLM's own calls (`bench pass` has them), in seconds once
    its engine is up."""
    options.llm_args, options.context_tokens = {}, 0
    with (
        workload.written(options) as path,
        start("theirs", "everything", path) as theirs,
    ):
        result = theirs.round()
    same = 0
    for row in rows:
        if row["probe"] == "greedy":
            item = f"{row['language']}/{row['item_id']}"
            same += result["greedy"].get(item) == row["token_ids"]
    return {
        "name": options.peer,
        "seconds": round(result["seconds"], 3),
        "items_per_second": float(f"{options.items / result['seconds']:.4g}"),
        "lacks": ["aligned_rank", "records"],
        "same_greedy_answers": same,
    }


def main() -> None:
    parser = Options(__doc__)
    add = parser.add_argument
    add("--division", default="closed", choices=tuple(DIVISIONS), help="what is asked")
    model = "a checkpoint directory or hub id (default: the bundled one; the run's own)"
    add("--model", help=model)
    new = "a new folder: DIR/run, DIR/card.json"
    add("--out", type=Path, metavar="DIR", help=new)
    items = "N items of each language: another division, a test"
    add("--items", type=count, metavar="N", help=items)
    engine = "JSON: settings of our engine but its dtype"
    add("--engine-args", type=settings, default={}, help=engine)
    resources = 'JSON: of the run, as {"engines": 2}'
    add("--resources", type=settings, default={}, help=resources)
    add("--peer", choices=("vllm",), help="then the same items by vLLM's own calls")
    add("--verify", type=Path, metavar="DIR", help="check the card of DIR")
    seed = "of the records to recompute (default: from their digest)"
    add("--seed", type=int, help=seed)
    share = "of the records to recompute (default: 0.02)"
    add("--share", type=float, default=0.02, help=share)
    options = parser.parse_args()
    if (options.out is None) == (options.verify is None):
        raise InputError("give one of --out DIR, to run the division, and --verify DIR")
    if not 0 < options.share <= 1:
        raise InputError(
            f"--share: {options.share} is no share of the records (above 0, at most 1)"
        )
    if options.out is not None:
        options.model = options.model or "bundled"
        record(options)
        return
    from benchmarks.record.verify import Refused, verify

    card = options.verify / "card.json"
    try:
        holds = verify(options.verify, options.model, options.seed, options.share)
    except Refused as reason:
        print(f"{card}: the card does not hold: {reason}", file=sys.stderr)
        raise SystemExit(DOES_NOT_HOLD) from None
    print(f"the card holds: {holds}")


if __name__ == "__main__":
    run_main(main)
