"""The work of the serving benchmarks: prompts and options as token ids, from a task or
generated.

random:300,600      random contexts of these lengths in turn, four options of 2 to 6
                    tokens
gazetteer, xquad:DIR, ...      the open prompts and the options of a task's questions

A workload is a JSON document. Each of its items has

id                  the item's language and id, or a number
prompt, options     token ids of the open prompt and of each option after it
starts              how many of the prompt's ids stand before each option; absent: all
                    of them
text, option_texts  what these are the ids of; absent from random items
deep                whether beams and samples are drawn
"""

import argparse
import atexit
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import settings
from benchmarks.pruning.synthetic import SHAPES, write_checkpoint
from evaluator.asking.prompts import Prompter
from evaluator.asking.questions import Question
from evaluator.checkpoints.tokenizer import load_tokenizer, read_eos_ids
from evaluator.core.errors import InputError, Json, unknown
from evaluator.core.records import Item, Origin
from evaluator.engine.vllm.start import serves_cpus
from evaluator.probes.config import EvalConfig
from evaluator.probes.planning import prompter_of, questions_of, tokenised
from evaluator.tasks import load_task
from launch.sweep.models import resolve_model, vocabulary_of

# The paper's, which the other sides of a benchmark ask too.
PROBES = ("greedy", "beam", "sample", "choice", "rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    config: EvalConfig
    prompter: Prompter
    questions: list[Question]


def read_questions(task: str, model: Path, count: int, **settings: Any) -> Questions:
    """`count` questions of `task`, the same number of each language as far as that
    goes; `settings` are fields of EvalConfig. Raises InputError for a task that
    cannot be read."""
    data = load_task(task, None)
    config = EvalConfig(
        task=task, items=-(-count // len(data.pools)), **{"probes": PROBES, **settings}
    )
    prompter = prompter_of(load_tokenizer(model), config)
    return Questions(
        config=config, prompter=prompter, questions=questions_of(data, config)[:count]
    )


def columns(*, dtype: str) -> Json:
    """What all records of a benchmark share: an unpruned checkpoint without a
    digest."""
    origin = dict.fromkeys(Origin.__struct_fields__) | {
        "checkpoint": "bench",
        "weights_digest": "",
    }
    return origin | {"engine": "vllm", "engine_version": "", "dtype": dtype}


def key(item: Item) -> str:
    """Names an item in a workload and in the results of both sides. Item ids are
    unique within a language only: XQuAD has the same ids in every language."""
    return f"{item.language}/{item.item_id}"


def add_model(parser: argparse.ArgumentParser) -> None:
    """The options of the model, the workload and our engine."""
    model = (
        "a checkpoint directory, or random:SHAPE, made for the occasion"
        f" ({', '.join(SHAPES)}); default: the bundled model"
    )
    parser.add_argument("--model", default="bundled", help=model)
    parser.add_argument(
        "--engine-args", type=settings, default={}, help="JSON: settings of our engine"
    )


def facts(options: argparse.Namespace, path: Path) -> Json:
    """What every serving benchmark reports of its work; `left_out` are items that
    cannot be asked."""
    named = ("model", "task", "items", "context_tokens")
    reported = {name: getattr(options, name) for name in named}
    left_out = options.items - len(json.loads(path.read_text())["items"])
    return {**reported, "left_out": left_out} if left_out > 0 else reported


@contextmanager
def written(options: argparse.Namespace) -> Iterator[Path]:
    """The workload as a JSON file within. Raises InputError for an unreadable model
    or task, or one without items."""
    document = _document(options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "workload.json"
        path.write_text(json.dumps(document))
        yield path


def _document(options: argparse.Namespace) -> Json:
    model = model_directory(options.model)
    length = options.context_tokens
    asked = {"context_tokens": length, "prompt_tokens": 512 + length}
    if budget := options.thinking:
        asked |= {"chat": True, "thinking": budget, "thought_limit": budget}
    kind, _, lengths = options.task.partition(":")
    if kind == "random":
        sizes = lengths.split(",")
        if not all(size.isdecimal() and int(size) for size in sizes):
            raise InputError(
                f"--task random:{lengths}: must be lengths in tokens, as in"
                " random:300,600"
            )
        eos_ids = read_eos_ids(model)
        items = _random(model, options.items, [int(size) for size in sizes])
    else:
        read = read_questions(options.task, model, options.items, **asked)
        eos_ids, items = read.prompter.eos_ids, list(_items(read))
    if not items:
        raise InputError(
            f"--task {options.task}: none of its first {options.items} items can be"
            " asked"
        )
    return {
        "model": str(model),
        "task": options.task,
        "count": options.items,
        "settings": asked,
        "kv_cache_gib": options.kv_cache_gib or (1 if serves_cpus() else 8),
        "engine_args": options.engine_args,
        "llm_args": options.llm_args,
        "eos_ids": sorted(eos_ids),
        "items": items,
    }


def _items(read: Questions) -> Iterator[Json]:
    """The questions as items of the workload, but for those that cannot be asked, so
    that no engine would see them."""
    for question in read.questions:
        planned = tokenised(question, read.prompter, read.config)
        if "open" not in planned.prompts:
            continue
        prompt = planned.prompts["open"]
        texts = () if question.options is None else question.options.texts
        scored = [planned.scored[text] for text in texts]
        yield {
            "id": key(question.item),
            "text": prompt.text,
            "prompt": list(prompt.token_ids),
            "option_texts": [f" {text}" for text in texts],
            "options": [list(option.continuation_ids) for option in scored],
            "starts": [len(option.prompt_ids) for option in scored],
            "deep": question.deep,
        }


def model_directory(name: str) -> Path:
    """The model's place, gone at exit if random. Raises InputError if not there and
    for an unknown shape."""
    kind, _, shape = name.partition(":")
    if kind != "random":
        return resolve_model(name).absolute()  # a peer runs in a folder of its own
    if shape not in SHAPES:
        raise unknown("shape of a random model", shape, SHAPES)
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_checkpoint(folder / shape, SHAPES[shape])


def _random(model: Path, items: int, lengths: list[int]) -> list[Json]:
    vocabulary = vocabulary_of(model)
    rng = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(5, vocabulary) for _ in range(count)]

    return [
        {
            "id": str(number),
            "prompt": tokens(lengths[number % len(lengths)]),
            "options": [tokens(rng.randrange(2, 7)) for _ in range(4)],
            "deep": True,
        }
        for number in range(items)
    ]
