"""The aligned rank through a whole sweep on the bundled model, against transformers' own numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from evaluator.asking.prompts import Prompter
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.core.records import Item
from evaluator.engine.base import Generate, Score
from evaluator.engine.config import EngineConfig
from evaluator.engine.torch_engine import TorchEngine
from evaluator.probes.aligned_rank import NOT_SAID
from evaluator.tasks import load_task
from launch.run.decide.base_answers import NO_BASE
from tests.support.engines import needs_vllm
from tests.support.rounding import rank_bounds
from tests.support.runs import records, resurface

pytestmark = needs_vllm

BUNDLED = Path(__file__).resolve().parents[2] / "launch" / "reference_model"
TOLERANCE = 1e-4  # nats
PRUNED = "magnitude-0.8"


@pytest.fixture(scope="module")
def prompter() -> Prompter:
    return Prompter(load_tokenizer(BUNDLED), chat=False, prompt_tokens=512, one_shot_prompt_tokens=1024)


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory, prompter: Prompter) -> Path:
    """Questions whose gold answer is the last word of what the dense model says; but for one, a word it does not."""
    engine = TorchEngine(EngineConfig(kind="torch"))
    engine.load(BUNDLED)
    lines: list[dict[str, Any]] = []
    for language in ("english", "swahili"):
        pool = load_task("gazetteer", (language,), "gazetteer").pools[language]
        for item in pool[:60]:
            prompt = prompter.build(item, "open")
            said = engine.answer(Generate(request_id="g", prompt_ids=prompt.token_ids, max_tokens=32))
            words = prompter.decode(said.token_ids).split()
            if len(words) > 1 and len(lines) < 8 * (1 + (language == "swahili")):
                gold = "Nowhere" if len(lines) == 3 else words[-1]
                lines.append(
                    {"id": item.item_id, "language": language, "context": item.context, "question": item.question,
                     "answers": [gold, "elsewhere"]}
                )  # fmt: skip
    assert len(lines) == 16
    file = tmp_path_factory.mktemp("questions") / "lastword.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return file


def _sweep(folder: Path, questions: Path) -> Path:
    document = {
        "models": {"dense": "bundled"},
        "prune": [{"method": "magnitude", "sparsity": 0.8}],
        "tasks": [{"task": f"jsonl:{questions}", "items": 0, "probes": ["greedy", "rank", "aligned_rank"]}],
        "resources": {"shard_items": 3},
    }
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, questions: Path) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    done = resurface("sweep", _sweep(folder, questions), "--out", folder / "run")
    assert done.returncode == 0, done.stderr
    return folder / "run"


def _probe(found: pd.DataFrame, checkpoint: str, probe: str) -> pd.DataFrame:
    return found[(found["checkpoint"] == checkpoint) & (found["probe"] == probe)].set_index("item_id")


def test_ranks_and_likelihoods_are_those_of_transformers_after_the_bases_words(run, questions, prompter):
    from transformers import AutoModelForCausalLM

    found = records(run)
    items = [json.loads(line) for line in questions.read_text(encoding="utf-8").splitlines()]
    dense_said = _probe(found, "dense", "greedy")
    for checkpoint, path in (("dense", BUNDLED), (PRUNED, run / "checkpoints" / PRUNED)):
        aligned = _probe(found, checkpoint, "aligned_rank")
        assert len(aligned) == len(items)
        model = AutoModelForCausalLM.from_pretrained(path, dtype="float32").eval()
        oracle = TorchEngine(EngineConfig(kind="torch"))
        oracle.load(path)
        for line in items:
            row, said = aligned.loc[line["id"]], dense_said.loc[line["id"]]
            if line["answers"][0] == "Nowhere":
                assert (row["status"], row["text"]) == ("excluded", NOT_SAID)
                continue
            assert row["status"] == "ok"
            item = Item(task="t", item_id="i", cluster="i", **{k: line[k] for k in ("language", "context", "question")},
                        answers=tuple(line["answers"]))  # fmt: skip
            prompt = prompter.build(item, "open").token_ids
            led = row["prompt_tokens"] - len(prompt)
            answer = tuple(row["token_ids"])
            assert led > 0
            assert tuple(said["token_ids"][led : led + len(answer)]) == answer
            assert prompter.decode(said["token_ids"][:led]) == row["text"]
            assert line["answers"][0].strip(".,").lower() in row["option_text"].lower()
            request = Score(request_id="s", prompt_ids=prompt + tuple(said["token_ids"][:led]), continuation_ids=answer)
            expected = oracle.answer(request)
            assert row["logprob"] == pytest.approx(sum(expected.logprobs), abs=TOLERANCE)
            assert row["margin"] == pytest.approx(expected.logprobs[0] - expected.top_logprobs[0][0], abs=TOLERANCE)
            low, high = rank_bounds(model, request)
            assert low[0] <= row["rank"] <= high[0]
        ranks = aligned["rank"].dropna()
        assert (set(ranks) == {1}) == (checkpoint == "dense")


def test_the_tables_and_the_page_show_them(run):
    rank = pd.read_csv(run / "tables" / "rank.csv")
    whole = rank[(rank["language"] == "all") & (rank["group"] == "all") & (rank["side"] == "own")]
    by_name = whole.set_index("checkpoint")
    assert by_name.loc["dense", ["n", "aligned_n", "aligned_rank_median"]].tolist() == [16, 15, 1.0]
    assert by_name.loc[PRUNED, "aligned_n"] == 15
    page = (run / "report" / "index.html").read_text(encoding="utf-8")
    assert '"view":"aligned"' in page
    assert "aligned rank" in page


@pytest.mark.long
def test_without_its_base_it_is_excluded_and_with_it_the_same(run, questions, tmp_path):
    pruned, task = run / "checkpoints" / PRUNED, f"jsonl:{questions}"
    asked = ("--task", task, "--items", "0", "--probes", "greedy,aligned_rank", "--engine", "torch")
    done = resurface("eval", pruned, *asked, "--out", tmp_path / "alone")
    assert done.returncode == 0, done.stderr
    alone = _probe(records(tmp_path / "alone"), PRUNED, "aligned_rank")
    assert set(zip(alone["status"], alone["text"], strict=True)) == {("excluded", NO_BASE)}
    assert NO_BASE in done.stdout + done.stderr
    done = resurface("eval", pruned, BUNDLED, "--base", BUNDLED, *asked, "--out", tmp_path / "both")
    assert done.returncode == 0, done.stderr
    both = _probe(records(tmp_path / "both"), PRUNED, "aligned_rank")
    swept = _probe(records(run), PRUNED, "aligned_rank")
    assert both["status"].tolist() == swept["status"].tolist()
    assert both["token_ids"].map(_ids).tolist() == swept["token_ids"].map(_ids).tolist()
    pd.testing.assert_series_equal(both["logprob"], swept["logprob"], rtol=0, atol=TOLERANCE)


def _ids(value: Any) -> tuple[int, ...] | None:
    return None if value is None else tuple(value)
