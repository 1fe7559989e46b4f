"""Probes that need the base's answers, in one sweep on the bundled model, against
transformers' own numbers."""

import json
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from evaluator.asking.prompts import Prompter
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.core.records import Item
from evaluator.engine.base import Generate, Score
from evaluator.engine.config import EngineConfig
from evaluator.probes.rank import NOT_SAID
from evaluator.tasks import load_task
from tests.support.engines import TOLERANCE, needs_vllm, oracle_of, rank_bounds
from tests.support.kills import parts, when
from tests.support.models import load_model
from tests.support.runs import finish, records, start

pytestmark = [*needs_vllm, pytest.mark.more]

BUNDLED = Path(__file__).resolve().parents[2] / "launch" / "reference_model"
PLAIN = EngineConfig(kind="torch")
PRUNED = "magnitude-0.8"
ITEMS = 3


@pytest.fixture(scope="module")
def prompter():
    return Prompter(
        load_tokenizer(BUNDLED),
        chat=False,
        prompt_tokens=512,
        one_shot_prompt_tokens=1024,
    )


@pytest.fixture(scope="module")
def questions(tmp_path_factory, prompter):
    """Questions whose gold answer is the last word of what the dense model says; but
    for one, a word it does not."""
    engine = oracle_of(BUNDLED, PLAIN)
    lines = []
    for language in ("english", "swahili"):
        pool = load_task("gazetteer", (language,), "gazetteer").pools[language]
        kept = 0
        for item in pool:
            prompt = prompter.build(item, "open")
            said = engine.answer(
                Generate(request_id="g", prompt_ids=prompt.token_ids, max_tokens=32)
            )
            words = prompter.decode(said.token_ids).split()
            if len(words) > 1:
                gold = "Nowhere" if len(lines) == 3 else words[-1]
                lines.append(
                    {"id": item.item_id, "language": language, "context": item.context, "question": item.question,
                     "answers": [gold, "elsewhere"]}
                )  # fmt: skip
                kept += 1
            if kept == 4:
                break
    assert len(lines) == 8
    file = tmp_path_factory.mktemp("questions") / "lastword.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return file


def _sweep(folder: Path, questions: Path, *, shard_items: int) -> Path:
    text = folder / "book.txt"
    text.write_text(
        load_task("gazetteer", ("english",), "gazetteer").pools["english"][0].context
        * 3,
        encoding="utf-8",
    )
    keep = "true" if shard_items == 1 else "false"
    document = f"""
models: {{dense: bundled}}
prune: [{{method: magnitude, sparsity: 0.8}}]
tasks:
  - {{task: "jsonl:{questions}", items: 0, probes: [greedy, rank, aligned_rank]}}
  - task: gazetteer
    languages: [english]
    items: {ITEMS}
    probes: [greedy, choice, fidelity]
  - {{task: "text:{text}", probes: [text_fidelity], window: 100}}
resources: {{engines: 1, shard_items: {shard_items}, keep_references: {keep}}}
"""
    file = folder / f"sweep-{shard_items}.yaml"
    file.write_text(document, encoding="utf-8")
    return file


@pytest.fixture(
    scope="module",
    params=[False, pytest.param(True, marks=pytest.mark.long)],
    ids=["whole", "resumed"],
)
def run(request, tmp_path_factory, questions):
    folder = tmp_path_factory.mktemp("runs")
    made, log = folder / "run", folder / "log"
    if request.param:
        driver = start(
            "sweep", _sweep(folder, questions, shard_items=1), "--out", made, log=log
        )
        when(driver, lambda: parts(made), log)
        driver.kill()
        assert driver.wait() == -signal.SIGKILL
    finish("sweep", _sweep(folder, questions, shard_items=3), "--out", made)
    return made


def _probe(
    found: pd.DataFrame, checkpoint: str, probe: str, task: str = "lastword"
) -> pd.DataFrame:
    kept = (
        (found["checkpoint"] == checkpoint)
        & (found["probe"] == probe)
        & (found["task"] == task)
    )
    return found[kept].set_index("item_id")


