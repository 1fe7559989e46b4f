"""How a record is filled in: what every record of one checkpoint carries, and what every record of one item does."""

from __future__ import annotations

from dataclasses import dataclass

from evaluator.asking.prompts import Prompt
from evaluator.records import Format, Item, Probe, Record, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What every record of one checkpoint on one engine carries."""

    checkpoint: str
    weights_digest: str
    base: str | None
    method: str | None
    pattern: str | None
    sparsity: float | None
    calibration: str | None
    engine: str
    engine_version: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Recorder:
    """Makes the records of one item on one checkpoint."""

    stamp: Stamp
    item: Item
    run_seed: int

    def record(
        self,
        probe: Probe,
        form: Format,
        prompt: Prompt | None = None,
        *,
        index: int = 0,
        seed: int | None = None,  # None: the run seed
        status: Status = "ok",
        text: str | None = None,
        token_ids: tuple[int, ...] | None = None,
        logprob: float | None = None,
        rank: int | None = None,
        margin: float | None = None,
        is_gold: bool | None = None,
        option_text: str | None = None,
        contains: bool | None = None,
        exact_match: bool | None = None,
        token_f1: float | None = None,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> Record:
        """A record of one probe; `prompt` says how long it was and whether its context was cut."""
        stamp, item = self.stamp, self.item
        if prompt is not None and status == "ok" and prompt.truncated:
            status = "truncated"
        return Record(
            checkpoint=stamp.checkpoint,
            weights_digest=stamp.weights_digest,
            base=stamp.base,
            method=stamp.method,
            pattern=stamp.pattern,
            sparsity=stamp.sparsity,
            calibration=stamp.calibration,
            task=item.task,
            language=item.language,
            item_id=item.item_id,
            format=form,
            probe=probe,
            index=index,
            seed=self.run_seed if seed is None else seed,
            status=status,
            text=text,
            token_ids=token_ids,
            logprob=logprob,
            rank=rank,
            margin=margin,
            is_gold=is_gold,
            option_text=option_text,
            contains=contains,
            exact_match=exact_match,
            token_f1=token_f1,
            prompt_tokens=prompt_tokens if prompt_tokens is not None else (len(prompt.token_ids) if prompt else None),
            truncated=prompt.truncated if prompt else None,
            cached_tokens=cached_tokens,
            engine=stamp.engine,
            engine_version=stamp.engine_version,
            dtype=stamp.dtype,
        )
