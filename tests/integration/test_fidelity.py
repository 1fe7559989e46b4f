"""Fidelity through a whole sweep on the bundled model: killed, resumed, and against transformers' own numbers."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from evaluator.asking.prompts import Prompter
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.tasks import load_task
from tests.support.engines import needs_vllm
from tests.support.runs import records, resurface, start

pytestmark = needs_vllm

BUNDLED = Path(__file__).resolve().parents[2] / "launch" / "reference_model"
PRUNED = "magnitude-0.8"
TOLERANCE = 2e-4  # nats
ITEMS = 6


def _sweep(folder: Path, text: Path, *, shard_items: int) -> Path:
    document = {
        "models": {"dense": "bundled"},
        "prune": [{"method": "magnitude", "sparsity": 0.8}],
        "tasks": [
            {"task": "gazetteer", "languages": ["english"], "items": ITEMS, "probes": ["greedy", "choice", "fidelity"]},
            {"task": f"text:{text}", "probes": ["text_fidelity"], "window": 100},
        ],
        "resources": {"engines": 1, "shard_items": shard_items, "keep_references": shard_items == 1},
    }
    file = folder / f"sweep-{shard_items}.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.long)], ids=["whole", "resumed"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep; one that is killed once some of its records are there, and resumed."""
    folder = tmp_path_factory.mktemp("runs")
    made, log, text = folder / "run", folder / "log", folder / "book.txt"
    text.write_text(load_task("gazetteer", ("english",), "gazetteer").pools["english"][0].context * 3, encoding="utf-8")
    if request.param:
        driver = start("sweep", _sweep(folder, text, shard_items=1), "--out", made, log=log)
        while not list(made.glob("records/*/*/*.parquet")):
            assert driver.poll() is None, log.read_text()
            time.sleep(0.02)
        driver.kill()
        assert driver.wait() == -signal.SIGKILL
    done = resurface("sweep", _sweep(folder, text, shard_items=3), "--out", made)
    assert done.returncode == 0, done.stderr
    return made


def test_every_position_is_what_transformers_says(run):
    from transformers import AutoModelForCausalLM

    found = records(run)
    mine = found[found["probe"] == "fidelity"].set_index(["checkpoint", "item_id", "index"]).sort_index()
    assert len(mine) == 2 * 2 * ITEMS
    assert set(mine["status"]) == {"ok"}
    prompter = Prompter(load_tokenizer(BUNDLED), chat=False, prompt_tokens=512, one_shot_prompt_tokens=1024)
    models = [
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        for path in (BUNDLED, run / "checkpoints" / PRUNED)
    ]
    pool = {item.item_id: item for item in load_task("gazetteer", ("english",), "gazetteer").pools["english"]}
    for (name, item_id, index), record in mine.iterrows():
        prompt = prompter.build(pool[item_id], "open").token_ids[: record["prompt_tokens"]]
        said = list(record["token_ids"])
        assert said == list(mine.loc[("dense", item_id, index), "token_ids"])
        if name == "dense":
            assert max(record["kld"]) < 1e-5  # the floor
            continue
        with torch.no_grad():
            p, q = (
                model(torch.tensor([[*prompt, *said]])).logits[0, len(prompt) - 1 : -1].double().log_softmax(1)
                for model in models
            )
        assert list(record["kld"]) == pytest.approx((p.exp() * (p - q)).sum(1).tolist(), abs=TOLERANCE)
        assert list(record["acceptance"]) == pytest.approx(
            torch.minimum(p.exp(), q.exp()).sum(1).tolist(), abs=TOLERANCE
        )
        own = q.gather(1, torch.tensor(said)[:, None])[:, 0].tolist()
        assert list(record["token_logprobs"]) == pytest.approx(own, abs=TOLERANCE)
    greedy = found[(found["probe"] == "greedy") & (found["checkpoint"] == "dense")].set_index("item_id")["token_ids"]
    for item_id, said in greedy.items():
        assert list(mine.loc[("dense", item_id, 0), "token_ids"]) == list(said)
    windows = found[found["probe"] == "text_fidelity"]
    assert set(windows["status"]) == {"ok"}
    assert all(len(each["kld"]) == each["prompt_tokens"] for _, each in windows.iterrows())


def test_the_table_has_the_floor_and_the_distributions_are_gone(run):
    table = pd.read_csv(run / "tables" / "fidelity.csv")
    whole = table[(table["language"] == "all") & (table["group"] == "all")].set_index(["checkpoint", "along"])
    for along in ("greedy answer", "gold answer", "text"):
        floor, own = whole.loc[("dense", along)], whole.loc[(PRUNED, along)]
        assert floor["kld"] < 1e-5 < own["kld"]
        assert own["kld_floor"] == pytest.approx(floor["kld"])
        assert own["positions"] == floor["positions"] > 0
    assert np.isfinite(whole["kld_max"]).all()
    assert not (run / "references").exists()
    assert "How far are the distributions" in (run / "report" / "index.html").read_text(encoding="utf-8")


def test_a_dry_run_says_how_much_is_kept(tmp_path):
    text = tmp_path / "book.txt"
    text.write_text("Karo lies on the river Belu. " * 9, encoding="utf-8")
    done = resurface("sweep", _sweep(tmp_path, text, shard_items=3), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "distributions of bases in RUN/references" in done.stdout
