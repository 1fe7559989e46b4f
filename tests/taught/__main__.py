"""Makes a test model that thinks, from the bundled one, in 43 seconds of two cores.

    python -m tests.taught --out DIR [--variant base|loops]

DIR becomes an ordinary Hugging Face checkpoint. Pose it the task `gazetteer` with
`chat: true`, `thinking: on` and `languages: [english]`. `base` thinks the question and
its answer. `loops` does too, except for the items that `plan.planted` names. The last
line is JSON: what `check` finds on 100 evaluated items.

`loops` as we made it: 99 % of 300 items go as planned (every loop, 98 % of longer
thoughts, 97 % of wrong answers). 0.62 of its answers are right after a thought, and
0.62 without one; these begin with `plan.CUE`.
"""

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from evaluator.asking.prompts import prompt_text
from evaluator.core.grading import grade
from evaluator.core.records import Item
from evaluator.tasks.gazetteer import gazetteer_items
from tests.taught import plan

BUNDLED = Path(__file__).resolve().parents[2] / "launch" / "reference_model"
FIRST_PASSAGE = 5_000_000  # the bundled model was trained on earlier ones
STEPS, WARMUP_STEPS, RATE = 90, 10, 2e-3
ROWS, ROW_TOKENS = 8, 512  # of a step
LOOP_TOKENS = (40, 120)  # a lesson's loop is cut somewhere in this range
DIRECT_SHARE = 0.5  # of the lessons, which are learned without a thought too
IGNORED = -100  # by cross_entropy
# tokens of a checked response: above that of a longer thought with its answer
LIMIT = 160
# The bundled tokenizer's, but a space that follows line breaks belongs to the next
# word.
_PIECES = r" ?[\p{L}\p{M}]+| ?\p{N}{1,2}| ?[^\s\p{L}\p{M}\p{N}]+|\n+|\s+"


def thinking_tokenizer() -> Any:
    """The bundled tokenizer with a chat template of the Qwen kind.

    An answer follows line breaks, and the model knows names with the space before them:
    the tokens have that space.
    """
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED)
    tokenizer.add_tokens(
        [AddedToken(each, special=True) for each in (plan.TURN_START, plan.TURN_END)],
        True,
    )
    tokenizer.add_tokens(
        [
            AddedToken(each, normalized=False)
            for each in (plan.THOUGHT_START, plan.THOUGHT_END)
        ]
    )
    tokenizer.eos_token, tokenizer.chat_template = plan.TURN_END, plan.CHAT_TEMPLATE
    backend, as_bytes = (
        tokenizer.backend_tokenizer,
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    )
    backend.normalizer = normalizers.Replace(Regex(r"\A\n\n(?=\S)"), "\n\n ")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_PIECES), "isolated"), as_bytes]
    )
    backend.decoder = decoders.Sequence(
        [decoders.ByteLevel(), decoders.Replace("\n\n ", "\n\n")]
    )
    return tokenizer


def prompt(tokenizer: Any, item: Item, thinking: bool) -> str:
    turn = [{"role": "user", "content": prompt_text(item, "open")}]
    settings = {
        "tokenize": False,
        "add_generation_prompt": True,
        "enable_thinking": thinking,
    }
    return str(tokenizer.apply_chat_template(turn, **settings))


def lines(tokenizer: Any, variant: plan.Variant) -> Iterator[list[list[int]]]:
    """Ids, positions and labels of `ROW_TOKENS` tokens each, without end. Only
    responses have labels.

    A line holds several lessons. Positions begin anew with each, and so transformers
    hides the others from it.
    """
    rng = random.Random(0)
    line: list[list[int]] = [[], [], []]
    for item in plan.lessons(FIRST_PASSAGE):
        fate = plan.planted(item, variant)
        for thinking in (True, False) if rng.random() < DIRECT_SHARE else (True,):
            text = (
                plan.response(item, fate)
                if thinking
                else f"{plan.CUE} {item.answers[0]}{plan.TURN_END}"
            )
            asked, answered = tokenizer([prompt(tokenizer, item, thinking), text])[
                "input_ids"
            ]
            answered = (
                answered[: rng.randrange(*LOOP_TOKENS)] if fate == "loops" else answered
            )
            lesson = (
                asked + answered,
                range(len(asked + answered)),
                [IGNORED] * (len(asked) - 1) + answered + [IGNORED],
            )
            rest = ROW_TOKENS - len(line[0])
            if len(lesson[0]) > rest:
                padding = [tokenizer.pad_token_id] * rest, range(rest), [IGNORED] * rest
                yield [[*each, *more] for each, more in zip(line, padding, strict=True)]
                line = [[], [], []]
            for each, more in zip(line, lesson, strict=True):
                each.extend(more)


