"""How well a checkpoint answers, measured with transformers alone: greedy `open` and four-way `choice`, by language.

    python -m benchmarks.reference_model.evaluate launch/reference_model

An independent check of the evaluator's own numbers: it shares the items with it, and nothing else.
"""

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

from benchmarks.reference_model.lessons import IGNORED, question_block
from evaluator.core.records import Item
from evaluator.core.text import normalise
from evaluator.tasks.gazetteer import LANGUAGES, build_passage, gazetteer_items

NEW_TOKENS = 32
OPTIONS = 4
BATCH = 32
_DEVELOPMENT_START = 1_000_000_000  # far behind the last passage that training ever reaches


def open_prompt(item: Item) -> str:
    return f"Context: {item.context}{question_block(item.question)}"


def development_items(count: int = 16) -> list[Item]:
    """Unseen passages of the training stream, to watch training without looking at the evaluated items."""
    items = []
    for language in LANGUAGES:
        for index in range(count):
            passage = build_passage(language, "training", _DEVELOPMENT_START + index)
            fact = passage.facts[index % len(passage.facts)]
            name = f"{language}-{index}"
            items.append(
                Item(
                    task="development",
                    language=language,
                    item_id=name,
                    context=passage.text,
                    question=fact.question,
                    answers=(fact.answer,),
                    cluster=name,
                )
            )
    return items


@torch.inference_mode()
def open_hits(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, items: Sequence[Item]
) -> dict[str, list[bool]]:
    """Per language and item: whether the normalised gold answer is a substring of the normalised greedy output."""
    model.eval()
    hits: dict[str, list[bool]] = {}
    for start in range(0, len(items), BATCH):
        part = items[start : start + BATCH]
        prompts = [tokenizer(open_prompt(item))["input_ids"] for item in part]
        longest = max(map(len, prompts))
        ids_BL = torch.tensor([[tokenizer.pad_token_id] * (longest - len(p)) + p for p in prompts])
        mask_BL = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        output = model.generate(
            input_ids=ids_BL,
            attention_mask=mask_BL,
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        for item, new in zip(part, output[:, longest:], strict=True):
            text = normalise(tokenizer.decode(new, skip_special_tokens=True))
            hits.setdefault(item.language, []).append(normalise(item.answers[0]) in text)
    return hits


@torch.inference_mode()
def choice_hits(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, items: Sequence[Item], seed: int = 42
) -> dict[str, list[bool]]:
    """Per language and item: whether the gold option has the highest summed log-likelihood of four; ties lose."""
    model.eval()
    pools: dict[str, list[str]] = {}
    for item in items:
        pools.setdefault(item.language, []).append(item.answers[0])
    hits: dict[str, list[bool]] = {}
    for start in range(0, len(items), BATCH // OPTIONS):
        part = items[start : start + BATCH // OPTIONS]
        options = [[item.answers[0], *_distractors(item, pools[item.language], seed)] for item in part]
        pairs = [(open_prompt(item), option) for item, four in zip(part, options, strict=True) for option in four]
        scores_IO = _scores(model, tokenizer, pairs).view(len(part), OPTIONS)
        for item, scores_O in zip(part, scores_IO, strict=True):
            hits.setdefault(item.language, []).append(bool(scores_O[0] > scores_O[1:].max()))
    return hits


def _distractors(item: Item, pool: list[str], seed: int) -> list[str]:
    rng = random.Random(f"{seed}:{item.item_id}")
    shuffled = pool.copy()
    rng.shuffle(shuffled)
    seen, chosen = {normalise(item.answers[0])}, []
    for answer in shuffled:
        if normalise(answer) not in seen:
            seen.add(normalise(answer))
            chosen.append(answer)
    return chosen[: OPTIONS - 1]


def _scores(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, pairs: Sequence[tuple[str, str]]
) -> torch.Tensor:
    """Summed log-likelihood (nats) of every pair's option after its prompt."""
    prompts = [tokenizer(prompt)["input_ids"] for prompt, _ in pairs]
    rows = [tokenizer(f"{prompt} {option}")["input_ids"] for prompt, option in pairs]
    assert all(row[: len(prompt)] == prompt for row, prompt in zip(rows, prompts, strict=True))
    longest = max(map(len, rows))
    # Padding stands on the right: causal attention never lets an option see it.
    ids_RL = torch.tensor([row + [tokenizer.pad_token_id] * (longest - len(row)) for row in rows])
    labels_RL = torch.full_like(ids_RL, IGNORED)
    for labels_L, row, prompt in zip(labels_RL, rows, prompts, strict=True):
        labels_L[len(prompt) - 1 : len(row) - 1] = torch.tensor(row[len(prompt) :])
    hidden_RLD = model.model(input_ids=ids_RL, use_cache=False).last_hidden_state
    scored_RL = labels_RL != IGNORED
    losses_N = functional.cross_entropy(model.lm_head(hidden_RLD[scored_RL]), labels_RL[scored_RL], reduction="none")
    return -torch.zeros_like(labels_RL, dtype=torch.float32).masked_scatter(scored_RL, losses_N).sum(-1)


def accuracy_table(path: Path, count: int) -> dict[str, dict[str, float]]:
    """{language: {"open": ..., "choice": ...}} of the checkpoint at `path`, computed in float32."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    items = [item for language in LANGUAGES for item in gazetteer_items(language, count)]
    hits = {"open": open_hits(model, tokenizer, items), "choice": choice_hits(model, tokenizer, items)}
    return {
        language: {probe: sum(by_language[language]) / count for probe, by_language in hits.items()}
        for language in LANGUAGES
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--count", type=int, default=300, help="items per language (default 300)")
    options = parser.parse_args()
    table = accuracy_table(options.checkpoint, options.count)
    for language, row in table.items():
        print(f"{language:12s} open {row['open']:.3f}  choice {row['choice']:.3f}")
    mean = {probe: sum(row[probe] for row in table.values()) / len(table) for probe in ("open", "choice")}
    print(json.dumps({"mean": mean, "languages": table}))


if __name__ == "__main__":
    main()
