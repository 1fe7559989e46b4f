"""What flows through the evaluator: items in, records out, both frozen.

An `Item` is one question. A `Record` is the outcome of one probe of one item on one checkpoint; its columns are the run
directory's contract. A number that was not measured is None: no record ever carries a sentinel.

Example (the beam probe's second beam of one item)::

    Record(checkpoint="wanda-0.5", weights_digest="9f3c...", base="dense", method="wanda", pattern="unstructured",
           sparsity=0.5, calibration="gazetteer", task="gazetteer", language="swahili", item_id="swahili-0017",
           format="open", probe="beam", index=1, seed=0, status="ok", text="Mto Kalo", token_ids=(88, 912, 2),
           logprob=-1.73, contains=True, exact_match=True, token_f1=1.0, prompt_tokens=143, truncated=False, ...)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Format = Literal["open", "shown", "distractors_only", "unrelated", "one_shot"]
Probe = Literal["greedy", "beam", "sample", "choice", "rank"]
Status = Literal["ok", "truncated", "excluded", "engine_error"]

FORMATS: tuple[Format, ...] = get_args(Format)
PROBES: tuple[Probe, ...] = get_args(Probe)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One question, with everything needed to pose and to grade it."""

    task: str
    language: str
    item_id: str  # unique in its task; never changes between versions
    context: str
    question: str
    answers: tuple[str, ...]  # gold answers, the first is the gold option
    cluster: str  # questions of one context share it: intervals resample clusters, not items
    options: tuple[str, ...] = ()  # distractors that the task itself brings; empty: drawn by the protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The outcome of one probe of one item on one checkpoint: one row of a Parquet part."""

    checkpoint: str
    weights_digest: str
    base: str | None  # the dense checkpoint that this one is compared with; None for a dense one
    method: str | None
    pattern: str | None
    sparsity: float | None
    calibration: str | None
    task: str
    language: str
    item_id: str
    format: Format
    probe: Probe
    index: int  # beam, sample or option number; 0 for greedy and rank
    seed: int
    status: Status
    text: str | None = None
    token_ids: tuple[int, ...] | None = None  # generated ids (EOS included), or the scored continuation
    logprob: float | None = None  # summed over token_ids, nats
    rank: int | None = None  # of the gold answer's first token, 1 = most likely
    margin: float | None = None  # gold first token's log-probability minus the top token's, nats, <= 0
    is_gold: bool | None = None
    option_text: str | None = None
    contains: bool | None = None
    exact_match: bool | None = None
    token_f1: float | None = None
    prompt_tokens: int | None = None
    truncated: bool | None = None  # the context was cut to fit the prompt's token cap
    cached_tokens: int | None = None
    engine: str
    engine_version: str
    dtype: str
