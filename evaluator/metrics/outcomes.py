"""Records of one checkpoint and task -> one row per item, format and seed: the only thing that the tables look at.

A run's records are read part by part; what stays in memory are these rows. A value that was not measured is null, and
the `*_status` beside it says why: `excluded`, `engine_error`, or null when the probe was never asked.

Columns beside the key and the checkpoint's own (METADATA):

    greedy_status, produced, exact_match, token_f1        the greedy output; produced = it contains a gold answer
    choice_status, options, recognised                    gold option's summed log-probability is strictly the highest
    recognised_per_token, recognised_per_byte             the same with length-normalised scores (secondary)
    beam_status, beams, beam_hit, beam_hits               some beam contains a gold answer, and how many do
    sample_status, samples, sample_hit, sample_hits       the same of samples
    rank_status, rank, margin                             of the gold answer's first token
    hard_choice_status, hard_recognised                   the choice among hard distractors
    option_tokens, option_words, option_characters        of all options that `choice` scored, summed: fertility
    perplexity_status, nll, predicted_tokens              of a window of text: nats, and tokens that were predicted
    truncated                                             the context was cut for at least one of the item's prompts
    <probe>_why                                           of what was excluded or failed: the record's reason
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

METADATA = ("weights_digest", "base", "method", "pattern", "sparsity", "calibration")
KEY = ("checkpoint", "task", "language", "item_id", "format", "seed")
MEASURED = ("ok", "truncated")
_REASONS = ("greedy", "choice", "beam", "sample", "rank", "hard_choice", "perplexity")

DTYPES: dict[str, str] = {
    **dict.fromkeys(KEY[:-1], "string"),
    "seed": "Int64",
    **dict.fromkeys(METADATA, "string"),
    "sparsity": "Float64",
    "greedy_status": "string",
    "produced": "boolean",
    "exact_match": "boolean",
    "token_f1": "Float64",
    "choice_status": "string",
    "options": "Int64",
    "recognised": "boolean",
    "recognised_per_token": "boolean",
    "recognised_per_byte": "boolean",
    "beam_status": "string",
    "beams": "Int64",
    "beam_hit": "boolean",
    "beam_hits": "Int64",
    "sample_status": "string",
    "samples": "Int64",
    "sample_hit": "boolean",
    "sample_hits": "Int64",
    "rank_status": "string",
    "rank": "Int64",
    "margin": "Float64",
    "hard_choice_status": "string",
    "hard_recognised": "boolean",
    **dict.fromkeys(("option_tokens", "option_words", "option_characters"), "Int64"),
    "perplexity_status": "string",
    "nll": "Float64",
    "predicted_tokens": "Int64",
    "truncated": "boolean",
    **dict.fromkeys((f"{probe}_why" for probe in _REASONS), "string"),
}

_SEVERITY = {"ok": 0, "truncated": 1, "engine_error": 2, "excluded": 3}
_BY_SEVERITY = {severity: status for status, severity in _SEVERITY.items()}


def empty_outcomes() -> pd.DataFrame:
    """The outcome frame of no record at all, with its columns and types."""
    return pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in DTYPES.items()})


def reduce_records(records: pd.DataFrame) -> pd.DataFrame:
    """Item-level outcomes of records (columns as in `evaluator.records.Record`), any number of checkpoints and tasks.

    All records of one item on one checkpoint must be in `records`: reduce whole parts, then concatenate.
    """
    if records.empty:
        return empty_outcomes()
    keyed = records.astype({name: DTYPES[name] for name in (*KEY, *METADATA)})
    groups = keyed.groupby(list(KEY), sort=True)
    columns = [groups[list(METADATA)].first()]
    for probe, reduce in _REDUCERS.items():
        asked = keyed[keyed["probe"] == probe]
        if not asked.empty:
            columns += [reduce(asked, probe), _why(asked, probe)]
    outcomes = pd.concat(columns, axis=1)
    cut = keyed["truncated"].astype("boolean").fillna(False) | (keyed["status"] == "truncated")
    outcomes["truncated"] = cut.groupby([keyed[name] for name in KEY]).any()
    outcomes = outcomes.reindex(columns=[name for name in DTYPES if name not in KEY])
    return outcomes.reset_index().astype(DTYPES)[list(DTYPES)]


def _status(asked: pd.DataFrame) -> pd.Series:
    """The worst status among an item's records of one probe: a probe counts as measured only if all of it was."""
    severity = asked["status"].map(_SEVERITY).astype("int64")
    return severity.groupby([asked[name] for name in KEY]).max().map(_BY_SEVERITY)


def _why(asked: pd.DataFrame, probe: str) -> pd.DataFrame:
    """Why the probe was not measured: the text of the item's first record of its worst status."""
    marked = asked.assign(severity=asked["status"].map(_SEVERITY).astype("int64"))
    worst = marked[marked["severity"].gt(1) & marked["text"].notna()]
    worst = worst.sort_values(["severity", "index"], ascending=[False, True], kind="stable")
    return worst.groupby(list(KEY))[["text"]].first().rename(columns={"text": f"{probe}_why"})


