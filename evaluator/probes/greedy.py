"""The greedy probe: the most likely answer, in every format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evaluator.core.records import Format
from evaluator.core.reducing import answer_fingerprint, first_of, where_measured
from evaluator.core.text import LOOP, loops
from evaluator.probes.base import Cost, ItemProbe, Steps

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
        # It loops (`core.text.loops`); one of fewer than 2 LOOP tokens does not.
        "answer_loops": "boolean",
        # How many answers its grader read in it; null: it reads the whole text.
        "extracted": "Int64",
        # Without thinking null. The thought's tokens; it has no end; it loops
        # (`core.text.loops`).
        "thought_tokens": "Int64",
        "thought_cut": "boolean",
        "thought_loops": "boolean",
    }

    def describe(self, config: Settings) -> str:
        return f"{self.name} of {'+'.join(config.formats)}"

    def formats(self, config: Settings) -> tuple[Format, ...]:
        return config.formats

    def draws(self, config: Settings) -> tuple[tuple[Format, int], ...]:
        return tuple((format, config.seed) for format in config.formats)

    def fits(self, question: Question, config: Settings) -> bool:
        return any(question.can_pose(format) for format in config.formats)

    def why_not(self, item: ItemRun) -> str | None:
        return None  # each format has its own record with the reason

    def run(self, item: ItemRun) -> Steps:
        """The open prompt goes first: the other probes share it, and find it in the
        prefix cache."""
        formats = item.config.formats
        posed = [
            format
            for format in item.prompts
            if format in formats and not item.is_cut(format)
        ]
        posed.sort(key=lambda format: format != "open")
        responses = yield from item.answered([item.greedy(each) for each in posed])
        answers = dict(zip(posed, map(item.generated, responses, posed), strict=True))
        records = []
        for format in formats:
            # None: no candidate to list, no item left to be the exemplar, or too long
            prompt = item.prompts.get(format)
            if prompt is None:
                why = item.question.why_not(format)
                record = item.record(self.name, format, status="excluded", text=why)
                records.append(record)
                continue
            columns = answers.get(format) or item.cut(prompt.thought)
            records.append(item.record(self.name, format, prompt, **columns))
        return records

    def cost(self, config: Settings) -> Cost:
        return Cost.of_answers(len(config.formats), config)

    def reduce(self, records: pd.DataFrame) -> pd.DataFrame:
        texts, languages = records["text"], records["language"]
        ids: list[Sequence[int]] = [
            () if value is None or isinstance(value, float) else value
            for value in records["token_ids"]
        ]
        state = records["thought_state"]
        columns: dict[str, Any] = {
            "produced": records["contains"],
            "exact_match": records["exact_match"],
            "token_f1": records["token_f1"],
            "answer_tokens": [len(answer) or None for answer in ids],
            "last_token": [answer[-1] if len(answer) else None for answer in ids],
            "answer_logprob": records["logprob"],
            "greedy_prompt_tokens": records["prompt_tokens"],
            "greedy_prompt_digest": records["prompt_digest"],
            "answer_said": list(map(answer_fingerprint, texts, languages)),
            "answer_loops": [
                len(answer) >= 2 * LOOP and loops(text, language)
                if len(answer)
                else None
                for answer, text, language in zip(ids, texts, languages, strict=True)
            ],
            "extracted": [
                len(read.splitlines()) if isinstance(read, str) else None
                for read in records["option_text"]
            ],
            "thought_tokens": records["thought_tokens"],
            "thought_cut": state.eq("cut").where(state.notna()),
            "thought_loops": [
                loops(thought, language) if isinstance(thought, str) else None
                for thought, language in zip(records["thought"], languages, strict=True)
            ],
        }
        first = first_of(records, columns, self.columns)
        return where_measured(first, records, self.name, "produced")
