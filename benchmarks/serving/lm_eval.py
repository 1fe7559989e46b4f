"""EleutherAI's harness beside the two sides of `bench score` and `bench pass`:
`--peer lm-eval`.

It runs on our vLLM, in an environment beside ours (environment.py), with the engine
arguments of the other side (serving/launching.py) and its own defaults elsewhere
(lm_eval_job.py). It reads local YAML tasks on JSON lines, which are written here
from the workload. It starts from texts, so the workload is respelled first: all
sides work on the ids that lm-eval makes of the texts.

score    `multiple_choice`; timed from token ids to log-likelihoods, as our side is.
pass     `multiple_choice`, `generate_until` greedy and ten times sampled; its whole
         `evaluate()` is timed. It has no beams and no ranks: it is compared with our
         pass without them."""

import json
import os
import random
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from benchmarks.harness import Agree, Child, Side
from benchmarks.pruning.synthetic import pieces
from benchmarks.serving.launching import SAMPLES, TOKENS, TOP_P, llm_arguments, start
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.core.errors import Document, Json
from quantising.environment import pins, python_of

NAME = "lm-eval"
_LOCK = Path(__file__).resolve().parents[2] / "requirements" / "lm-eval.lock"
_JOB = Path(__file__).with_name("lm_eval_job.py")
_DEFAULTS = (
    "batch_size auto, prompt_logprobs 1, samples logged, sampling without a seed of"
    " each request's own"
)


def beside(
    stack: ExitStack, workload: Path, agree: Agree, *, generate: bool
) -> dict[str, Side]:
    """lm-eval as a side, and ours that does as much, until `stack` closes. Raises
    InputError."""
    python = python_of(NAME, pins(_LOCK), beside_ours=True)
    document = json.loads(workload.read_text())
    respell(document, load_tokenizer(Path(document["model"])))
    workload.write_text(json.dumps(document))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    write_tasks(document, folder, generate=generate)
    arguments = folder / "engine.json"
    arguments.write_text(json.dumps(llm_arguments(document)))
    command = [python, "-P", _JOB, document["model"], arguments, folder]
    env = os.environ | {"TOKENIZERS_PARALLELISM": "false"}
    child = stack.enter_context(Child(NAME, command, env=env, cwd=folder))
    sides = {}
    if generate:
        same = folder / "ours.json"
        alike = {**document["settings"], "probes": ["greedy", "sample", "choice"]}
        same.write_text(json.dumps({**document, "settings": alike}))
        process = stack.enter_context(start("ours", "everything", same))
        sides["ours_for_peer"] = Side(
            name="one stream: greedy, samples, candidates", run=process.round
        )
    items = [item["id"] for item in document["items"]]

    def run() -> Document:
        measured = child.round()
        scores = {}
        for item, values in zip(items, measured["scores"], strict=False):
            scores[item] = {str(number): value for number, value in enumerate(values)}
        greedy = dict(zip(items, measured["greedy"], strict=False))
        seconds = measured["evaluate_s" if generate else "scoring_s"]
        return {**measured, "scores": scores, "greedy": greedy, "seconds": seconds}

    def facts() -> Document:
        timed = child.results[1:]  # the first is the warm-up
        reported = {"defaults": _DEFAULTS, "adapted": timed[-1]["adapted"]}
        for name in ("evaluate_s", "scoring_s", "engine_s"):
            reported[name] = statistics.median(measured[name] for measured in timed)
        return reported

    name = next(pin for pin in pins(_LOCK) if pin.startswith(NAME)).replace("==", " ")
    return {
        **sides,
        "peer": Side(name=name, run=run, agree=agree, ours="".join(sides), facts=facts),
    }


def respell(document: Json, tokenizer: Any) -> None:
    """Give every item of the workload the ids that lm-eval makes of its `text` and
    `option_texts`.

    lm-eval encodes context and option together; the option's ids are those after as
    many as the context alone has. Random items have no text, and the text of random ids
    would be encoded differently: they become pieces of the vocabulary, of about as many
    tokens. Raises SystemExit for an option without tokens.
    """
    texts = pieces(tokenizer)
    for number, item in enumerate(document["items"]):
        if "text" not in item:
            draw = random.Random(number)
            item["text"] = "".join(draw.choices(texts, k=len(item["prompt"])))
            item["option_texts"] = []
            for ids in item["options"]:
                text = "".join(draw.choices(texts, k=len(ids)))
                item["option_texts"].append(f" {text.lstrip()}")
        text = item["text"]
        item["prompt"] = tokenizer(text)["input_ids"]
        item["options"] = []
        for option in item["option_texts"]:
            ids = tokenizer(text + option)["input_ids"]
            item["options"].append(ids[len(item["prompt"]) :])
        item.pop("starts", None)  # every option now stands after the whole prompt
        if not all(item["options"]):
            raise SystemExit(
                f"{NAME}: item {number} has an option without tokens of its own"
            )


def write_tasks(document: Document, folder: Path, *, generate: bool) -> None:
    """Write the workload as tasks of lm-eval, NAME.yaml and NAME.jsonl each. Nothing
    is graded: the first option counts as the right one, and no text does."""
    items, deep = [], []
    for item in document["items"]:
        row = {"text": item["text"], "options": item["option_texts"], "gold": 0}
        items.append(row)
        if item["deep"]:
            deep.append(row)
    choice = {
        "output_type": "multiple_choice",
        "doc_to_choice": "options",
        "doc_to_target": "gold",
    }
    answer = {
        "output_type": "generate_until",
        "doc_to_target": "",
        "metric_list": [
            {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
        ],
    }
    kept = {"until": [], "max_gen_toks": TOKENS}
    greedy = answer | {"generation_kwargs": kept | {"do_sample": False}}
    sampled = kept | {"do_sample": True, "temperature": 1.0, "top_p": TOP_P}
    samples = answer | {"generation_kwargs": sampled, "repeats": SAMPLES}
    tasks: dict[str, tuple[Json, list[Json]]] = {"candidates": (choice, items)}
    if generate:
        tasks |= {"greedy": (greedy, items), "samples": (samples, deep)}
    for name, (settings, rows) in tasks.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
            "doc_to_text": "text",
            "target_delimiter": "",
            "num_fewshot": 0,
            **settings,
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