def _known(reduced: pd.DataFrame, asked: pd.DataFrame, probe: str, value: str, decided: Any = True) -> pd.DataFrame:
    """The probe's columns with its status: null wherever it was not measured.

    A record that says `ok` and has no value, or too few options to decide anything, was not measured: engine_error.
    """
    status = _status(asked).reindex(reduced.index)
    status = status.mask(status.isin(MEASURED) & ~(decided & reduced[value].notna()), "engine_error")
    known = {name: column.where(status.isin(MEASURED)) for name, column in reduced.items()}
    return pd.DataFrame({**known, f"{probe}_status": status})


def _greedy(asked: pd.DataFrame, probe: str) -> pd.DataFrame:
    first = asked.astype({"contains": "boolean", "exact_match": "boolean", "token_f1": "Float64"})
    reduced = first.groupby(list(KEY))[["contains", "exact_match", "token_f1"]].first()
    return _known(reduced.rename(columns={"contains": "produced"}), asked, probe, "produced")


def _hits(asked: pd.DataFrame, probe: str) -> pd.DataFrame:
    hits = asked.assign(contains=asked["contains"].astype("boolean").fillna(False).astype("int64")).groupby(list(KEY))
    found = hits["contains"].sum().astype("Int64")
    reduced = pd.DataFrame({f"{probe}s": hits.size().astype("Int64"), f"{probe}_hit": (found > 0).astype("boolean")})
    reduced[f"{probe}_hits"] = found
    return _known(reduced, asked, probe, f"{probe}_hit")


def _choice(asked: pd.DataFrame, probe: str) -> pd.DataFrame:
    score = asked["logprob"].astype("float64").to_numpy()
    texts = [text if isinstance(text, str) else "" for text in asked["option_text"]]
    sizes = {
        "tokens": np.array([_length(ids) for ids in asked["token_ids"]], dtype="float64"),
        "words": np.array([len(text.split()) for text in texts], dtype="float64"),
        "characters": np.array([len("".join(text.split())) for text in texts], dtype="float64"),
    }
    in_bytes = np.array([_length(text.encode()) for text in texts], dtype="float64")
    gold = asked["is_gold"].astype("boolean").fillna(False).astype(bool).to_numpy()
    by_item = [asked[name] for name in KEY]
    options = pd.Series(1, index=asked.index).groupby(by_item).sum().astype("Int64")
    golds = pd.Series(gold, index=asked.index).groupby(by_item).sum()

    def wins(values: np.ndarray) -> pd.Series:
        return _gold_wins(pd.Series(values, index=asked.index), gold, by_item)

    # Without exactly one gold option and a rival there is nothing to win.
    decided = (golds == 1) & (options > 1)
    if probe == "hard_choice":
        return _known(pd.DataFrame({"hard_recognised": wins(score)}), asked, probe, "hard_recognised", decided)
    reduced = pd.DataFrame({"options": options, "recognised": wins(score)})
    reduced["recognised_per_token"] = wins(score / sizes["tokens"])
    reduced["recognised_per_byte"] = wins(score / in_bytes)
    for name, size in sizes.items():
        total = pd.Series(size, index=asked.index).groupby(by_item).sum(min_count=1)
        reduced[f"option_{name}"] = total.round().astype("Int64")
    return _known(reduced, asked, probe, "recognised", decided)


def _gold_wins(score: pd.Series, gold: np.ndarray, by_item: list[pd.Series]) -> pd.Series:
    """Whether the gold option's score is strictly the highest: a tie is wrong, a missing score is unknown."""
    best_gold = score.where(gold).groupby(by_item).max()
    best_other = score.where(~gold).groupby(by_item).max()
    complete = score.notna().groupby(by_item).all()
    return (best_gold > best_other).astype("boolean").where(complete)


def _rank(asked: pd.DataFrame, probe: str) -> pd.DataFrame:
    typed = asked.astype({"rank": "Int64", "margin": "Float64"})
    return _known(typed.groupby(list(KEY))[["rank", "margin"]].first(), asked, probe, "rank")


def _perplexity(asked: pd.DataFrame, probe: str) -> pd.DataFrame:
    """One record per window: the sum of its tokens' log-probabilities, and how many tokens that is."""
    windows = asked.astype({"logprob": "Float64", "prompt_tokens": "Int64"}).groupby(list(KEY))
    reduced = pd.DataFrame({"nll": -windows["logprob"].first(), "predicted_tokens": windows["prompt_tokens"].first()})
    return _known(reduced, asked, probe, "nll", reduced["predicted_tokens"].fillna(0) > 0)


_REDUCERS = {
    "greedy": _greedy,
    "beam": _hits,
    "sample": _hits,
    "choice": _choice,
    "hard_choice": _choice,
    "rank": _rank,
    "perplexity": _perplexity,
}


def _length(value: object) -> float:
    """The length of a list of ids or of bytes; NaN for none, so that a division by it is undefined."""
    size = 0 if value is None or isinstance(value, float) else len(value)  # type: ignore[arg-type]
    return float(size) if size else float("nan")