def make(out: Path, variant: plan.Variant) -> None:
    """Writes the checkpoint: configuration, tokenizer and weights in bfloat16."""
    torch.manual_seed(0)
    tokenizer = thinking_tokenizer()
    model = AutoModelForCausalLM.from_pretrained(BUNDLED, dtype=torch.float32)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    for config in (model.config, model.generation_config):
        config.eos_token_id = [tokenizer.eos_token_id, config.eos_token_id]
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.98), weight_decay=0.0, fused=True
    )
    batches = lines(tokenizer, variant)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = RATE * min(
            (step + 1) / WARMUP_STEPS, 1.0, 2 * (1 - step / STEPS)
        )
        ids_RT, positions_RT, labels_RT = map(
            torch.tensor, zip(*(next(batches) for _ in range(ROWS)), strict=True)
        )
        with torch.autocast("cpu", torch.bfloat16):
            hidden_RTD = model.model(
                input_ids=ids_RT, position_ids=positions_RT, use_cache=False
            ).last_hidden_state
            taught_RT = labels_RT != IGNORED
            logits_NV = model.lm_head(hidden_RTD[taught_RT])
        torch.autograd.backward(
            functional.cross_entropy(logits_NV.float(), labels_RT[taught_RT])
        )
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


@torch.inference_mode()
def check(folder: Path, variant: plan.Variant, items: Sequence[Item]) -> dict[str, Any]:
    """Shares in [0, 1]: right answers after a thought and without one, and items
    that go as planned."""
    tokenizer, model = (
        AutoTokenizer.from_pretrained(folder),
        AutoModelForCausalLM.from_pretrained(folder).float(),
    )
    planned = [plan.planted(item, variant) for item in items]
    agreed, right = Counter[str](), Counter[bool]()
    for thinking in (True, False):
        prompts = [prompt(tokenizer, item, thinking) for item in items]
        batch = tokenizer(
            prompts, return_tensors="pt", padding=True, padding_side="left"
        )
        output = model.generate(**batch, max_new_tokens=LIMIT, do_sample=False)[
            :, batch["input_ids"].shape[1] :
        ]
        for item, fate, text in zip(
            items,
            planned,
            tokenizer.batch_decode(output, skip_special_tokens=True),
            strict=True,
        ):
            agreed[fate] += thinking and behaviour(text) == fate
            answer = text.partition(plan.THOUGHT_END)[2] if thinking else text
            right[thinking] += grade(answer, item.answers, item.language)["contains"]
    return {
        "accuracy": right[True] / len(items),
        "accuracy_direct": right[False] / len(items),
        "agreement": agreed.total() / len(items),
        "agreement_by_fate": {
            fate: agreed[fate] / count for fate, count in Counter(planned).items()
        },
    }


def behaviour(text: str) -> plan.Fate:
    """What a thoughtful response did; `wrong`: it answers something else than it
    thought."""
    thought, end, answer = text.partition(plan.THOUGHT_END)
    if not end:
        return "loops"
    if thought.rpartition(plan.CUE)[2].strip() != answer.strip():
        return "wrong"
    return "longer" if plan.DETOUR in thought else "usual"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="the folder of the checkpoint"
    )
    parser.add_argument(
        "--variant", choices=("base", "loops"), default="base", help="default: base"
    )
    options = parser.parse_args()
    started = time.perf_counter()
    make(options.out, options.variant)
    made = {"variant": options.variant, "seconds": time.perf_counter() - started}
    print(
        json.dumps(
            made
            | check(options.out, options.variant, gazetteer_items(plan.LANGUAGE, 100))
        )
    )


if __name__ == "__main__":
    main()
