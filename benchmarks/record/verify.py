"""Whether a card holds: counts, limits and figures of all records, and a random share
of them computed the slow way.

The slow way is transformers in float32, one prompt at a time. A full forward pass gives
log-probabilities, ranks and greedy answers, and its own beam search gives beams. On a
CPU our engine draws a sample with one uniform number a token, from a generator with the
sample's seed, so the draw is repeated. Elsewhere each token must lie in its nucleus.

The records to recompute are drawn with a seed from the records' own digest: who changes
a record draws others.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.record.card import (
    Division,
    Refused,
    Row,
    Submission,
    card_of,
    division_of,
)
from benchmarks.serving.workload import fewest
from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.core.errors import (
    InputError,
    field,
    mapping_at,
    of_kind,
    one_line,
    parse,
    rows_at,
)
from evaluator.core.grading import grades
from evaluator.engine.self_check import TOLERANCES
from evaluator.probes.sample import sample_seed
from evaluator.store.reading import read_run
from launch.sweep.models import resolve_model

# Of the card, what only the run itself can tell.
_MEASURED = ("began", "wall_s", "start_s", "peak_memory_bytes", "peak_gpu_bytes", "usable_cores", "load", "peaks",
             "peer")  # fmt: skip
_PEAKS = ("threads", "element_bytes", "flops_per_second", "bytes_per_second", "devices")
# settings of a run that the division does not fix as a whole
_FREE = ("models", "engine", "resources", "gate")
# a draw, in [0, 1], as close to the end of its token's part may be the next token's
_CLOSE = 1e-3


def verify(folder: Path, model: str | None, seed: int | None, share: float) -> str:
    """What holds, in one line. Raises Refused with the reason if it does not,
    InputError for what cannot be read.

    `model`: where the model is; None: where the run found it. `share` of the records
    are recomputed.
    """
    try:
        return _verified(folder, _card(folder), model, seed, share)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{folder}: not a whole submission: {type(error).__name__}:"
            f" {one_line(error)}"
        ) from error


def _verified(
    folder: Path,
    card: Mapping[str, Any],
    model: str | None,
    seed: int | None,
    share: float,
) -> str:
    division, run, run_id = (
        division_of(card["division"]),
        read_run(folder / "run"),
        card["run_id"],
    )
    if not run:
        raise InputError(f"{folder / 'run' / 'run.json'}: no such file")
    _same("division_digest", card.get("division_digest"), division.digest)
    _same("the name of the run", [*mapping_at(run, "config", "models")], [run_id])
    path = resolve_model(model or str(run["config"]["models"][run_id]))
    _same(
        "weights_digest",
        card.get("weights_digest"),
        inspect_checkpoint(path).weights_digest,
    )
    _check_run(run, card, division)
    found = Submission.read(folder / "run", division, path)
    _check_origin(found, card, division)
    derived = card_of(found, division, path, {name: card[name] for name in _MEASURED})
    for name in sorted({*derived, *card}):
        _same(name, card.get(name), derived.get(name))
    _check_cache(found, card)
    if card["start_s"] + (card["engine_s"] or 0.0) > card["wall_s"] * 1.001:
        raise Refused(
            f"wall_s is {card['wall_s']}, less than those of start and engine"
        )
    seed = int(card["records_digest"][:16], 16) if seed is None else seed
    slow, chosen = _Slow(path, found), _chosen(found.rows, seed, share)
    for fault, rows in ((partial(_fault, found), found.rows), (slow.fault, chosen)):
        for row in rows:
            if wrong := fault(row):
                raise Refused(
                    f"{row['language']}/{row['item_id']},"
                    f" {row['probe']} {row['index']}: {wrong}"
                )
    said = (
        f"division {division.name}, {len(found.plans)} items, {len(found.rows)} records"
    )
    return f"{said}, of which {len(chosen)} were recomputed (seed {seed})"


def _card(folder: Path) -> Mapping[str, Any]:
    """card.json with the fields that are read here. Raises InputError."""
    file = folder / "card.json"
    if not file.is_file():
        raise InputError(
            f"{file}: no such file; `resurface bench record --out DIR` writes it"
        )
    card: dict[str, Any] = of_kind(parse(file.read_bytes(), str(file)), dict, str(file))
    for name in ("division", "run_id", "began"):
        field(card, name, str, str(file))
    peaks = field(card, "peaks", dict, str(file))
    numbers = {name: card.get(name) for name in ("wall_s", "start_s")} | {
        name: peaks.get(name) for name in _PEAKS
    }
    for name, value in numbers.items():
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise InputError(
                f"{file}: field {name!r} is {value!r}, not a number above 0"
            )
    if missing := [name for name in _MEASURED if name not in card]:
        raise InputError(f"{file}: field {missing[0]!r} is missing")
    return card


def _same(name: str, there: object, here: object) -> None:
    if there != here:
        raise Refused(
            f"{name} is {one_line(repr(there), 80)}, but the submission gives"
            f" {one_line(repr(here), 80)}"
        )


def _check_run(
    run: Mapping[str, Any], card: Mapping[str, Any], division: Division
) -> None:
    """That run.json is of a whole run of the division, in one go, and of this card."""
    config, run_id = mapping_at(run, "config"), card["run_id"]
    wanted = division.sweep(run_id, str(config["models"][run_id]), {}, {}).model_dump(
        mode="json"
    )
    for name in wanted.keys() - {*_FREE}:
        _same(f"run.json: config.{name}", config.get(name), wanted[name])
    _same("run.json: dtype", mapping_at(config, "engine").get("dtype"), division.dtype)
    _same("run.json: state", run.get("state"), "finished")
    weights = [row.get("weights_digest") for row in rows_at(run, "checkpoints")]
    _same("run.json: weights_digest", weights, [card["weights_digest"]])
    stamp = f"{division.name}-{datetime.fromisoformat(card['began']):%Y%m%dT%H%M%SZ}"
    _same("the time in the name of the run", run_id.rpartition("-")[0], stamp)
    stats = rows_at(run, "engine_stats")
    if not stats or len({row.get("engine") for row in stats}) < len(stats):
        raise Refused(
            "the run was resumed, or an engine started again: its seconds are not those"
            " of all the work"
        )


def _check_origin(
    found: Submission, card: Mapping[str, Any], division: Division
) -> None:
    """That all records are of this run, and each item x probe x format x index is
    there exactly once."""
    wanted: dict[str, list[Any]] = {
        "checkpoint": [card["run_id"]],
        "weights_digest": [card["weights_digest"]],
        "dtype": [division.dtype],
        "seed": [found.config.seed],
        "format": [*found.config.formats],
        "device": [row.get("device") for row in rows_at(found.run, "engine_stats")],
        "engine_version": [*mapping_at(found.run, "provenance", "versions").values()],
    }
    for name, values in wanted.items():
        if strange := [row[name] for row in found.rows if row[name] not in values]:
            raise Refused(
                f"{len(strange)} records are of another run: {name} is {strange[0]!r},"
                f" here {values[0]!r}"
            )
    asked = Counter(
        (*item, *place) for item, places in found.asked.items() for place in places
    )
    had = Counter(
        (row["language"], row["item_id"], row["probe"], row["index"])
        for row in found.rows
    )
    for names, what in ((asked - had, "missing"), (had - asked, "too many")):
        if names:
            raise Refused(
                f"{names.total()} records are {what}, the first is"
                f" {'/'.join(map(str, min(names)))}"
            )
    beams: dict[object, list[tuple[int, ...]]] = defaultdict(list)
    for row in found.rows:
        if row["probe"] == "beam":
            beams[row["item_id"]].append(tuple(row["token_ids"] or ()))
    if same := [
        item for item, answers in beams.items() if len({*answers}) < len(answers)
    ]:
        raise Refused(f"{same[0]}: two of its beams are the same")


def _check_cache(found: Submission, card: Mapping[str, Any]) -> None:
    """That the prefix cache was empty at first: each token that the answers need was
    computed once, or more often."""
    rows = [row for row in found.rows if row["cached_tokens"] is not None]
    computed = sum(row["prompt_tokens"] - row["cached_tokens"] for row in rows)
    # each had a request of its own
    own = [row for row in rows if row["probe"] in ("greedy", "sample")]
    cached = sum(row["cached_tokens"] for row in own)
    answered = sum(row["cached_tokens"] for row in rows_at(found.run, "engine_stats"))
    prompts = fewest(
        (plan.prompts["open"].token_ids, (0,), True)
        for plan in found.plans.values()
        if plan.prompts
    )
    for what, had, needed in (
        ("computed_tokens", card["computed_tokens"], card["fewest_tokens"]),
        (
            "prompt tokens of the records that were not cached",
            computed,
            prompts.forwards,
        ),
        ("cached tokens of the engine", answered, cached),
    ):
        if had < needed:
            raise Refused(
                f"{what}: {had}, and the answers took {needed} at least: from the cache"
                " of another run"
            )


def _fault(found: Submission, row: Row) -> str | None:
    """What a record contradicts that needs no model: prompt, scored tokens, limits,
    text, grades."""
    plan, asked = found.plans[row["language"], row["item_id"]], found.asked_of(row)
    if (
        row["status"] == "engine_error"
        or (row["status"] == "excluded") != asked.excluded
    ):
        return f"its status is {row['status']!r}"
    if asked.excluded:
        return None
    ids, most, eos = (
        row["token_ids"] or [],
        found.config.max_new_tokens,
        found.prompter.eos_ids,
    )
    if (
        row["prompt_tokens"] != len(asked.prompt)
        or row["truncated"] != plan.prompts["open"].truncated
    ):
        return (
            f"its prompt has {row['prompt_tokens']} tokens, the item's has"
            f" {len(asked.prompt)}"
        )
    if row["logprob"] is None and row["probe"] != "sample":
        return "it has no log-probability"
    if asked.answer is not None:
        return None if tuple(ids) == asked.answer else "other tokens were scored"
    if not 0 < len(ids) <= most or any(token in eos for token in ids[:-1]):
        return (
            f"its answer has {len(ids)} tokens (at most {most}), or goes on after EOS"
        )
    if len(ids) < most and ids[-1] not in eos:
        return f"its answer is shortened: {len(ids)} tokens without EOS"
    text, item = found.prompter.decode(ids), plan.item
    graded = {
        "text": text,
        "grading": found.config.grading,
        **grades(text, item.answers, item.language),
    }
    wrong = [name for name, value in graded.items() if row[name] != value]
    return f"its column {wrong[0]} does not follow from its tokens" if wrong else None


def _chosen(rows: Sequence[Row], seed: int, share: float) -> list[Row]:
    """A random share of each probe's records, at least one of each."""
    draw, by_probe = random.Random(seed), defaultdict(list)
    for row in rows:
        if row["status"] != "excluded":
            by_probe[row["probe"]].append(row)
    return [
        row
        for _, some in sorted(by_probe.items())
        for row in draw.sample(some, math.ceil(share * len(some)))
    ]


