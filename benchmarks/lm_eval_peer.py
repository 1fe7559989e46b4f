"""EleutherAI's harness beside the two sides of `bench score` and `bench pass`: `--peer lm-eval`.

It runs on the vLLM that we run on, in an environment beside ours (peer_environment.py), with the engine arguments of
the other side (serving.py) and its own defaults elsewhere (lm_eval_job.py). Its work is a folder of local YAML tasks
and the JSON lines that they read, written here from the workload. It starts from texts, so the workload is respelled
first: the ids that lm-eval makes of its texts are what all sides work on.

score    `multiple_choice`; timed from token ids to log-likelihoods, as our side is.
pass     `multiple_choice`, `generate_until` greedy and ten times sampled; its whole `evaluate()` is timed. It has no
         beams and no ranks: it is held against our pass without them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from harness import Agreement, Peer, Side
from peer_environment import pins, python_of
from serving import SAMPLES, TOKENS, TOP_P, Child, llm_arguments

from evaluator.checkpoints.tokenizer import load_tokenizer

NAME = "lm-eval"
_LOCK = Path(__file__).resolve().parents[1] / "requirements" / "lm-eval.lock"
_JOB = Path(__file__).with_name("lm_eval_job.py")
_DEFAULTS = "batch_size auto, prompt_logprobs 1, samples logged, sampling without a seed of each request's own"


def add_option(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--peer", choices=(NAME,), help="measure it too, in an environment of its own")
    return parser


class Harness:
    """lm-eval's process, and what the benchmarks ask of it."""

    def __init__(self, workload: Path, *, generate: bool) -> None:
        """Respells the workload; `generate` asks for greedy answers and samples besides candidates.

        Raises SystemExit if lm-eval cannot be installed or does not start.
        """
        python = python_of(NAME, pins(_LOCK), beside_ours=True)
        if isinstance(python, str):
            raise SystemExit(f"{NAME}: {python}")
        document = json.loads(workload.read_text())
        tokenizer = load_tokenizer(Path(document["model"]))
        respell(document, tokenizer)
        workload.write_text(json.dumps(document))
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        write_tasks(document, folder, generate=generate)
        self._rounds: list[Mapping[str, Any]] = []
        self._child = _Process(python, document, folder)
        self._ours: Child | None = None
        if generate:
            same = folder / "ours.json"
            same.write_text(json.dumps(document | {"settings": {"probes": ["greedy", "sample", "choice"]}}))
            self._ours = Child("ours", "everything", same)

    def peer(self, agree: Callable[[Any, Any], Agreement]) -> Peer:
        """`agree` compares scores, and greedy answers where there are any."""
        ours = None
        if self._ours is not None:
            ours = Side(name="one stream: greedy, samples, candidates", run=self._ours.round)
        name = next(pin for pin in pins(_LOCK) if pin.startswith(NAME)).replace("==", " ")
        return Peer(side=Side(name=name, run=self._run), ours=ours, agree=agree, facts=self._facts)

    def close(self) -> None:
        for child in (self._child, self._ours):
            if child is not None:
                child.close()
        self._folder.cleanup()

    def _run(self) -> Mapping[str, Any]:
        measured = self._child.round()
        self._rounds.append(measured)
        return {**measured, "seconds": measured["scoring_s" if self._ours is None else "evaluate_s"]}

    def _facts(self) -> Mapping[str, Any]:
        timed = self._rounds[1:]  # the first is the warm-up
        names = ("evaluate_s", "scoring_s", "engine_s")
        seconds = {name: statistics.median(measured[name] for measured in timed) for name in names}
        return {"defaults": _DEFAULTS, "adapted": timed[-1]["adapted"], **seconds}


class _Process(Child):
    """A side's process in another environment, which says why it ended."""

    def __init__(self, python: Path, document: Mapping[str, Any], folder: Path) -> None:
        arguments = folder / "engine.json"
        arguments.write_text(json.dumps(llm_arguments(document)))
        self._errors = folder / "stderr"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [str(part) for part in (python, _JOB, document["model"], arguments, folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=folder,
                env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
            )
        self._answer()

    def _answer(self) -> Any:
        try:
            return super()._answer()
        except SystemExit as ended:
            said = self._errors.read_text().strip().splitlines() or ["no message"]
            raise SystemExit(f"{NAME} failed: {said[-1]}") from ended


def respell(document: dict[str, Any], tokenizer: Any) -> None:
    """Give every item of the workload the ids that lm-eval makes of its `text` and `option_texts`.

    It encodes context and option together and takes what follows as many tokens as the context alone has. Random items
    have no text, and that of random ids would be encoded differently: they become words of the vocabulary, of about as
    many tokens. Raises SystemExit for an option that has no tokens of its own.
    """
    words = _words(tokenizer) if any("text" not in item for item in document["items"]) else []
    for number, item in enumerate(document["items"]):
        if "text" not in item:
            draw = random.Random(number)
            item["text"] = _draw(tokenizer, draw, words, len(item["prompt"]))
            item["option_texts"] = [" " + _draw(tokenizer, draw, words, len(ids)) for ids in item["options"]]
        text = item["text"]
        item["prompt"] = tokenizer(text)["input_ids"]
        together = [tokenizer(text + option)["input_ids"] for option in item["option_texts"]]
        item["options"] = [ids[len(item["prompt"]) :] for ids in together]
        if not all(item["options"]):
            raise SystemExit(f"{NAME}: item {number} has an option without tokens of its own")


def _words(tokenizer: Any) -> list[str]:
    pieces = {tokenizer.decode([number], skip_special_tokens=True).strip() for number in range(len(tokenizer))}
    return sorted(piece for piece in pieces if piece.isascii() and piece.isalnum())


def _draw(tokenizer: Any, draw: random.Random, words: Sequence[str], tokens: int) -> str:
    """Random words, as many as have at most `tokens` tokens, but one at least."""
    drawn = [draw.choice(words) for _ in range(tokens)]
    while len(drawn) > 1 and (excess := len(tokenizer(" ".join(drawn))["input_ids"]) - tokens) > 0:
        del drawn[max(1, len(drawn) - max(1, excess // 4)) :]
    return " ".join(drawn)


def write_tasks(document: Mapping[str, Any], folder: Path, *, generate: bool) -> None:
    """The workload as tasks of lm-eval: NAME.yaml and NAME.jsonl each. Answers are not graded: the first option is
    called the right one, and no text is."""
    items = [{"text": item["text"], "options": item["option_texts"], "gold": 0} for item in document["items"]]
    deep = [row for row, item in zip(items, document["items"], strict=True) if item["deep"]]
    choice = {"output_type": "multiple_choice", "doc_to_choice": "options", "doc_to_target": "gold"}
    answer = {
        "output_type": "generate_until",
        "doc_to_target": "",
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    kept = {"until": [], "max_gen_toks": TOKENS}
    greedy = answer | {"generation_kwargs": kept | {"do_sample": False}}
    sampled = kept | {"do_sample": True, "temperature": 1.0, "top_p": TOP_P}
    tasks: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {"candidates": (choice, items)}
    if generate:
        tasks |= {
            "greedy": (greedy, items),
            "samples": (answer | {"generation_kwargs": sampled, "repeats": SAMPLES}, deep),
        }
    for name, (settings, rows) in tasks.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        source = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
        config = {"task": name, **source, "doc_to_text": "text", "target_delimiter": "", "num_fewshot": 0, **settings}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
