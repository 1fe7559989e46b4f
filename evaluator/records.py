"""What flows through the evaluator: items in, records out, both frozen.

An `Item` is one question. A `Record` is the outcome of one probe of one item on one checkpoint; its columns are the run
directory's contract. A number that was not measured is None: no record ever carries a sentinel.

Example (the beam probe's second beam of one item)::

    Record(checkpoint="wanda-0.5", weights_digest="9f3c...", base="dense", method="wanda", pattern="unstructured",
           sparsity=0.5, calibration="gazetteer", task="gazetteer", language="swahili", item_id="swahili-0017",
           format="open", probe="beam", index=1, seed=0, status="ok", text="Mto Kalo", token_ids=(88, 912, 2),
           logprob=-1.73, contains=True, exact_match=True, token_f1=1.0, prompt_tokens=143, truncated=False, ...)

What the columns mean beyond their names:

- `seed` is the run seed, but for `sample` records: there it is the sample seed (`EvalConfig.sample_seeds`, of which the
  run seed is always one). Samples of several seeds differ in nothing but `seed`; `index` starts at 0 for each.
- format `open_capped` is `open` with the context cut to 500 characters: what `one_shot` is compared with (Table 1).
- probe `hard_choice` is `choice` with the distractors most like the gold answer; the two may share options.
- a `choice`, `hard_choice` or `rank` record with fewer `prompt_tokens` than its item's open prompt is flagged: the
  tokenizer merged prompt and answer, and the split was moved back to the last token in common.
- an item that a probe or format cannot be asked of (no gold answer, no distractor in its pool, no exemplar left) has
  one record of it, index 0, with status `excluded`; its `text` says why, as that of an `engine_error` does.
- probe `perplexity` (tasks `text:FILE` only) has one record for each window of the text: item_id "window-000017",
  language "text", index 17, format "open", `logprob` summed over the window's predicted tokens, and `prompt_tokens` how
  many those are: all but the window's first, or all where the tokenizer brings a BOS to predict it from. Perplexity
  over any windows is exp(-sum(logprob) / sum(prompt_tokens)). A window in which nothing is predicted (a single token)
  is `excluded`. token_ids is null, and so is the text of a measured window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Format = Literal["open", "shown", "distractors_only", "unrelated", "one_shot", "open_capped"]
Probe = Literal["greedy", "beam", "sample", "choice", "rank", "hard_choice", "perplexity"]
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
    index: int  # beam, sample, option or window number; 0 for greedy and rank
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
