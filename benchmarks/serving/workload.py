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

The fewest token forwards that the answers of a pass need: one for each *distinct
prefix* of a prompt and its answer, over all items together. An answer is anything that
was returned: greedy, each beam, each sample, each scored option.

- An answer's last token is not forwarded, EOS or not, unless another answer continues
  there.
- The prompt's last token is forwarded: the answer's first token comes from the
  distribution after it.
- A distribution (a row through the output head) is needed once for each distinct prefix
  that an answer's token follows.
- A generated token reads the KV cache once. A scored answer is known beforehand, so one
  read serves all of its tokens.

This is a bound from below: a beam search must also look at prefixes of beams that it
does not return.
"""

import argparse
import atexit
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    Agree,
    Child,
    Options,
    Results,
    Side,
    compare,
    count,
    settings,
)
from benchmarks.pruning.synthetic import SHAPES, write_checkpoint
from benchmarks.serving import lm_eval
from benchmarks.serving.sides import OURS, Work, start
from evaluator.asking.prompts import Prompter
from evaluator.asking.questions import Question
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.core.errors import InputError, json_text, unknown
from evaluator.core.files import write_atomically
from evaluator.core.records import Item, Origin, Record
from evaluator.engine.vllm.start import serves_cpus
from evaluator.probes.config import EvalConfig
from evaluator.probes.item import Plan
from evaluator.probes.planning import plan_of, questions_of
from evaluator.tasks import load_task
from launch.sweep.estimate import vocabulary_of
from launch.sweep.models import resolve_model

_ANSWERS = ("greedy", "scores", "beams")  # of a round
_GENERATED = ("greedy", "beam", "sample")  # probes whose answers the model chose

# The ids of a prompt, at least one; those of an answer to it; whether the model chose
# them one by one.
Answered = tuple[Sequence[int], Sequence[int], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fewest:
    forwards: int
    distributions: int
    steps: int  # one after the other: the tokens of the longest answer
    cached: int  # tokens that are read from the KV cache, over all reads


def fewest(answers: Iterable[Answered]) -> Fewest:
    """Count the distinct prefixes of all `answers`; answers without tokens do not
    count."""
    # a trie: (node, token) -> node; the root is 0
    children: dict[tuple[int, int], int] = {}
    asked: set[int] = set()  # nodes after which a distribution is needed
    reads: dict[int, int] = {}  # node -> how many tokens a row reads there
    steps = 0
    for prompt, answer, generated in answers:
        if not answer:
            continue
        node = 0
        for token in prompt:
            node = children.setdefault((node, token), len(children) + 1)
        path = [node]
        for token in answer[:-1]:
            node = children.setdefault((node, token), len(children) + 1)
            path.append(node)
        asked.update(path)
        depths = dict(
            zip(path, range(len(prompt), len(prompt) + len(path)), strict=True)
        )
        reads |= depths if generated else {node: depths[node]}
        steps = max(steps, len(answer))
    return Fewest(
        forwards=len(children),
        distributions=len(asked),
        steps=steps,
        cached=sum(reads.values()),
    )


def answers_of(
    records: Iterable[Record], plans: Mapping[tuple[str, str], Plan]
) -> Iterator[Answered]:
    """Each record's prompt and answer, if any; a tokenizer may merge a prompt's end
    into the option."""
    for record in records:
        if record.token_ids:
            prompt = plans[record.language, record.item_id].prompts[record.format]
            yield (
                prompt.token_ids[: record.prompt_tokens],
                record.token_ids,
                record.probe in _GENERATED,
            )


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
    prompter = prompter_of(model, 512 + config.length, thinking=config.thinks)
    return Questions(
        config=config, prompter=prompter, questions=questions_of(data, config)[:count]
    )


def prompter_of(
    model: Path, prompt_tokens: int = 512, *, thinking: bool = False
) -> Prompter:
    """The prompts of a run's defaults, for a checkpoint's tokenizer."""
    tokenizer = load_tokenizer(model)
    return Prompter(
        tokenizer,
        chat=thinking,
        thinking=thinking,
        prompt_tokens=prompt_tokens,
        one_shot_prompt_tokens=1024,
    )


def columns(*, engine: str, dtype: str) -> dict[str, Any]:
    """What all records of a benchmark share: an unpruned checkpoint without a
    digest."""
    origin = dict.fromkeys(Origin.__struct_fields__) | {
        "checkpoint": "bench",
        "weights_digest": "",
    }
    return origin | {"engine": engine, "engine_version": "", "dtype": dtype}


def key(item: Item) -> str:
    """Names an item in a workload and in the results of both sides. Item ids are
    unique within a language only: XQuAD has the same ids in every language."""
    return f"{item.language}/{item.item_id}"


def parser(description: str | None, *, task: str, items: int, rounds: int) -> Options:
    """The options that every serving benchmark takes."""
    made = Options(description)
    add_model(made)
    made.add_argument(
        "--task", default=task, help=f"a task, or random:300,600 (default: {task})"
    )
    made.add_argument(
        "--items", type=count, default=items, help=f"items (default: {items})"
    )
    made.add_argument(
        "--context-tokens",
        type=int,
        default=0,
        help="tokens of each context, with other passages",
    )
    made.add_argument(
        "--rounds",
        type=count,
        default=rounds,
        help=f"timed rounds of each side (default: {rounds})",
    )
    made.add_argument(
        "--kv-cache-gib",
        type=count,
        help="of each side's engine (default: 8 on a GPU, 1 on a CPU)",
    )
    made.add_argument(
        "--llm-args",
        type=settings,
        default={},
        help="JSON: arguments of vllm.LLM for the other side",
    )
    return made


def add_model(parser: argparse.ArgumentParser) -> None:
    """The options of the model, the workload and our engine."""
    shapes = ", ".join(SHAPES)
    parser.add_argument(
        "--model",
        default="bundled",
        help=(
            "a checkpoint directory, or random:SHAPE, made for the occasion"
            f" ({shapes}); default: the bundled model"
        ),
    )
    parser.add_argument(
        "--engine-args", type=settings, default={}, help="JSON: settings of our engine"
    )


def facts(options: argparse.Namespace, path: Path) -> dict[str, Any]:
    """What every serving benchmark reports of its work; `left_out` are items that
    cannot be asked."""
    said = {
        name: getattr(options, name)
        for name in ("model", "task", "items", "context_tokens")
    }
    left_out = options.items - len(json.loads(path.read_text())["items"])
    return {**said, "left_out": left_out} if left_out > 0 else said


def compare_sides(
    stack: ExitStack,
    options: argparse.Namespace,
    path: Path,
    names: tuple[str, str, str],
    work: Work,
    agree: Agree,
    more: Callable[[Child], Mapping[str, Any]] = lambda ours: ours.results[-1]["stats"],
) -> None:
    """`compare` sides, which start together and live until `stack` closes. Each
    begins its warm-up, which is not timed, when it is up: ours is written, whatever
    becomes of the others. `names`: of the benchmark, of what ours do and of what the
    others do; `more`: facts of the first of ours."""
    benchmark, ours, theirs = names
    peers = lm_eval.beside(stack, options, path, agree, generate=work == "everything")
    said, out = facts(options, path), getattr(options, "out", None)
    children: dict[str, Child] = {}
    for key in getattr(options, "sides", ("ours", "theirs")):
        log = out and out / f"{benchmark}-{key}.log"
        children[key] = stack.enter_context(start(key, work, path, log))
    sides: dict[str, Side] = {}
    for key, child in children.items():
        name = ours if key in OURS else theirs
        name = name if key in ("ours", "theirs") else f"{key}: {name}"
        sides[key] = Side(name=name, run=child.round, agree=agree if sides else None)
    key, child = next(iter(children.items()))
    if key in OURS:
        sides[key] = replace(sides[key], facts=lambda: {**said, **more(child)})
    compare(
        benchmark,
        sides | peers,
        rounds=options.rounds,
        keep=partial(write_rounds, out, said),
    )


def write_rounds(
    out: Path | None,
    said: Mapping[str, Any],
    side: str,
    results: Results,
    failed: str | None,
) -> None:
    """Write what a side's rounds have said so far, without their answers; the first
    round is the warm-up."""
    if out is not None:
        rounds = [
            {key: value for key, value in each.items() if key not in _ANSWERS}
            for each in results
        ]
        document = {"side": side, **said, "rounds": rounds, "failed": failed}
        write_atomically(
            out / f"pass-{side}.json", json_text(document, indent=1).encode()
        )


@contextmanager
def written(options: argparse.Namespace) -> Iterator[Path]:
    """The workload as a JSON file within. Raises InputError for an unreadable model
    or task, or one without items."""
    document = _document(options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "workload.json"
        path.write_text(json.dumps(document))
        yield path


def _document(options: argparse.Namespace) -> dict[str, Any]:
    model = model_directory(options.model)
    document: dict[str, Any] = {
        "model": str(model),
        "task": options.task,
        "count": options.items,
        "settings": {
            "context_tokens": options.context_tokens,
            **_thoughts(getattr(options, "thinking", 0)),
        },
        "kv_cache_gib": getattr(options, "kv_cache_gib", None)
        or (1 if serves_cpus() else 8),
        "engine_args": options.engine_args,
        "llm_args": options.llm_args,
    }
    kind, _, lengths = options.task.partition(":")
    if kind == "random":
        if not all(part.isdecimal() and int(part) for part in lengths.split(",")):
            raise InputError(
                f"--task random:{lengths}: must be lengths in tokens, as in"
                " random:300,600"
            )
        document["eos_ids"] = sorted(prompter_of(model).eos_ids)
        document["items"] = _random(
            model, options.items, [int(part) for part in lengths.split(",")]
        )
        return document
    read = read_questions(options.task, model, options.items, **document["settings"])
    document["eos_ids"] = sorted(read.prompter.eos_ids)
    document["items"] = [
        item
        for question in read.questions
        if (item := _item(question, read)) is not None
    ]
    if not document["items"]:
        raise InputError(
            f"--task {options.task}: none of its first {options.items} items can be"
            " asked"
        )
    return document


def _thoughts(budget: int) -> dict[str, Any]:
    return {"chat": True, "thinking": budget, "thought_limit": budget} if budget else {}


def _item(question: Question, read: Questions) -> dict[str, Any] | None:
    """A question as an item of the workload; None where it cannot be asked, so that
    no engine would see it."""
    planned = plan_of(question, read.prompter, read.config)
    if "open" not in planned.prompts:
        return None
    prompt = planned.prompts["open"]
    texts = () if question.options is None else question.options.texts
    scored = [planned.scored[text] for text in texts]
    return {
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


def _random(model: Path, items: int, lengths: list[int]) -> list[dict[str, Any]]:
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
