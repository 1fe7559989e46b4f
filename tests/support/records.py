"""Records written by hand: one line per item says what each probe of it found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from msgspec.structs import asdict

from evaluator.core.records import Format, Record, Status

GOLD, OTHERS = "gold", ("b", "c", "d")
EOS = 2


@dataclass(frozen=True)
class Seen:
    """What one checkpoint did with one item; None: the probe was not asked."""

    greedy: bool | None = None
    # True: gold wins, False: another option does, "tie": gold shares the best score
    choice: bool | str | None = None
    beams: Sequence[bool] | None = None
    samples: Sequence[bool] | None = None
    rank: int | None = None
    margin: float | None = None
    status: Status = "ok"
    choice_status: Status | None = None  # None: as `status`
    options: int = 4
    option_texts: Sequence[str] = (GOLD, *OTHERS)  # the gold one first
    truncated: bool = False
    hard: bool | str | None = None  # as `choice`, with hard distractors
    # of a status that is no measurement: what the record's text says
    why: str | None = None
    # perplexity: summed log-probability, predicted tokens
    window: tuple[float, int] | None = None
    aligned: int | str | None = None  # the aligned rank, or why it is not defined
    # the divergence at each position, or why it is not defined
    fidelity: Sequence[float] | str | None = None
    said: str | None = None  # the greedy answer; None: "gold" or "bad"
    tokens: int = 3  # of a greedy answer, EOS included
    ended: bool = True  # by EOS
    certainty: float = -0.1  # of a greedy answer, nats per token
    # of the gold option, where the others have -2; None: as `choice` says
    gold_score: float | None = None
    prompt: int = 50  # tokens of the prompt


def numbered(**languages: Sequence[Seen]) -> dict[str, Seen]:
    """What was seen of the items of each language, which are numbered from 1."""
    return {
        f"{name}/{at}": each
        for name, seen in languages.items()
        for at, each in enumerate(seen, 1)
    }


def records(
    checkpoint: str,
    seen: Mapping[str, Seen],
    *,
    base: str | None = None,
    task: str = "t",
    form: Format = "open",
    seed: int = 0,
    calibration: str | None = None,
    digest: str | None = None,
    dtype: str = "float32",
) -> pd.DataFrame:
    """`seen` maps "language/item" to what was seen. A pruned checkpoint is one with
    a base."""
    pruning = dict.fromkeys(("method", "pattern", "sparsity"))
    if base:
        pruning = {"method": "wanda", "pattern": "unstructured", "sparsity": 0.5}
    rows: list[Record] = []
    for key, item in seen.items():
        language, item_id = key.split("/")
        common: dict[str, Any] = {
            "checkpoint": checkpoint, "weights_digest": digest or checkpoint, "base": base, "calibration": calibration,
            "task": task, "language": language, "item_id": item_id, "format": form, "seed": seed, "engine": "fake",
            "engine_version": "0", "dtype": dtype, "status": item.status, "truncated": item.truncated,
        }  # fmt: skip
        rows += _records_of(item, pruning | common)
    return pd.DataFrame([asdict(row) for row in rows])


def _records_of(item: Seen, common: dict[str, Any]) -> list[Record]:
    rows = []

    def row(probe: str, index: int = 0, **columns: Any) -> None:
        rows.append(Record(**{**common, "probe": probe, "index": index, **columns}))

    if item.greedy is not None:
        row("greedy", **_answer(item, item.greedy, **_greedy_of(item)))
    for probe, hits in (("beam", item.beams), ("sample", item.samples)):
        for index, hit in enumerate(hits or ()):
            row(probe, index, **_answer(item, hit))
    for probe, won in (("choice", item.choice), ("hard_choice", item.hard)):
        for index, option in enumerate(_options_of(item, won)):
            row(probe, index, **option)
    if item.window is not None:
        logprob, tokens = item.window
        row("perplexity", logprob=logprob, prompt_tokens=tokens)
    if item.rank is not None:
        row("rank", rank=item.rank, margin=item.margin)
    if isinstance(item.aligned, int):
        place: dict[str, Any] = {
            "rank": item.aligned,
            "margin": -0.5 * (item.aligned - 1),
        }
        row("aligned_rank", text="It is ", option_text="gold", **place)
    elif item.aligned is not None:
        row("aligned_rank", status="excluded", text=item.aligned)
    if item.fidelity is not None:
        rows += _compared(item, common)
    return rows


def _answer(item: Seen, hit: bool, **columns: Any) -> dict[str, Any]:
    if item.status not in ("ok", "truncated"):
        return {"text": item.why}
    grade = {"contains": hit, "exact_match": hit, "token_f1": float(hit)}
    return grade | {"text": "gold" if hit else "bad"} | columns


def _options_of(item: Seen, won: bool | str | None) -> list[dict[str, Any]]:
    """The columns of each option: the gold one has the best score, or not."""
    if won is None:
        return []
    status = item.choice_status or item.status
    measured = status in ("ok", "truncated")
    gold = {True: -1.0, False: -3.0, "tie": -2.0}[won]
    if item.gold_score is not None:
        gold = item.gold_score
    options = []
    for index, text in enumerate(item.option_texts[: item.options]):
        score = -2.0 if index else gold
        option: dict[str, Any] = {
            "status": status,
            "is_gold": index == 0,
            "option_text": text,
        }
        option |= {"token_ids": (1, 2), "logprob": score if measured else None}
        options.append(option | {"text": None if measured else item.why})
    return options


def _compared(item: Seen, common: dict[str, Any]) -> list[Record]:
    """By hand: the reverse is twice the divergence, and every second position has an
    unsure base."""
    text = item.window is not None
    named: dict[str, Any] = {**common, "probe": "text_fidelity" if text else "fidelity"}
    if isinstance(item.fidelity, str):
        return [Record(**{**named, "status": "excluded"}, index=0, text=item.fidelity)]
    found = []
    for index in range(1 if text else 2):
        kld = tuple(item.fidelity or ())
        columns: dict[str, Any] = {
            "kld": kld,
            "kld_reverse": tuple(2 * each for each in kld),
            "acceptance": tuple(1 - each / 2 for each in kld),
            "same_top": tuple(each < 0.5 for each in kld),
            "top_agreement": tuple(1.0 if each < 0.5 else 0.4 for each in kld),
            "token_logprobs": tuple(-1.0 - each for each in kld),
            "base_token_logprobs": (-1.0,) * len(kld),
            "base_confidence": tuple(
                0.95 - 0.5 * (place % 2) for place in range(len(kld))
            ),
        }
        found.append(Record(**named, index=index, is_gold=bool(index), **columns))
    return found


def _greedy_of(item: Seen) -> dict[str, Any]:
    ids = (*range(10, 9 + item.tokens), EOS if item.ended else 9)
    columns: dict[str, Any] = {"token_ids": ids, "prompt_tokens": item.prompt}
    columns["logprob"] = item.certainty * item.tokens
    if item.said is not None:
        columns["text"] = item.said
    return columns


def judged(
    matcher: str,
    checkpoint: str,
    said: Mapping[str, bool | str | Sequence[bool | None] | None],
    *,
    task: str = "t",
    form: Format = "open",
    probe: str = "greedy",
    seed: int = 0,
) -> pd.DataFrame:
    """A matcher's verdicts; `said`: "language/item" -> one, or one of each response.
    None: failed; "too long"."""
    rows = []
    for key, verdicts in said.items():
        language, item_id = key.split("/")
        row: dict[str, Any] = {
            "checkpoint": checkpoint, "weights_digest": checkpoint, "task": task, "language": language,
            "item_id": item_id, "format": form, "probe": probe, "seed": seed, "matcher": matcher,
        }  # fmt: skip
        each_one = verdicts if isinstance(verdicts, list | tuple) else [verdicts]
        for index, verdict in enumerate(each_one):
            status = {None: "engine_error", "too long": "excluded"}.get(verdict, "ok")
            known = verdict if status == "ok" else None
            rows.append(row | {"index": index, "verdict": known, "status": status})
    return pd.DataFrame(rows)
