"""What the serving benchmarks work on: prompts and options as token ids, from a task or generated.

random:300,600      random contexts of these lengths in turn, four options of 2 to 6 tokens
gazetteer, xquad:DIR, ...      the open prompts and the options of a task's questions
"""

from __future__ import annotations

import argparse
import atexit
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from synthetic import SHAPES, write_checkpoint

from evaluator.asking.prompts import Prompter
from evaluator.asking.questions import questions_of
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.probes.config import EvalConfig
from evaluator.probes.item import plan
from evaluator.tasks import load_task
from launch.sweep.models import resolve_model


def parser(description: str | None, *, task: str, items: int, rounds: int) -> argparse.ArgumentParser:
    """The options that every serving benchmark takes."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model(made)
    made.add_argument("--task", default=task, help=f"a task, or random:300,600 (default: {task})")
    made.add_argument("--items", type=int, default=items, help=f"items (default: {items})")
    made.add_argument("--rounds", type=int, default=rounds, help=f"timed rounds of each side (default: {rounds})")
    made.add_argument("--llm-args", type=json.loads, default={}, help="JSON: arguments of vllm.LLM for the other side")
    return made


def add_model(parser: argparse.ArgumentParser) -> None:
    """The options that say what is served, and how by us."""
    shapes = ", ".join(SHAPES)
    parser.add_argument(
        "--model",
        default="bundled",
        help=f"a checkpoint directory, or random:SHAPE, made for the occasion ({shapes}); default: the bundled model",
    )
    parser.add_argument("--engine-args", type=json.loads, default={}, help="JSON: settings of our engine")


def write(options: argparse.Namespace) -> Path:
    """The workload of `options` as a JSON file in a temporary place."""
    model = model_directory(options.model)
    prompter = Prompter(load_tokenizer(model), chat=False, prompt_tokens=512, one_shot_prompt_tokens=1024)
    kind, _, lengths = options.task.partition(":")
    document: dict[str, Any] = {
        "model": str(model),
        "task": options.task,
        "count": options.items,
        "eos_ids": sorted(prompter.eos_ids),
        "engine_args": options.engine_args,
        "llm_args": options.llm_args,
    }
    if kind == "random":
        document["items"] = _random(model, options.items, [int(length) for length in lengths.split(",")])
    else:
        languages = len(load_task(options.task, None).pools)
        document["per_language"] = -(-options.items // languages)
        config = EvalConfig(task=options.task, items=document["per_language"])
        plans = [plan(q, prompter, config) for q in questions_of(load_task(config.task, None), config)][: options.items]
        document["items"] = [
            {
                "text": p.prompts["open"].text,
                "prompt": list(p.prompts["open"].token_ids),
                "option_texts": [f" {option.text}" for option in p.options],
                "options": [list(option.scored.continuation_ids) for option in p.options],
                "deep": p.question.deep,
            }
            for p in plans
        ]
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump(document, file)
    return Path(file.name)


def model_directory(name: str) -> Path:
    """Where the model of `--model` lies; a random one is removed when the process ends."""
    kind, _, shape = name.partition(":")
    if kind != "random":
        return resolve_model(name)
    if shape not in SHAPES:
        raise SystemExit(f"--model {name!r}: the shapes are {', '.join(SHAPES)}")
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_checkpoint(folder / shape, SHAPES[shape])


def _random(model: Path, items: int, lengths: list[int]) -> list[dict[str, Any]]:
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    rng = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(5, vocabulary) for _ in range(count)]

    return [
        {
            "prompt": tokens(lengths[number % len(lengths)]),
            "options": [tokens(rng.randrange(2, 7)) for _ in range(4)],
            "deep": True,
        }
        for number in range(items)
    ]
