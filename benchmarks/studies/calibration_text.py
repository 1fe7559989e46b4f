"""The study "calibration text" (calibration-text.md): its run, and its numbers.

    python -m benchmarks.studies.calibration_text --task xquad:DIR \\
        --web jsonl:FILE,... --out runs/calibration-text

The same command resumes. It prints the table of the page, and writes OUT.csv and
OUT.svg."""

import hashlib
import json
import sysconfig
from collections.abc import Iterable, Iterator
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import yaml

from benchmarks.harness import Options, run_main
from benchmarks.studies.running import drawn, finished
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.core.errors import InputError, Json
from evaluator.core.files import csv_bytes, write_atomically
from evaluator.core.records import Item
from evaluator.metrics.table import Dots, Series
from evaluator.probes.config import EvalConfig
from evaluator.probes.planning import prompter_of
from evaluator.report.notebook import OpenRun
from evaluator.tasks.loading import load_task, select
from pruning.calibration import iterate
from pruning.config import CalibrationConfig

SWEEP = Path(__file__).with_name("calibration-text.yaml")
TEXTS = ("web", "code", "task", "languages")
DRAWN = ("0", "1")  # two draws of each text: their difference is the noise
RESAMPLES = 2000
CODE_CHARACTERS = 1500
# the columns of right open answers: by the strict rule, and by the paper's
OPEN = {"strict": "produced", "paper": "greedy_paper"}
NUMBERS = ("gap", "gap_paper", "choice", "open")
Floats = npt.NDArray[np.float64]


# ---- the texts


def sequences(texts: Iterable[str], tokenizer: Any, length: int) -> Iterator[str]:
    """The texts, joined and cut into pieces of `length` tokens."""
    ids: list[int] = []
    for text in texts:
        ids += tokenizer.encode(f"{text}\n\n", add_special_tokens=False)
        while len(ids) >= length:
            # a cut may fall within a character
            yield tokenizer.decode(ids[:length]).strip("\N{REPLACEMENT CHARACTER}")
            ids = ids[length:]


def code() -> Iterator[str]:
    """Of each file of Python's standard library, a stretch from its first function or
    class on."""
    files = [*Path(sysconfig.get_paths()["stdlib"]).glob("*.py")]
    for file in sorted(
        files, key=lambda each: hashlib.sha256(each.name.encode()).digest()
    ):
        text = file.read_text(encoding="utf-8")
        starts = [text.find(word) for word in ("\ndef ", "\nclass ")]
        if start := min((each for each in starts if each >= 0), default=0):
            yield text[start : start + CODE_CHARACTERS]


def spare_items(asked: EvalConfig) -> Iterator[Item]:
    """An item of each passage that the study does not ask about, the languages in
    turn."""
    spare = []
    for pool in load_task(asked.task, asked.languages).pools.values():
        shuffled = select(pool, 0)
        passages = {item.cluster for item in shuffled[: asked.items]}
        others = [item for item in shuffled if item.cluster not in passages]
        spare.append({item.cluster: item for item in others}.values())
    for items in zip(*spare, strict=True):
        yield from items


def sweep_with_texts(task: str, web: str, out: Path) -> Json:
    """The study's sweep, with a `prune` line for each method and text. The texts are
    written beside the run `out`.

    Raises InputError for a text that is too short."""
    sweep: Json = yaml.safe_load(SWEEP.read_text(encoding="utf-8"))
    ((_, model),) = sweep["models"].items()
    (questions,) = sweep["tasks"]
    questions |= {"task": task, "name": "xquad"}
    asked, tokenizer = EvalConfig(**questions), load_tokenizer(Path(model))
    prompter = prompter_of(tokenizer, asked)
    passages = iterate(CalibrationConfig(source=web), 0, {})
    texts: dict[str, Iterable[str]] = {
        "web": (passage.text for passage in passages),
        "code": code(),
        "task": (
            prompter.build(item, "open").text + item.answers[0]
            for item in spare_items(asked)
        ),
        "languages": (item.context for item in spare_items(asked)),
    }
    samples, length = (
        sweep["calibration"][key] for key in ("samples", "sequence_length")
    )
    lines = []
    for name, text in texts.items():
        pieces = [*islice(sequences(text, tokenizer, length), samples * len(DRAWN))]
        if len(pieces) < samples * len(DRAWN):
            raise InputError(f"{name}: {len(pieces)} sequences of {length} tokens")
        for number, draw in enumerate(DRAWN):
            file = out.with_name(f"{out.name}-{name}{draw}.jsonl")
            rows = [json.dumps({"text": each}) for each in pieces[number :: len(DRAWN)]]
            write_atomically(file, "\n".join(rows).encode())
            source = {**sweep["calibration"], "source": f"jsonl:{file}"}
            named = {"label": f"{name}{draw}", "calibration": source}
            lines += [setting | named for setting in sweep["prune"]]
    sweep["prune"] = lines
    sweep["calibration"] = lines[0]["calibration"]
    return sweep


