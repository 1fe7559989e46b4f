"""Whether a card holds: its figures follow from the run, all records are there, and a
random share of them is computed the slow way: transformers, one prompt at a time.

The records to recompute are drawn anew at each verification.
"""

import math
import random
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.record.card import MEASURED, STATED, Round, Row, card_of, read_round
from benchmarks.record.division import Draw, Key, division_of, stored_nonce
from evaluator.asking.questions import Question
from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.core.errors import (
    Document,
    InputError,
    one_line,
    parse,
    read_bytes,
    rows_at,
)
from evaluator.core.records import TokenIds
from evaluator.engine.tolerances import NATS
from evaluator.probes.config import EvalConfig
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
    draw = Draw(
        division=division_of(card["division"]),
        nonce=card["nonce"],
        items=card["items_per_language"],
    )
    whose = _check_nonce(folder, card)
    _check_items(folder, draw)
    rounds = [
        _read(folder / f"round-{number + 1}", measured)
        for number, measured in enumerate(card["rounds"])
    ]
    unshared = None
    if card["without_sharing"] is not None:
        unshared = _read(folder / "unshared", card["without_sharing"])
    stated = {name: card[name] for name in STATED}
    derived = card_of(draw, rounds, unshared, stated)
    for name in sorted({*derived, *card}):
        _same(name, card.get(name), derived.get(name))
    first_id = card["rounds"][0]["run_id"]
    path = resolve_model(model or rounds[0].run["config"]["models"][first_id])
    weights = inspect_checkpoint(path).weights_digest
    _same("weights_digest", card["weights_digest"], weights)
    seed = secrets.randbits(32) if seed is None else seed
    slow = _Slow(path, on_cpu=rounds[0].run["provenance"]["device"] == "cpu")
    check = _Check(folder / "items.jsonl", path, weights, slow, seed, share)
    recomputed = sum(check.round(draw, each) for each in rounds)
    if unshared is not None:
        recomputed += check.round(draw.quarter, unshared, prefix_caching=False)
    short = "" if card["comparable"] else "; too short to compare it with others"
    return (
        f"division {draw.division.name}, {len(rounds)} rounds of"
        f" {card['rounds'][0]['items']} items, {whose}; {recomputed} records were"
        f" recomputed (seed {seed}){short}"
    )


def _read(folder: Path, described: Document) -> Round:
    found = read_round(folder, {name: described[name] for name in MEASURED})
    if not found.run:
        raise InputError(f"{folder / 'run.json'}: no such file")
    return found


def _check_nonce(folder: Path, card: Document) -> str:
    """Who drew the nonce, in words. A run that began before the verifier drew it
    could have been computed in advance."""
    stored = stored_nonce(folder)
    if stored is None:
        return "the submitter's own nonce"
    nonce, drawn = stored
    _same("nonce", card["nonce"], nonce)
    began = card["rounds"][0]["began"]
    if datetime.fromisoformat(began) < datetime.fromisoformat(drawn):
        raise Refused(f"it began at {began}, before its nonce was drawn ({drawn})")
    return "the verifier's nonce"


def _check_items(folder: Path, draw: Draw) -> None:
    """That the questions are those that the nonce draws."""
    with TemporaryDirectory() as scratch:
        drawn = Path(scratch) / "items.jsonl"
        draw.write(drawn)
        if read_bytes(folder / "items.jsonl") != drawn.read_bytes():
            raise Refused("items.jsonl has other questions than the nonce draws")


@dataclass(frozen=True, slots=True)
class _Check:
    """The checks of a round: its settings, its records, and a share of them
    recomputed."""

    items: Path
    model: Path
    weights: str
    slow: "_Slow"
    seed: int
    share: float

    def round(self, draw: Draw, of: Round, *, prefix_caching: bool = True) -> int:
        """The number of records that were recomputed. Raises Refused."""
        (run_id,) = of.run["config"]["models"]
        _check_run(of.run, run_id, draw, prefix_caching=prefix_caching)
        config, plans = draw.plans(self.model, self.items)
        wanted = {
            "checkpoint": run_id,
            "weights_digest": self.weights,
            "dtype": draw.division.dtype,
            "seed": draw.seed,
        }
        _check_records(of.rows, wanted, config, plans)
        measured, engines = of.measured, rows_at(of.run, "engine_stats")
        busy_s = min(row["busy_seconds"] or 0.0 for row in engines)
        if measured["steady_s"] < busy_s * 0.999:
            raise Refused(
                f"{run_id}: steady_s is {measured['steady_s']}, less than an engine's"
                f" seconds ({busy_s:.3f})"
            )
        if measured["start_s"] + measured["steady_s"] > measured["wall_s"] * 1.001:
            raise Refused(
                f"{run_id}: wall_s is {measured['wall_s']}, less than those of start"
                " and steady part"
            )
        chosen = _chosen(of.rows, self.seed, self.share)
        for row in chosen:
            plan = plans[row["language"], row["item_id"]]
            if wrong := self.slow.fault(row, *_ids_of(row, plan)):
                key = f"{row['language']}/{row['item_id']}"
                raise Refused(f"{key}, {row['probe']} {row['index']}: {wrong}")
        return len(chosen)