def test_aligned_ranks_equal_transformers(run, questions, prompter):
    """After the base's words."""
    found = records(run)
    items = [
        json.loads(line) for line in questions.read_text(encoding="utf-8").splitlines()
    ]
    dense_said = _probe(found, "dense", "greedy")
    for checkpoint, path in (
        ("dense", BUNDLED),
        (PRUNED, run / "checkpoints" / PRUNED),
    ):
        aligned = _probe(found, checkpoint, "aligned_rank")
        assert len(aligned) == len(items)
        model, oracle = load_model(path), oracle_of(path, PLAIN)
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
            request = Score(
                request_id="s",
                prompt_ids=prompt + tuple(said["token_ids"][:led]),
                continuation_ids=answer,
            )
            expected = oracle.answer(request)
            assert row["logprob"] == pytest.approx(
                sum(expected.logprobs), abs=TOLERANCE
            )
            assert row["margin"] == pytest.approx(
                expected.logprobs[0] - expected.top_logprobs[0][0], abs=TOLERANCE
            )
            low, high = rank_bounds(model, request)
            assert low[0] <= row["rank"] <= high[0]
        ranks = aligned["rank"].dropna()
        assert (set(ranks) == {1}) == (checkpoint == "dense")


@torch.no_grad()
def _from_rounded_states(model, ids, prompt):
    """The log-probabilities of the tokens after the prompt. References are states in
    bfloat16 before the head, so that both sides have these."""
    states_TD = model.model(ids).last_hidden_state[0, prompt - 1 : -1]
    logits_TV = model.lm_head(states_TD.bfloat16().float())
    return logits_TV.double().log_softmax(1)


def test_divergences_equal_transformers(run, prompter):
    """At every position."""
    found = records(run)
    mine = (
        found[found["probe"] == "fidelity"]
        .set_index(["checkpoint", "item_id", "index"])
        .sort_index()
    )
    assert (len(mine), set(mine["status"])) == (2 * 2 * ITEMS, {"ok"})
    models = [load_model(path) for path in (BUNDLED, run / "checkpoints" / PRUNED)]
    near = {"abs": 2 * TOLERANCE}
    pool = {
        item.item_id: item
        for item in load_task("gazetteer", ("english",), "gazetteer").pools["english"]
    }
    for (name, item_id, index), record in mine.iterrows():
        prompt = prompter.build(pool[item_id], "open").token_ids[
            : record["prompt_tokens"]
        ]
        said = list(record["token_ids"])
        assert said == list(mine.loc[("dense", item_id, index), "token_ids"])
        if name == "dense":
            assert max(record["kld"]) < 1e-5  # the floor
            continue
        ids = torch.tensor([[*prompt, *said]])
        p, q = (_from_rounded_states(model, ids, len(prompt)) for model in models)
        assert list(record["kld"]) == pytest.approx(
            (p.exp() * (p - q)).sum(1).tolist(), **near
        )
        assert list(record["acceptance"]) == pytest.approx(
            torch.minimum(p.exp(), q.exp()).sum(1).tolist(), **near
        )
        with torch.no_grad():  # what is scored is not rounded
            logits_TV = models[1](ids).logits[0, len(prompt) - 1 : -1]
        q = logits_TV.double().log_softmax(1)
        own = q.gather(1, torch.tensor(said)[:, None])[:, 0].tolist()
        assert list(record["token_logprobs"]) == pytest.approx(own, **near)
    for item_id, said in _probe(found, "dense", "greedy", "gazetteer")[
        "token_ids"
    ].items():
        assert list(mine.loc[("dense", item_id, 0), "token_ids"]) == list(said)
    windows = found[found["probe"] == "text_fidelity"]
    assert set(windows["status"]) == {"ok"}
    assert all(
        len(each["kld"]) == each["prompt_tokens"] for _, each in windows.iterrows()
    )


def test_fidelity_tables_without_references(run):
    """Tables and page have fidelity; the references are deleted."""
    table = pd.read_csv(run / "tables" / "fidelity.csv")
    whole = table[
        (table["language"] == "all")
        & (table["group"] == "all")
        & (table["task"] != "lastword")
    ]
    whole = whole.set_index(["checkpoint", "along"])
    for along in ("greedy answer", "gold answer", "text"):
        floor, own = whole.loc[("dense", along)], whole.loc[(PRUNED, along)]
        assert floor["kld"] < 1e-5 < own["kld"]
        assert own["kld_floor"] == pytest.approx(floor["kld"])
        assert own["positions"] == floor["positions"] > 0
    assert np.isfinite(whole["kld_max"]).all()
    assert not (run / "references").exists()
    page = (run / "report" / "index.html").read_text(encoding="utf-8")
    assert "How far are the distributions" in page
    assert '"view":"aligned"' in page
    assert "aligned rank" in page
