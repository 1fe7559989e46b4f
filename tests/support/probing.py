"""Every probe of a few questions on a scripted engine, with a real tokenizer's
prompts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from evaluator.asking.prompts import Prompter
from evaluator.asking.questions import Question
from evaluator.core.records import Record
from evaluator.engine.base import Cancel, Request, Response, Score
from evaluator.probes.config import EvalConfig
from evaluator.probes.planning import questions_of, tokenised
from evaluator.probes.stream import Evaluation
from evaluator.tasks import TaskData
from tests.support.fake import FakeEngine
from tests.support.stamps import STAMP, make_item

EVERY_FORMAT = (
    "open",
    "shown",
    "distractors_only",
    "unrelated",
    "one_shot",
    "open_capped",
)
EVERY_PROBE = (
    "greedy",
    "beam",
    "sample",
    "choice",
    "rank",
    "aligned_rank",
    "hard_choice",
)


def prompter(tokenizer: Any, cap: int = 512, one_shot_cap: int = 1024) -> Prompter:
    return Prompter(
        tokenizer, chat=False, prompt_tokens=cap, one_shot_prompt_tokens=one_shot_cap
    )


def config(**changes: Any) -> EvalConfig:
    return EvalConfig(
        **{
            "task": "t",
            "items": 6,
            "formats": EVERY_FORMAT,
            "probes": EVERY_PROBE,
            **changes,
        }
    )


def questions(
    settings: EvalConfig, answers: Sequence[str] | None = None, **changes: Any
) -> list[Question]:
    english = [make_item(n, answers=answers, **changes) for n in range(8)]
    if "context" in changes:  # an example may not share it
        english = [
            replace(item, context=f"{item.context} {n}")
            for n, item in enumerate(english)
        ]
    finnish = [
        make_item(n, language="finnish", answers=[f"vastaus {n}"]) for n in range(8)
    ]
    every = {"english": tuple(english), "finnish": tuple(finnish)}
    return questions_of(
        TaskData(
            name="t", digest="d", pools={"english": every["english"]}, every_pool=every
        ),
        settings,
    )


def answer(tokenizer: Any, text: str) -> Callable[[Request], Response]:
    """A script: every generation says `text`, every score is by length alone."""
    ids = tuple(tokenizer(text, add_special_tokens=False).input_ids)

    def script(request: Request) -> Response:
        if isinstance(request, Score):
            scored, size = request.continuation_ids, len(request.continuation_ids)
            return Response(
                request_id=request.request_id, token_ids=scored, logprobs=(-1.0,) * size, ranks=(2,) * size,
                top_ids=((5,),) * size, top_logprobs=((-0.25,),) * size,
            )  # fmt: skip
        top = request.top_logprobs
        said = (*ids, tokenizer.eos_token_id)[: request.max_tokens]
        return Response(
            request_id=request.request_id,
            token_ids=said,
            logprobs=(-0.5,) * len(said) if request.temperature == 0 else (),
            top_ids=tuple(
                (token, *(t for t in range(100, 100 + top) if t != token))[:top]
                for token in said
            ),
            top_logprobs=tuple(tuple(-0.5 - k for k in range(top)) for _ in said),
        )

    return script


def evaluation(
    tokenizer: Any, settings: EvalConfig, asked: Sequence[Question]
) -> Evaluation:
    made = prompter(tokenizer, settings.prompt_tokens, settings.one_shot_prompt_tokens)
    plans = (tokenised(question, made, settings) for question in asked)
    return Evaluation.of(plans, config=settings, prompter=made, columns=STAMP)


def run(
    tokenizer: Any,
    settings: EvalConfig,
    asked: Sequence[Question],
    text: str = "answer 3",
) -> list[Record]:
    stream = evaluation(tokenizer, settings, asked).run(
        FakeEngine(answer(tokenizer, text))
    )
    return [record for _, found in stream for record in found]


def start(
    tokenizer: Any, settings: EvalConfig, question: Question
) -> Sequence[Request | Cancel]:
    return evaluation(tokenizer, settings, [question]).take(1000)
