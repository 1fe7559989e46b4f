"""Train the bundled reference model from nothing, on two CPU cores, in eight minutes.

    python -m benchmarks.reference_model.train --out build/reference --steps 1800

Kill it whenever you like: the same command goes on from the last checkpoint, with the same batches as if it had never
stopped. Then `python -m benchmarks.reference_model.export --run build/reference --out launch/reference_model`.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from benchmarks.reference_model.lessons import (
    Batch,
    LessonStream,
    build_model,
    lesson_losses,
    load_or_train_tokenizer,
    question_block,
)
from evaluator.core.records import Item
from evaluator.core.text import normalise
from evaluator.tasks.gazetteer import LANGUAGES, build_passage

# (facts per passage, go on when the loss is below, go on after so many steps at the latest): copying from one fact is
# learned first, choosing among facts next; passages as long as the evaluated ones come last.
CURRICULUM = (((1, 1), 0.15, 1500), ((1, 3), 0.35, 1500), ((3, 6), 0.0, 1_000_000))
QUESTION_WEIGHT = 0.3
WARMUP_STEPS = 200
LOG_EVERY = 50
NEW_TOKENS = 32
BATCH = 32
_DEVELOPMENT_START = 1_000_000_000  # far behind the last passage that training ever reaches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of checkpoint, log and tokenizer")
    parser.add_argument("--steps", type=int, default=1800, help="optimizer steps in all (default 1800)")
    parser.add_argument("--decay", type=int, default=0, help="last steps over which the rate falls to 0 (default 0)")
    parser.add_argument("--batch", type=int, default=32, help="passages per step (default 32)")
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate (default 0.002)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data (default 0)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    parser.add_argument("--save-every", type=int, default=200, help="steps between checkpoints (default 200)")
    parser.add_argument("--check-every", type=int, default=500, help="steps between accuracy checks (default 500)")
    options = parser.parse_args()
    if options.save_every % LOG_EVERY:
        parser.error(f"--save-every: {options.save_every} is not a multiple of {LOG_EVERY}")
    train(options)


@dataclass(slots=True)
class Progress:
    """Where a run stands; with weights and optimizers, all that a resumed run needs."""

    step: int = 0
    stage: int = 0
    stage_start: int = 0
    seconds: float = 0.0


def train(options: argparse.Namespace) -> None:
    """Train, or go on training, until `options.steps`; every log line is one JSON object."""
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = load_or_train_tokenizer(options.out / "tokenizer")
    model = build_model(tokenizer, options.seed)
    optimizers = build_optimizers(model)
    progress = restore(options.out, model, optimizers)
    stream = LessonStream(tokenizer, seed=options.seed, batch_size=options.batch)
    started, losses = time.perf_counter() - progress.seconds, []
    while progress.step < options.steps:
        rate = options.rate * rate_factor(progress.step, options.steps, options.decay)
        batch = stream.batch(progress.step, CURRICULUM[progress.stage][0])
        losses.append(train_step(model, optimizers, batch, rate))
        progress.step += 1
        progress.seconds = time.perf_counter() - started
        if progress.step % LOG_EVERY == 0:
            loss = sum(losses) / len(losses)
            losses = []
            write_log(options.out, {"loss": loss, "rate": rate, **asdict(progress)})
            _, learned, patience = CURRICULUM[progress.stage]
            if loss < learned or progress.step - progress.stage_start >= patience:
                progress.stage += 1
                progress.stage_start = progress.step
        if progress.step % options.save_every == 0 or progress.step == options.steps:
            save(options.out, model, optimizers, progress)
        if progress.step % options.check_every == 0 or progress.step == options.steps:
            hits = open_hits(model, tokenizer, development_items())
            accuracy = {language: sum(h) / len(h) for language, h in hits.items()}
            mean = sum(accuracy.values()) / len(accuracy)
            write_log(options.out, {"step": progress.step, "mean": mean, "open": accuracy})


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
        prompts = [tokenizer(f"Context: {item.context}{question_block(item.question)}")["input_ids"] for item in part]
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


def train_step(
    model: Qwen3ForCausalLM, optimizers: Sequence[torch.optim.Optimizer], batch: Batch, rate: float
) -> float:
    """One update; returns the loss of the answers in nats per token."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
    model.train()
    # bfloat16 products with float32 weights: three times as fast as float32 on CPUs with AVX-512 BF16.
    with torch.autocast("cpu", torch.bfloat16):
        answers, questions = lesson_losses(model, batch)
    torch.autograd.backward(answers + QUESTION_WEIGHT * questions)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return answers.item()


def rate_factor(step: int, steps: int, decay: int) -> float:
    """Warm-up, constant, then linear to zero over the last `decay` steps."""
    return min((step + 1) / WARMUP_STEPS, 1.0, (steps - step) / decay if decay else 1.0)


def build_optimizers(model: Qwen3ForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices (copying is learned in half the steps that AdamW takes), AdamW for embedding and gains."""
    parameters = dict(model.named_parameters())
    matrices = [p for name, p in parameters.items() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in parameters.items() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, momentum=0.95, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def save(
    folder: Path, model: Qwen3ForCausalLM, optimizers: Sequence[torch.optim.Optimizer], progress: Progress
) -> None:
    """Write the checkpoint under another name first: a kill never leaves half a file."""
    state = {
        "progress": asdict(progress),
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
    }
    torch.save(state, folder / "checkpoint.tmp")
    os.replace(folder / "checkpoint.tmp", folder / "checkpoint.pt")


def restore(folder: Path, model: Qwen3ForCausalLM, optimizers: Sequence[torch.optim.Optimizer]) -> Progress:
    path = folder / "checkpoint.pt"
    if not path.exists():
        return Progress()
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return Progress(**state["progress"])


def write_log(folder: Path, entry: dict[str, Any]) -> None:
    with (folder / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
    print(json.dumps(entry), flush=True)


if __name__ == "__main__":
    main()