# ---- the numbers


def read(run: OpenRun) -> pd.DataFrame:
    """A row for each pruned checkpoint and item: its text, the draw, the passage, and
    the numbers that the plan names."""
    outcomes, items = run.outcomes(), run.items()
    pruned = outcomes[outcomes["base"].notna() & outcomes["produced"].notna()]
    pruned = pruned.merge(items[["task", "language", "item_id", "cluster"]])
    label = pruned["checkpoint"].str.rpartition("-")[2]
    right = {rule: pruned[column].astype(float) for rule, column in OPEN.items()}
    choice = pruned["recognised"].astype(float)
    return pd.DataFrame(
        {
            "text": label.str[:-1],
            "draw": label.str[-1],
            "passage": pruned["cluster"].astype(str),
            "gap": choice - right["strict"],
            "gap_paper": choice - right["paper"],
            "choice": choice,
            "open": right["strict"],
        }
    )


def study(rows: pd.DataFrame, resamples: int = RESAMPLES) -> pd.DataFrame:
    """The table of the page: each number of each text, and its difference between two
    texts, with intervals.

    `low`, `high`: 95 %. `low_of_six`, `high_of_six`: 95 % for six pairs together.
    `noise`: the largest difference between two draws of one text."""
    passages = sorted({*rows["passage"]})
    chance = np.full(len(passages), 1 / len(passages))
    weights = np.random.default_rng(0).multinomial(len(passages), chance, resamples)
    drawn: Floats = np.vstack([np.ones(len(passages)), weights])
    table = []
    for name in NUMBERS:
        means = {
            key: _means(part, name, passages, drawn)
            for key, part in rows.groupby("text")
        }
        halves = {
            key: _means(part, name, passages, drawn)[0]
            for key, part in rows.groupby(["text", "draw"])
        }
        noise = max(abs(halves[text, "0"] - halves[text, "1"]) for text in TEXTS)
        for text in TEXTS:
            table.append(_row(name, text, "", means[text]))
        for one, other in combinations(TEXTS, 2):
            row = _row(name, one, other, means[one] - means[other])
            table.append(row | {"noise": noise})
    return pd.DataFrame(table)


def _means(part: pd.DataFrame, name: str, passages: list[str], drawn: Floats) -> Floats:
    """The mean of a number, under each draw of passages."""
    by_passage = part.groupby("passage")[name]
    sums, sizes = (
        each.reindex(passages).to_numpy(np.float64)
        for each in (by_passage.sum(), by_passage.size())
    )
    means: Floats = (drawn @ sums) / (drawn @ sizes)
    return means


def _row(name: str, text: str, other: str, values: Floats) -> Json:
    ends = np.percentile(values[1:], [2.5, 97.5, 2.5 / 6, 100 - 2.5 / 6])
    names = ("low", "high", "low_of_six", "high_of_six")
    row: Json = {"number": name, "text": text, "minus": other, "value": values[0]}
    return row | dict(zip(names, ends, strict=True))


def figure(found: pd.DataFrame) -> str:
    """The differences between two texts by both graders, as SVG."""
    pairs = found[found["minus"] != ""]
    names = {
        "checkpoint": pairs["text"] + " - " + pairs["minus"],
        "value_low": pairs["low_of_six"],
        "value_high": pairs["high_of_six"],
    }
    strict = Series("value", "greedy", "strict rule", {"number": "gap"})
    paper = Series("value", "lost", "the paper's", {"number": "gap_paper"}, shift=0.25)
    title = "Difference of the gap between two texts, 95 % for six"
    panel = Dots(title, (strict, paper), axis="points")
    return drawn(panel, pairs.assign(**names), "calibration-text")


def main() -> None:
    options = Options(__doc__)
    options.add_argument("--task", default="xquad", help="xquad, or xquad:DIR")
    options.add_argument("--web", default="c4", help="c4, or jsonl:FILE,...")
    options.add_argument("--out", type=Path, default=Path("runs/calibration-text"))
    given = options.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    sweep = sweep_with_texts(given.task, given.web, given.out)
    found = study(read(finished(sweep, given.out)))
    write_atomically(given.out.with_suffix(".csv"), csv_bytes(found))
    write_atomically(given.out.with_suffix(".svg"), figure(found).encode())
    print(found.round(3).to_string(index=False))


if __name__ == "__main__":
    run_main(main)
