"""Whether a card holds: its figures follow from the run, all records are there, and a
random share of them is computed the slow way: transformers, one prompt at a time.

The records to recompute are drawn with a seed from the records' own digest: who changes
a record draws others.
"""

import math
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.record.card import MEASURED, Row, card_of, read_rows
from benchmarks.record.division import Division, Item, division_of
from evaluator.asking.questions import Posed, Question
from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.core.errors import InputError, one_line, parse, read_bytes
from evaluator.engine.tolerances import NATS
from evaluator.probes.config import EvalConfig
from evaluator.store.reading import read_run
from evaluator.tasks.loading import gold_option
from launch.sweep.models import resolve_model

# settings of a run that the division does not fix as a whole
_FREE = ("models", "engine", "resources", "gate")
_RECOMPUTED = ("greedy", "beam", "choice", "rank")


class Refused(Exception):
    """The card does not hold: the reason, in one line."""


def verify(folder: Path, model: str | None, seed: int | None, share: float) -> str:
    """What holds, in one line. Raises Refused with the reason if it does not,
    InputError for what cannot be read.

    `model`: where the model is; None: where the run found it. `share` of the records
    are recomputed.
    """
    try:
        return _verified(folder, model, seed, share)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{folder}: not a whole submission: {type(error).__name__}:"
            f" {one_line(error)}"
        ) from error


def _verified(folder: Path, model: str | None, seed: int | None, share: float) -> str:
    file = folder / "card.json"
    card = parse(read_bytes(file), str(file))
    run, division = read_run(folder / "run"), division_of(card["division"])
    if not run:
        raise InputError(f"{folder / 'run' / 'run.json'}: no such file")
    path = resolve_model(model or run["config"]["models"][card["run_id"]])
    weights = inspect_checkpoint(path).weights_digest
    _same("weights_digest", card["weights_digest"], weights)
    _check_run(run, card["run_id"], division)
    rows = read_rows(folder / "run")
    config, plans = division.plans(path)
    _check_records(rows, card, config, plans)
    derived = card_of(run, rows, division, {name: card[name] for name in MEASURED})
    for name in sorted({*derived, *card}):
        _same(name, card.get(name), derived.get(name))
    if card["start_s"] + (card["engine_s"] or 0.0) > card["wall_s"] * 1.001:
        raise Refused(
            f"wall_s is {card['wall_s']}, less than those of start and engine"
        )
    seed = int(card["records_digest"][:16], 16) if seed is None else seed
    slow = _Slow(path, on_cpu=run["provenance"]["device"] == "cpu")
    chosen = _chosen(rows, seed, share)
    for row in chosen:
        plan = plans[row["language"], row["item_id"]]
        if wrong := slow.fault(row, *_ids_of(row, plan)):
            where = f"{row['language']}/{row['item_id']}, {row['probe']} {row['index']}"
            raise Refused(f"{where}: {wrong}")
    return (
        f"division {division.name}, {len(plans)} items, {len(rows)} records, of which"
        f" {len(chosen)} were recomputed (seed {seed})"
    )


def _same(name: str, there: object, here: object) -> None:
    if there != here:
        raise Refused(
            f"{name} is {one_line(repr(there), 80)}, but the submission gives"
            f" {one_line(repr(here), 80)}"
        )


def _check_run(run: Mapping[str, Any], run_id: str, division: Division) -> None:
    """That run.json is of a whole run of the division, in one go."""
    config = run["config"]
    _same("the name of the run", [*config["models"]], [run_id])
    wanted = division.sweep(run_id, config["models"][run_id], {}, {})
    for name, value in wanted.model_dump(mode="json").items():
        if name not in _FREE:
            _same(f"run.json: config.{name}", config.get(name), value)
    _same("run.json: dtype", config["engine"]["dtype"], division.dtype)
    _same("run.json: state", run["state"], "finished")
    engines = [row["engine"] for row in run["engine_stats"]]
    if not engines or len({*engines}) < len(engines):
        raise Refused(
            "the run was resumed, or an engine started again: its seconds are not those"
            " of all the work"
        )


