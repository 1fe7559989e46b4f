"""Questions in letters: each letter is a token, so that plans, requests and records
can be read by eye."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from evaluator.asking.prompts import Continuation, Prompt
from evaluator.asking.questions import Posed, Question
from evaluator.core.records import Item
from evaluator.engine.base import Request, Response
from evaluator.probes.config import EvalConfig
from evaluator.probes.planning import questions_of, tokenised
from evaluator.probes.stream import Evaluation
from evaluator.tasks import TaskData
from tests.support.fake import FakeLM
from tests.support.stamps import STAMP

EOS = frozenset({0})


class LetterPrompter:
    """Encodes letters as 1..26; enough of `Prompter` for plans whose ids can be
    read."""

    eos_ids = EOS

    def build(self, item: Item, format: str, **_: object) -> Prompt:
        text = f"{format}{item.question}"
        return Prompt(
            text=text, token_ids=self._encode(text), truncated=item.item_id == "cut"
        )

    def continuations(self, prompt: Prompt, answers: list[str]) -> list[Continuation]:
        return [
            Continuation(
                prompt_ids=prompt.token_ids, continuation_ids=self._encode(answer)
            )
            for answer in answers
        ]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(96 + token) if token else "" for token in token_ids)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(ord(c) - 96 for c in text.lower() if c.isascii() and c.isalpha())


def letter_items(count: int) -> list[Item]:
    return [
        Item(task="toy", language="english", item_id=f"q{number}", context="", cluster=f"q{number}",
             question="abcdefghij"[number % 10] * (1 + number // 10), answers=(chr(97 + number) * 2,))
        for number in range(count)
    ]  # fmt: skip


def letter_questions(items: list[Item], config: EvalConfig) -> list[Question]:
    pools = {"english": tuple(items)}
    return questions_of(
        TaskData(name="toy", digest="x", pools=pools, every_pool=pools), config
    )


def letter_plans(questions: list[Question], config: EvalConfig) -> Iterator[Posed]:
    return iter([letter_plan(question, config) for question in questions])


def letter_plan(question: Question, config: EvalConfig) -> Posed:
    return tokenised(question, LetterPrompter(), config)  # type: ignore[arg-type]


def letter_evaluation(
    plans: Iterable[Posed], config: EvalConfig, **settings: Any
) -> Evaluation:
    return Evaluation.of(
        plans,
        **{
            "config": config,
            "prompter": LetterPrompter(),
            "columns": STAMP,
            **settings,
        },
    )


def letter_model() -> FakeLM:
    """A language model over the letters."""
    return FakeLM(vocabulary=27, eos_ids=EOS, seed=5)


def noted(
    script: Callable[[Request], Response],
) -> tuple[list[Request], Callable[[Request], Response]]:
    """The list of the requests that a script gets, and a script that fills it."""
    sent: list[Request] = []
    return sent, lambda request: sent.append(request) or script(request)  # type: ignore[func-returns-value]


def letter_stream(config: EvalConfig, items: int, in_flight: int = 4) -> Evaluation:
    """So many questions, as an engine is given them."""
    plans = letter_plans(letter_questions(letter_items(items), config), config)
    return letter_evaluation(plans, config, in_flight=in_flight)
