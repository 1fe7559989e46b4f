"""The greedy probe: the most likely answer, in every format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evaluator.core.records import Format
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
        # Its tokens with EOS, the last token, and their summed log-probability; the prompt's tokens.
        "answer_tokens": "Int64",
        "last_token": "Int64",
        "answer_logprob": "Float64",
        "greedy_prompt_tokens": "Int64",
        # A number that equal answers share, as texts are compared.
        "answer_said": "Int64",
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
        """The open prompt goes first: the other probes share it, and find it in the prefix cache."""
        formats = item.config.formats
        posed = sorted((each for each in item.prompts if each in formats), key=lambda format: format != "open")
        responses = yield [item.greedy(format) for format in posed]
        found = {format: item.generated(response) for format, response in zip(posed, responses, strict=True)}
        for format in formats:  # no candidate to list, no item left to be the exemplar, or too long
            if format not in found:
                found[format] = {"status": "excluded", "text": item.question.why_not(format)}
        return [item.record(self.name, format, **found[format]) for format in formats]

    def cost(self, config: Settings) -> Cost:
        count = len(config.formats)
        return Cost(requests=count, generated_tokens=count * config.max_new_tokens)

    def reduce(self, asked: pd.DataFrame) -> pd.DataFrame:
        ids: list[Sequence[int]] = [
            () if value is None or isinstance(value, float) else value for value in asked["token_ids"]
        ]
        columns: dict[str, Any] = {
            "produced": asked["contains"],
            **{name: asked[name] for name in ("exact_match", "token_f1")},
            "answer_tokens": [len(each) or None for each in ids],
            "last_token": [each[-1] if len(each) else None for each in ids],
            "answer_logprob": asked["logprob"],
            "greedy_prompt_tokens": asked["prompt_tokens"],
            "answer_said": [said(text) for text in asked["text"]],
        }
        typed = asked[list(KEY)].assign(**columns).astype(dict(self.columns))
        first = typed.groupby(list(KEY))[list(columns)].first()
        return where_measured(first, asked, self.name, "produced")
