"""Records written by hand: one line per item says what each probe of it found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from msgspec.structs import asdict, replace

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
    rows: list[Record] = []
    for key, item in seen.items():
        language, item_id = key.split("/")
        made = (
            {"method": "wanda", "pattern": "unstructured", "sparsity": 0.5}
            if base
            else {}
        )
        common: dict[str, Any] = {
            "checkpoint": checkpoint, "weights_digest": digest or checkpoint, "base": base, "calibration": calibration,
            "task": task, "language": language, "item_id": item_id, "format": form, "seed": seed, "engine": "fake",
            "engine_version": "0", "dtype": dtype, "status": item.status, "truncated": item.truncated,
        }  # fmt: skip
        rows += _records_of(
            item, dict.fromkeys(("method", "pattern", "sparsity")) | common | made
        )
    return pd.DataFrame([asdict(row) for row in rows])


def _records_of(item: Seen, common: dict[str, Any]) -> list[Record]:
    measured = item.status in ("ok", "truncated")
    rows = []

    def generated(probe: str, index: int, hit: bool) -> Record:
        grade: dict[str, Any] = (
            {"contains": hit, "exact_match": hit, "token_f1": float(hit)}
            if measured
            else {}
        )
        text = ("gold" if hit else "bad") if measured else item.why
        return Record(**common, probe=probe, index=index, text=text, **grade)

    if item.greedy is not None:
        rows.append(
            replace(
                generated("greedy", 0, item.greedy),
                **(_greedy_of(item) if measured else {}),
            )
        )
    for probe, hits in (("beam", item.beams), ("sample", item.samples)):
        rows += [generated(probe, index, hit) for index, hit in enumerate(hits or ())]
    for probe, won in (("choice", item.choice), ("hard_choice", item.hard)):
        if won is None:
            continue
        status = item.choice_status or item.status
        for index, text in enumerate(item.option_texts[: item.options]):
            best = {True: -1.0, False: -3.0, "tie": -2.0}[won]
            best = best if item.gold_score is None else item.gold_score
            own = best if index == 0 else -2.0
            score = own if status in ("ok", "truncated") else None
            option: dict[str, Any] = {
                "is_gold": index == 0,
                "option_text": text,
                "token_ids": (1, 2),
                "logprob": score,
            }
            option["text"] = None if status in ("ok", "truncated") else item.why
            rows.append(
                Record(
                    **{**common, "status": status}, probe=probe, index=index, **option
                )
            )
    if item.window is not None:
        logprob, tokens = item.window
        rows.append(
            Record(
                **common,
                probe="perplexity",
                index=0,
                logprob=logprob,
                prompt_tokens=tokens,
            )
        )
    if item.rank is not None:
        rows.append(
            Record(**common, probe="rank", index=0, rank=item.rank, margin=item.margin)
        )
    if isinstance(item.aligned, int):
        place: dict[str, Any] = {
            "rank": item.aligned,
            "margin": -0.5 * (item.aligned - 1),
        }
        rows.append(
            Record(
                **common,
                probe="aligned_rank",
                index=0,
                text="It is ",
                option_text="gold",
                **place,
            )
        )
    elif item.aligned is not None:
        rows.append(
            Record(
                **{**common, "status": "excluded"},
                probe="aligned_rank",
                index=0,
                text=item.aligned,
            )
        )
    if item.fidelity is not None:
        rows += _compared(item, common)
    return rows


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
    columns: dict[str, Any] = {
        "token_ids": ids,
        "logprob": item.certainty * item.tokens,
        "prompt_tokens": item.prompt,
    }
    return columns | ({} if item.said is None else {"text": item.said})


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
            rows.append(
                row
                | {
                    "index": index,
                    "verdict": verdict if status == "ok" else None,
                    "status": status,
                }
            )
    return pd.DataFrame(rows)
