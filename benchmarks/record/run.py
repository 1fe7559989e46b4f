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
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
import typer

from benchmarks.harness import Options, count, run_main, settings
from benchmarks.record.card import card_of, read_rows
from benchmarks.record.division import DIVISIONS, SMALLER, division_of
from evaluator.core.errors import InputError, ResurfaceError, json_text
from evaluator.core.files import write_atomically
from evaluator.store.reading import read_run
from launch.commands.call import run_and_report
from launch.run.directory.lock import need_place
from launch.run.events import Began, Event
from launch.sweep.models import resolve_model

DOES_NOT_HOLD = 4  # exit code


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
    stamp, first = datetime.fromtimestamp(began, UTC), list[float]()
    run_id = f"{division.name}-{stamp:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    config = division.sweep(
        run_id, options.model, options.engine_args, options.resources
    )

    def on(event: Event, _: object) -> None:
        if isinstance(event, Began):
            first.append(time.time())

    try:
        run_and_report(config, run, listeners=(on,))
    except typer.Exit:
        raise ResurfaceError(
            f"{run}: a part of the division failed: there is no card"
        ) from None
    wall_s = time.time() - began
    measured = {
        "began": stamp.isoformat(timespec="seconds"),
        "wall_s": round(wall_s, 3),
        "start_s": round(first[0] - began, 3),
        "usable_cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),  # of the last minute: what else ran
    }
    card = card_of(read_run(run), read_rows(run), division, measured)
    write_atomically(out / "card.json", (json_text(card, indent=2) + "\n").encode())
    print(json_text(card))


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