def _same(name: str, there: object, here: object) -> None:
    if there != here:
        raise Refused(
            f"{name} is {one_line(repr(there), 80)}, but the submission gives"
            f" {one_line(repr(here), 80)}"
        )


def _check_run(run: Document, run_id: str, draw: Draw, *, prefix_caching: bool) -> None:
    """That run.json is of a whole run of the division, in one go."""
    config = run["config"]
    file = Path(config["tasks"][0]["task"].removeprefix("jsonl:"))
    wanted = draw.sweep(run_id, config["models"][run_id], file, {}, {})
    for name, value in wanted.model_dump(mode="json").items():
        if name not in _FREE:
            _same(f"run.json: config.{name}", config.get(name), value)
    engine = config["engine"]
    _same("run.json: dtype", engine["dtype"], draw.division.dtype)
    caching = engine.get("prefix_caching", True)
    _same("run.json: prefix_caching", caching, prefix_caching)
    _same("run.json: state", run["state"], "finished")
    engines = [row["engine"] for row in run["engine_stats"]]
    if not engines or len({*engines}) < len(engines):
        raise Refused(
            "the run was resumed, or an engine started again: its seconds are not those"
            " of all the work"
        )


def _check_records(
    rows: Sequence[Row],
    wanted: Document,
    config: EvalConfig,
    plans: Mapping[Key, Question],
) -> None:
    """That all records are of this run, and each item x probe x index is there
    exactly once."""
    surplus: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        for name, value in wanted.items():
            if name != "seed" or row["probe"] != "sample":
                _same(f"a record's {name}", row[name], value)
        if row["status"] == "engine_error":
            raise Refused(f"{row['item_id']}, {row['probe']}: its status is an error")
        surplus[row["language"], row["item_id"], row["probe"], row["index"]] += 1
    for key, plan in plans.items():
        for probe, count in _counts(plan, config).items():
            for index in range(count):
                surplus[(*key, probe, index)] -= 1
    for place, count in surplus.items():
        if count:
            what = "too many" if count > 0 else "missing"
            raise Refused(f"a record is {what}: {'/'.join(map(str, place))}")


def _counts(plan: Question, config: EvalConfig) -> Mapping[str, int]:
    """How many records each probe has of an item. Beams and samples are drawn of the
    first items only."""
    counts = dict.fromkeys(config.probes, 1)
    if not plan.deep:
        del counts["beam"], counts["sample"]
    if "open" not in plan.prompts:  # each is excluded once
        return counts
    if plan.deep:
        counts["beam"], counts["sample"] = config.beam_width, config.samples
    counts["choice"] = len(plan.option_texts)
    return counts


def _chosen(rows: Sequence[Row], seed: int, share: float) -> list[Row]:
    """A random share of each recomputed probe's records, at least one of each."""
    draw, chosen = random.Random(seed), []
    asked = [row for row in rows if row["status"] != "excluded"]
    for probe in _RECOMPUTED:
        of_probe = [row for row in asked if row["probe"] == probe]
        chosen += draw.sample(of_probe, math.ceil(share * len(of_probe)))
    return chosen


def _ids_of(row: Row, plan: Question) -> tuple[TokenIds, TokenIds | None]:
    """The ids before a record's answer, and the answer's own where the model does not
    choose it."""
    if row["probe"] in ("greedy", "beam"):
        return plan.prompts["open"].token_ids, None
    text = gold_option(plan.item)
    if row["probe"] == "choice":
        text = plan.option_texts[row["index"]]
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

    def fault(self, row: Row, prompt: TokenIds, answer: TokenIds | None) -> str | None:
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
