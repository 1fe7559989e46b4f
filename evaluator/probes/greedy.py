"""The greedy probe: the most likely answer, in every format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evaluator.core.grading import loops
from evaluator.core.records import Format
from evaluator.engine.base import Generate
from evaluator.probes.base import Cost, ItemProbe, Steps
from evaluator.probes.reducing import KEY, said, where_measured

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.asking.questions import Question
    from evaluator.probes.item import ItemRun, Settings


class Greedy(ItemProbe):
    """One answer for each evaluated format."""

    name = "greedy"
    help = "the most likely answer, in every format"
    evidence = "said"
    view = "answer"
    title = "greedy"
    columns: Mapping[str, str] = {
        # The output contains a gold answer; is one; its token F1.
        "produced": "boolean",
        "exact_match": "boolean",
        "token_f1": "Float64",
        # Its tokens with EOS, the last token, and their summed log-probability; the
        # prompt's tokens.
        "answer_tokens": "Int64",
        "last_token": "Int64",
        "answer_logprob": "Float64",
        "greedy_prompt_tokens": "Int64",
        "greedy_prompt_digest": "string",
        # A number that equal answers share, as texts are compared.
        "answer_said": "Int64",
        # Without thinking null. The thought's tokens; it has no end; it loops
        # (`grading.loops`); the output contains a gold answer after the end that we
        # gave a cut thought, or as it is.
        "thought_tokens": "Int64",
        "thought_cut": "boolean",
        "thought_loops": "boolean",
        "produced_forced": "boolean",
    }

    def describe(self, config: Settings) -> str:
        return f"{self.name} of {'+'.join(config.formats)}"

    def formats(self, config: Settings) -> tuple[Format, ...]:
        return config.formats

    def fits(self, question: Question, config: Settings) -> bool:
        return any(question.can_pose(format) for format in config.formats)

    def why_not(self, item: ItemRun) -> str | None:
        return None  # each format has its own record with the reason

    def run(self, item: ItemRun) -> Steps:
        """The open prompt goes first: the other probes share it, and find it in the
        prefix cache."""
        formats = item.config.formats
        posed = sorted(
            (each for each in item.prompts if each in formats),
            key=lambda format: format != "open",
        )
        responses = yield [item.greedy(format) for format in posed]
        found = {
            format: item.generated(response)
            for format, response in zip(posed, responses, strict=True)
        }
        # no candidate to list, no item left to be the exemplar, or too long
        for format in formats:
            if format not in found:
                found[format] = {
                    "status": "excluded",
                    "text": item.question.why_not(format),
                }
        records = []
        for format in formats:
            prompt = item.prompts.get(format)
            if (
                prompt is not None
                and prompt.thought is not None
                and (cut := item.cut(prompt.thought))
            ):
                records.append(item.record(self.name, format, prompt, **cut))
                found[format] |= {"index": 1}
            records.append(item.record(self.name, format, prompt, **found[format]))
        return records

    def cost(self, config: Settings) -> Cost:
        count = len(config.formats)
        each = config.max_new_tokens + config.expected_thought
        return Cost(
            requests=count * (2 if config.thinks else 1), generated_tokens=count * each
        )

    def reduce(self, asked: pd.DataFrame) -> pd.DataFrame:
        forced = asked[asked["index"] == 1].set_index(list(KEY))["contains"]
        asked = asked[asked["index"] == 0]
        ids: list[Sequence[int]] = [
            () if value is None or isinstance(value, float) else value
            for value in asked["token_ids"]
        ]
        columns: dict[str, Any] = {
            "produced": asked["contains"],
            **{name: asked[name] for name in ("exact_match", "token_f1")},
            "answer_tokens": [len(each) or None for each in ids],
            "last_token": [each[-1] if len(each) else None for each in ids],
            "answer_logprob": asked["logprob"],
            "greedy_prompt_tokens": asked["prompt_tokens"],
            "greedy_prompt_digest": asked["prompt_digest"],
            "answer_said": [
                said(*answer)
                for answer in zip(asked["text"], asked["language"], strict=True)
            ],
            "thought_tokens": asked["thought_tokens"],
            "thought_cut": asked["thought_state"]
            .eq("cut")
            .where(asked["thought_state"].notna()),
            "thought_loops": [
                loops(text, language) if isinstance(text, str) else None
                for text, language in zip(
                    asked["thought"], asked["language"], strict=True
                )
            ],
            "produced_forced": asked["contains"].where(asked["thought_state"].notna()),
        }
        typed = asked[list(KEY)].assign(**columns).astype(dict(self.columns))
        first = typed.groupby(list(KEY))[list(columns)].first()
        first.loc[first["thought_cut"].fillna(False), "produced_forced"] = (
            forced.reindex(first.index)
        )
        return where_measured(first, asked, self.name, "produced")


class Direct(ItemProbe):
    """The greedy answer to the open prompt of a model that thinks, without a
    thought."""

    name = "direct"
    help = "the most likely answer without a thought; needs thinking"
    evidence = "said"
    view = "answer"
    title = "greedy, without a thought"
    needs_thinking = True
    columns: Mapping[str, str] = {"direct_produced": "boolean"}

    def why_not(self, item: ItemRun) -> str | None:
        return None if item.plan.direct is not None else item.question.why_not("open")

    def run(self, item: ItemRun) -> Steps:
        prompt = item.plan.direct
        assert prompt is not None, "why_not comes before run"
        (response,) = yield [
            Generate(
                request_id=item.request_id(self.name, "open"),
                prompt_ids=prompt.token_ids,
                max_tokens=item.config.max_new_tokens,
            )
        ]
        return [item.record(self.name, prompt=prompt, **item.generated(response))]

    def cost(self, config: Settings) -> Cost:
        return Cost(requests=1, generated_tokens=config.max_new_tokens)

    def reduce(self, asked: pd.DataFrame) -> pd.DataFrame:
        typed = (
            asked[list(KEY)]
            .assign(direct_produced=asked["contains"])
            .astype(dict(self.columns))
        )
        first = typed.groupby(list(KEY))[["direct_produced"]].first()
        return where_measured(first, asked, self.name, "direct_produced")