class _Slow:
    """transformers, one prompt at a time, in float32."""

    def __init__(self, model: Path, found: Submission) -> None:
        """Raises InputError if transformers cannot load the model."""
        self._config, self._found = found.config, found
        self._on_cpu = mapping_at(found.run, "provenance").get("device") == "cpu"
        here = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        exact = self._on_cpu and here.type == "cpu"
        # of a token, in nats
        self._one, self._mean = TOLERANCES["float32" if exact else "float32 on a GPU"]
        try:
            loaded = AutoModelForCausalLM.from_pretrained(
                model, dtype=torch.float32, local_files_only=True
            )
        except (
            Exception
        ) as error:  # whatever a library of the checkpoint's format raises
            raise InputError(
                f"{model}: transformers cannot load it: {one_line(error)}"
            ) from error
        self._model = loaded.to(here).eval()
        self._beams = lru_cache(maxsize=None)(self._search)

    def fault(self, row: Row) -> str | None:
        """How a record differs from the slow computation, in words; None if it does
        not."""
        prompt, ids = self._found.asked_of(row).prompt, row["token_ids"]
        logprobs_TV = self._logprobs(prompt, ids)
        if row["probe"] == "sample":
            return self._sample_fault(row, logprobs_TV)
        own_T, best_T = logprobs_TV[range(len(ids)), ids], logprobs_TV.max(1).values
        total, allowed = float(own_T.sum()), max(self._one, self._mean * len(ids))
        if abs(row["logprob"] - total) > allowed:
            return (
                f"its log-probability is {row['logprob']:.6g}, recomputed"
                f" {total:.6g} (allowed: {allowed:.2g})"
            )
        if row["probe"] == "greedy" and bool((own_T < best_T - 2 * self._one).any()):
            return "one of its tokens is not the likeliest"
        # one that is as good has another place only if their scores are equal
        if row["probe"] == "beam":
            score = self._beams(prompt)[row["index"]]
            apart = abs(total / len(ids) - score) > self._one
            return (
                f"its score is {total / len(ids):.6g}, the slow search's {score:.6g}"
                if apart
                else None
            )
        if row["rank"] is not None:
            first, last = (
                int((logprobs_TV[0] > own_T[0] + 2 * by).sum())
                for by in (self._one, -self._one)
            )
            if not first < row["rank"] <= max(last, first + 1):
                return f"its rank is {row['rank']}, recomputed {first + 1} to {last}"
            if abs(row["margin"] - float(own_T[0] - best_T[0])) > 2 * self._one:
                return (
                    f"its margin is {row['margin']:.6g}, recomputed"
                    f" {float(own_T[0] - best_T[0]):.6g}"
                )
        return None

    def _logprobs(self, prompt: Sequence[int], answer: Sequence[int]) -> torch.Tensor:
        """The whole distributions before each token of the answer, [T, V]."""
        ids = torch.tensor([[*prompt, *answer[:-1]]], device=self._model.device)
        with torch.inference_mode():
            logprobs_TV: torch.Tensor = (
                self._model(ids, logits_to_keep=len(answer))
                .logits[0]
                .float()
                .log_softmax(-1)
            )
        return logprobs_TV.cpu()

    def _sample_fault(self, row: Row, logprobs_TV: torch.Tensor) -> str | None:
        generator = torch.Generator().manual_seed(
            sample_seed(row["seed"], row["item_id"], row["index"])
        )
        for step, token in enumerate(row["token_ids"]):
            drawn, possible = float(torch.rand(1, generator=generator)), False
            # Rounding may move the nucleus's last token: it is looked at with a little
            # less and more.
            for more in (0.0, -_CLOSE / 10, _CLOSE / 10):
                nucleus_V = self._nucleus(logprobs_TV[step], self._config.top_p + more)
                end, part = float(nucleus_V[: token + 1].sum()), float(nucleus_V[token])
                possible |= part > 0 and (
                    not self._on_cpu or end - part - _CLOSE <= drawn <= end + _CLOSE
                )
            if not possible:
                return f"its token {step} is not one that its seed draws"
        return None

    def _nucleus(self, logprobs_V: torch.Tensor, top_p: float) -> torch.Tensor:
        """The distribution after temperature and nucleus; ties of the last token
        belong to it."""
        probability_V = (logprobs_V.double() / self._config.temperature).softmax(-1)
        sorted_V = probability_V.sort(descending=True).values
        last = max(0, int(((sorted_V.cumsum(-1) - sorted_V) < top_p).sum()) - 1)
        kept_V = probability_V.masked_fill(probability_V < sorted_V[last], 0.0)
        return kept_V / kept_V.sum()

    def _search(self, prompt: tuple[int, ...]) -> list[float]:
        """The scores of transformers' beams."""
        ids, width = (
            torch.tensor([prompt], device=self._model.device),
            self._config.beam_width,
        )
        eos = sorted(self._found.prompter.eos_ids)
        with torch.inference_mode():
            output = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=width, num_return_sequences=width,
                length_penalty=1.0, early_stopping=False, max_new_tokens=self._config.max_new_tokens,
                eos_token_id=eos, pad_token_id=min(eos), return_dict_in_generate=True, output_scores=True,
            )  # fmt: skip
        scores: list[float] = output.sequences_scores.tolist()
        return scores
