"""The cases: a few requests about the bundled task, the same for every run."""

from dataclasses import dataclass
from pathlib import Path

from evaluator.engine.base import Generate, Score

PROMPT_TOKENS = 384  # longest prompt: several cache blocks, the last one partly filled
BEAM_WIDTH, BEAM_TOKENS = 5, 16
_LANGUAGES = 6  # one question per language
_GREEDY_TOKENS, _LISTED = 24, 8
_SAMPLES, _SAMPLE_TOKENS, _TOP_P = 4, 12, 0.9
_CUTS, _LONG = (1, 31, 32, 129, 256), 33  # contexts that end within, before and after a cache block's end
_SEARCHED = 3  # prompts that beams start from


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """Requests by kind; the ids of a kind begin with its name."""

    scores: tuple[Score, ...]
    greedy: tuple[Generate, ...]
    samples: tuple[Generate, ...]
    searched: dict[str, tuple[int, ...]]  # prompts of beam searches, by name
    eos_ids: frozenset[int]

    @property
    def exact(self) -> tuple[Score | Generate, ...]:
        return (*self.scores, *self.greedy)


def cases_for(checkpoint: Path) -> Cases:
    """The cases in a checkpoint's tokens: the same for all checkpoints with its tokenizer."""
    from evaluator.asking.prompts import Prompter
    from evaluator.checkpoints.tokenizer import load_tokenizer
    from evaluator.probes.config import EvalConfig
    from evaluator.probes.planning import plan_of, questions_of
    from evaluator.tasks import load_task

    config = EvalConfig(task="gazetteer", items=1, probes=("greedy", "choice"))
    prompter = Prompter(
        load_tokenizer(checkpoint), chat=False, prompt_tokens=PROMPT_TOKENS, one_shot_prompt_tokens=PROMPT_TOKENS
    )
    asked = questions_of(load_task(config.task, None), config)[:_LANGUAGES]
    scores: list[Score] = []
    greedy: list[Generate] = []
    samples: list[Generate] = []
    for number, question in enumerate(asked):
        plan = plan_of(question, prompter, config)
        prompt = plan.prompts["open"].token_ids
        scores += [
            Score(
                request_id=f"score-{number}.{option}",
                prompt_ids=continuation.prompt_ids,
                continuation_ids=continuation.continuation_ids,
            )
            for option, continuation in enumerate(plan.scored.values())
        ]
        # The model continues half a prompt for many tokens; it answers a whole one in a few and ends with EOS.
        greedy += [
            Generate(
                request_id=f"greedy-{number}.{part}", prompt_ids=ids, max_tokens=_GREEDY_TOKENS, top_logprobs=_LISTED
            )
            for part, ids in (("whole", prompt), ("half", prompt[: len(prompt) // 2]))
        ]
        samples += [
            Generate(
                request_id=f"sample-{number}.{draw}",
                prompt_ids=prompt,
                max_tokens=_SAMPLE_TOKENS,
                temperature=1.0,
                top_p=_TOP_P,
                seed=1000 * number + draw,
            )
            for draw in range(_SAMPLES)
        ]
    text = tuple(token for each in greedy[::2] for token in each.prompt_ids)
    scores += [
        Score(request_id=f"score-long.{cut}", prompt_ids=text[:cut], continuation_ids=text[cut : cut + _LONG])
        for cut in _CUTS
    ]
    return Cases(
        scores=tuple(scores),
        greedy=tuple(greedy),
        samples=tuple(samples),
        searched={f"beam-{each.request_id}": each.prompt_ids for each in greedy[:_SEARCHED]},
        eos_ids=prompter.eos_ids,
    )