def _check_records(
    rows: list[Row],
    card: Mapping[str, Any],
    config: EvalConfig,
    plans: Mapping[Item, Posed],
) -> None:
    """That all records are of this run, and each item x probe x index is there
    exactly once."""
    wanted = {
        "checkpoint": card["run_id"],
        "weights_digest": card["weights_digest"],
        "dtype": card["dtype"],
        "seed": config.seed,
    }
    surplus: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        for name, value in wanted.items():
            _same(f"a record's {name}", row[name], value)
        if row["status"] == "engine_error":
            raise Refused(f"{row['item_id']}, {row['probe']}: its status is an error")
        surplus[row["language"], row["item_id"], row["probe"], row["index"]] += 1
    for item, plan in plans.items():
        counts = dict.fromkeys(config.probes, 1)
        if "open" in plan.prompts:  # else each is excluded once
            counts["beam"], counts["sample"] = config.beam_width, config.samples
            counts["choice"] = len(_options(plan))
        for probe, count in counts.items():
            for index in range(count):
                surplus[(*item, probe, index)] -= 1
    for key, count in surplus.items():
        if count:
            what = "too many" if count > 0 else "missing"
            raise Refused(f"a record is {what}: {'/'.join(map(str, key))}")


def _options(plan: Posed) -> tuple[str, ...]:
    assert isinstance(plan, Question)  # of an item, not a window of a text
    return plan.option_texts


def _chosen(rows: list[Row], seed: int, share: float) -> list[Row]:
    """A random share of each recomputed probe's records, at least one of each."""
    draw, chosen = random.Random(seed), []
    asked = [row for row in rows if row["status"] != "excluded"]
    for probe in _RECOMPUTED:
        of_probe = [row for row in asked if row["probe"] == probe]
        chosen += draw.sample(of_probe, math.ceil(share * len(of_probe)))
    return chosen


def _ids_of(row: Row, plan: Posed) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """The ids before a record's answer, and the answer's own where the model does not
    choose it."""
    if row["probe"] in ("greedy", "beam"):
        return plan.prompts["open"].token_ids, None
    text = gold_option(plan.item)
    if row["probe"] == "choice":
        text = _options(plan)[row["index"]]
    return plan.scored[text].prompt_ids, plan.scored[text].continuation_ids


class _Slow:
    """transformers in float32, one prompt at a time."""

    def __init__(self, model: Path, *, on_cpu: bool) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        exact = on_cpu and device == "cpu"
        # of a token, in nats
        allowed = NATS["float32" if exact else "float32 on a GPU"]
        self._one, self._mean = allowed.largest, allowed.mean
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._model: Any = loaded.to(device).eval()

    def fault(
        self, row: Row, prompt: tuple[int, ...], answer: tuple[int, ...] | None
    ) -> str | None:
        """How a record differs from the slow computation, in words; None if it does
        not."""
        ids = row["token_ids"]
        if answer is not None and tuple(ids) != answer:
            return "other tokens were scored"
        tokens = torch.tensor([[*prompt, *ids[:-1]]], device=self._model.device)
        with torch.inference_mode():
            logits_TV = self._model(tokens, logits_to_keep=len(ids)).logits[0]
        logprobs_TV = logits_TV.float().log_softmax(-1).cpu()
        own_T, best_T = logprobs_TV[range(len(ids)), ids], logprobs_TV.max(1).values
        total, allowed = float(own_T.sum()), max(self._one, self._mean * len(ids))
        if abs(row["logprob"] - total) > allowed:
            return (
                f"its log-probability is {row['logprob']:.6g}, recomputed"
                f" {total:.6g} (allowed: {allowed:.2g})"
            )
        if row["probe"] == "greedy" and bool((own_T < best_T - 2 * self._one).any()):
            return "one of its tokens is not the likeliest"
        return None
