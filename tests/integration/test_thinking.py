"""Thoughts in a run on vLLM and Ray, against transformers' own loops on random
models that think by chance."""

import json
from dataclasses import dataclass

import pandas as pd
import pytest
import torch

from evaluator.asking.prompts import Prompter
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.core.text import loops
from evaluator.store.reading import read_items
from tests.support.engines import TOLERANCE, needs_vllm
from tests.support.models import load_model
from tests.support.runs import finish, records
from tests.support.thinking import thinking_model

pytestmark = [*needs_vllm, pytest.mark.more]

BUDGET, ANSWER, ITEMS = 24, 32, 12


@dataclass
class Ran:
    folder: object
    records: pd.DataFrame
    items: pd.DataFrame

    def of(self, checkpoint, probe):
        kept = (self.records["checkpoint"] == checkpoint) & (
            self.records["probe"] == probe
        )
        return self.records[kept].sort_values(["item_id", "index"])


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("thinking")
    models = [
        thinking_model(folder / name, seed)
        for seed, name in enumerate(("base", "other"))
    ]
    lines = [
        {"id": f"q{number}", "language": "english", "question": "How long is it?",
         "context": f"Lake {'abcdefghijkl'[number]}onti is {number} kilometres long.",
         "answers": [f"{number}{number}", "e"]}
        for number in range(ITEMS)
    ]  # fmt: skip
    file = folder / "lakes.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    out = folder / "run"
    finish(
        "eval", *models, "--base", models[0], "--task", f"jsonl:{file}", "--items", 0, "--chat", "--thinking", BUDGET,
        "--out", out,
    )  # fmt: skip
    return Ran(out, records(out), read_items(out))


class Oracle:
    """transformers, token by token."""

    def __init__(self, path):
        self.model = load_model(path)
        self.prompter = Prompter(
            load_tokenizer(path),
            chat=True,
            prompt_tokens=512,
            one_shot_prompt_tokens=1024,
            thinking=True,
        )
        self.end = self.prompter.thoughts.end_id

    def logprobs(self, ids):
        with torch.inference_mode():
            return self.model(torch.tensor([ids])).logits[0, -1].float().log_softmax(-1)

    def free(self, ids, limit, stop):
        made = []
        while len(made) < limit and not (made and made[-1] in stop):
            made.append(int(self.logprobs([*ids, *made]).argmax()))
        return made

    def thought(self, item):
        prompt = self.prompter.build(item, "open")
        ids = self.free(prompt.token_ids, BUDGET, {0, self.end})
        closed = ids[-1] == self.end
        own = ids[:-1] if closed or ids[-1] == 0 else ids
        return closed, own, [*prompt.token_ids, *own, self.end]


def test_thinking_answers_equal_transformers(ran):
    from evaluator.core.records import Item

    items = {
        row.item_id: Item(task=row.task, language=row.language, item_id=row.item_id, context=row.context,
                          question=row.question, answers=tuple(row.answers), cluster=row.cluster)
        for row in ran.items.itertuples()
    }  # fmt: skip
    states = set()
    for name in ("base", "other"):
        oracle = Oracle(ran.folder.parent / name)
        greedy, ranked, chosen = (
            ran.of(name, probe) for probe in ("greedy", "rank", "choice")
        )
        gap = oracle.prompter._encode("\n\n")
        for item_id, item in items.items():
            closed, own, after = oracle.thought(item)
            [said] = greedy[greedy["item_id"] == item_id].itertuples()
            assert said.thought_state == ("closed" if closed else "cut")
            assert list(said.thought_ids) == own
            answer = oracle.free(after, ANSWER, {0}) if closed else []
            assert list(said.token_ids) == answer
            [first, *_] = oracle.prompter._encode(item.answers[0])
            row = oracle.logprobs([*after, *gap])
            [rank] = ranked[ranked["item_id"] == item_id].itertuples()
            assert rank.margin == pytest.approx(
                float(row[first] - row.max()), abs=TOLERANCE
            )
            for option in chosen[chosen["item_id"] == item_id].itertuples():
                ids = oracle.prompter._encode(option.option_text)
                total = sum(
                    float(oracle.logprobs([*after, *gap, *ids[:at]])[ids[at]])
                    for at in range(len(ids))
                )
                assert option.logprob == pytest.approx(total, abs=len(ids) * TOLERANCE)
            states.add(said.thought_state)
    assert states == {"closed", "cut"}


def test_thinking_table_counts_records(ran):
    table = pd.read_csv(ran.folder / "tables" / "thinking.csv")
    pooled = table[table["language"] == "all"].set_index("checkpoint")
    for name in ("base", "other"):
        said = ran.of(name, "greedy")
        row = pooled.loc[name]
        assert row["n"] == ITEMS
        assert row["thought_tokens"] == pytest.approx(said["thought_tokens"].mean())
        assert row["cut"] == pytest.approx((said["thought_state"] == "cut").mean())
        assert row["loops"] == pytest.approx(
            said["thought"].map(lambda text: loops(text, "english")).mean()
        )
        assert row["accuracy"] == pytest.approx(said["contains"].mean())
    ratio = pooled.loc["other", "thought_tokens"] / pooled.loc["base", "thought_tokens"]
    assert pooled.loc["other", "ratio"] == pytest.approx(ratio)


def test_run_names_thought_format(ran):
    settings = json.loads((ran.folder / "run.json").read_text())["identity"][
        "task_settings"
    ]
    found = {name: {key: task[key] for key in task if "thought" in key or key == "thinking"}
             for name, tasks in settings.items() for task in tasks.values()}  # fmt: skip
    told = {
        "thinking": {"budget": BUDGET},
        "thought_limit": BUDGET,
        "thought_format": "qwen",
    }
    assert found == {"base": told, "other": told}


def test_cut_thought_is_no_cut_context(ran):
    said = ran.of("other", "greedy")
    cut = said[said["thought_state"] == "cut"]
    assert set(cut["status"]) == {"truncated"}
    assert not cut["truncated"].any()
    accuracy = pd.read_csv(ran.folder / "tables" / "accuracy.csv")
    assert (accuracy["truncated"] == 0).all()
