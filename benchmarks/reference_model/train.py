"""Train the bundled reference model from nothing, on a CPU, in about an hour.

    python -m benchmarks.reference_model.train --out build/reference --steps 12000

Kill it whenever you like: the same command goes on from the last checkpoint, with the same batches as if it had never
stopped. Then `python -m benchmarks.reference_model.export --run build/reference --out launch/reference_model`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3ForCausalLM

from benchmarks.reference_model.evaluate import development_items, open_hits
from benchmarks.reference_model.lessons import Curriculum, LessonStream
from benchmarks.reference_model.model import build_model, lesson_loss
from benchmarks.reference_model.tokenizer import load_or_train_tokenizer

# Copying from one fact is learned first; passages as long as the evaluated ones (three to six facts) come last.
CURRICULUM: Curriculum = ((0, (1, 1)), (640, (1, 3)), (1600, (2, 4)), (3200, (3, 6)))
WARMUP_STEPS = 200
DECAY_SHARE = 0.3  # the rate is constant before, so that --steps may be changed on resuming


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of checkpoint, log and tokenizer")
    parser.add_argument("--steps", type=int, default=12_000, help="optimizer steps in all (default 12000)")
    parser.add_argument("--batch", type=int, default=32, help="passages per step (default 32)")
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate (default 0.002)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data (default 0)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    parser.add_argument("--save-every", type=int, default=250, help="steps between checkpoints (default 250)")
    parser.add_argument("--check-every", type=int, default=500, help="steps between accuracy checks (default 500)")
    train(parser.parse_args())


def train(options: argparse.Namespace) -> None:
    """Train, or go on training, until `options.steps`; every log line is one JSON object."""
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = load_or_train_tokenizer(options.out / "tokenizer")
    model = build_model(tokenizer, options.seed)
    optimizer = build_optimizer(model, options.rate)
    step, seconds = restore(options.out, model, optimizer)
    stream = LessonStream(tokenizer, seed=options.seed, batch_size=options.batch, curriculum=CURRICULUM)
    started, losses = time.perf_counter() - seconds, []
    while step < options.steps:
        rate = options.rate * rate_factor(step, options.steps)
        losses.append(train_step(model, optimizer, stream, step, rate))
        step += 1
        seconds = time.perf_counter() - started
        if step % 50 == 0:
            write_log(options.out, {"step": step, "loss": sum(losses) / len(losses), "rate": rate, "seconds": seconds})
            losses = []
        if step % options.save_every == 0 or step == options.steps:
            save(options.out, model, optimizer, step, seconds)
        if step % options.check_every == 0 or step == options.steps:
            hits = open_hits(model, tokenizer, development_items())
            accuracy = {language: sum(h) / len(h) for language, h in hits.items()}
            write_log(options.out, {"step": step, "mean": sum(accuracy.values()) / len(accuracy), "open": accuracy})


def train_step(
    model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer, stream: LessonStream, step: int, rate: float
) -> float:
    """One update on batch number `step`; returns its loss in nats."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    model.train()
    # bfloat16 products with float32 weights: three times as fast as float32 on CPUs with AVX-512 BF16.
    with torch.autocast("cpu", torch.bfloat16):
        loss = lesson_loss(model, stream.batch(step))
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def rate_factor(step: int, steps: int) -> float:
    """Warm-up, constant, then linear to zero over the last `DECAY_SHARE` of the steps."""
    return min((step + 1) / WARMUP_STEPS, 1.0, (steps - step) / (DECAY_SHARE * steps))


def build_optimizer(model: Qwen3ForCausalLM, rate: float) -> torch.optim.Optimizer:
    """AdamW; gains and embeddings are not decayed."""
    parameters = dict(model.named_parameters())
    matrices = [p for name, p in parameters.items() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in parameters.items() if p.ndim != 2 or "embed" in name]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": 0.02},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=True)


def save(folder: Path, model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer, step: int, seconds: float) -> None:
    """Write the checkpoint under another name first: a kill never leaves half a file."""
    state = {"step": step, "seconds": seconds, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, folder / "checkpoint.tmp")
    os.replace(folder / "checkpoint.tmp", folder / "checkpoint.pt")


def restore(folder: Path, model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer) -> tuple[int, float]:
    """Load the checkpoint if there is one; (steps done, seconds spent)."""
    path = folder / "checkpoint.pt"
    if not path.exists():
        return 0, 0.0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"]), float(state["seconds"])


def write_log(folder: Path, entry: dict[str, Any]) -> None:
    with (folder / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
    print(json.dumps(entry), flush=True)


if __name__ == "__main__":
    main()
