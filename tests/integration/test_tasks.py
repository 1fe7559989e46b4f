"""Items and texts of the user's own, through the real command line: distractors that
they bring, and perplexity."""

import json

import pytest
import torch
import yaml
from transformers import AutoTokenizer

from tests.support.models import load_model, save_tiny_model
from tests.support.runs import finish, records

COMMON = {
    "language": "english",
    "context": "Lake Onti is 48 kilometres long.",
    "question": "How long is it?",
}
LINES = yaml.safe_load("""
- id: own
  answers: [48 kilometres]
  options: [4 kilometres, 84 kilometres, 48 kilometres, 8 m]
- {id: many, answers: ["1714"], options: ["1741", "1417", "1147", "4171", "7141", "1174"]}
- {id: one, answers: [Karo], options: [Belu]}
- {id: gold, answers: [Mira, Tolen], options: [Tolen, Mira]}
- {id: drawn, answers: [Onti]}
- {id: empty, answers: ["?"], options: [a, b]}
""")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.mark.more
@pytest.mark.slow
def test_multiple_choice_task_both_ways(tiny, tmp_path):
    file, run = tmp_path / "bench.jsonl", tmp_path / "run"
    file.write_text("\n".join(json.dumps(COMMON | line) for line in LINES))
    prompts = tmp_path / "prompts.yaml"
    prompts.write_text(
        "listed: \"{{ context }}\\n{{ question }} {{ options | join(' or ') }}?\""
    )
    asked = (
        f"eval {tiny} --task jsonl:{file} --items 0 --prompts {prompts} --engine torch"
        " --probes greedy,choice,hard_choice,rank --formats open,shown,distractors_only"
    )
    finish(*asked.split(), "--out", run)
    every = records(run)
    assert set(every["task"]) == {"bench", "bench+listed"}
    found = every[every["task"] == "bench"]
    listed = every[every["task"] == "bench+listed"].set_index("item_id")
    own = listed.loc["own"][listed.loc["own"]["probe"] == "choice"]
    options = " or ".join(own.sort_values("index")["option_text"])
    prompt = f"{COMMON['context']}\n{COMMON['question']} {options}?"
    ids = AutoTokenizer.from_pretrained(tiny)(prompt)["input_ids"]
    assert set(own["prompt_tokens"]) == {len(ids)}
    # brings nothing but gold answers: there are no options to list
    assert set(listed.loc["gold"]["status"]) == {"excluded"}
    choice = found[(found["probe"] == "choice") & (found["status"] == "ok")]
    brought = {
        line["id"]: {*line["answers"][:1], *line.get("options", ())} for line in LINES
    }
    for name, count in (("own", 4), ("many", 7), ("one", 2)):
        options = choice[choice["item_id"] == name]
        assert (set(options["option_text"]), len(options)) == (brought[name], count)
        assert options.loc[options["is_gold"].astype(bool), "option_text"].tolist() == [
            next(line["answers"][0] for line in LINES if line["id"] == name)
        ]
    # brings none: drawn from the pool
    assert len(choice[choice["item_id"] == "drawn"]) == 4
    # brings nothing but gold answers: excluded from what needs distractors, asked the
    # rest
    gold = found[found["item_id"] == "gold"].set_index(["probe", "format"])["status"]
    assert (
        gold["choice", "open"]
        == gold["greedy", "shown"]
        == gold["greedy", "distractors_only"]
        == "excluded"
    )
    assert gold["greedy", "open"] == gold["rank", "open"] == "ok"
    assert set(found.loc[found["item_id"] == "empty", "status"]) == {"excluded"}
    hard = found[(found["probe"] == "hard_choice") & (found["item_id"] == "own")]
    assert len(hard) == 4
    # hard distractors are other items' answers
    assert "84 kilometres" not in set(hard["option_text"])


@pytest.mark.long
@pytest.mark.slow
def test_perplexity_equals_transformers(tiny, tmp_path):
    text = "The town of Karo lies on the river Belu.\n" * 30 + "Onti"
    (tmp_path / "book.txt").write_text(text, encoding="utf-8")
    run = tmp_path / "run"
    asked = f"eval {tiny} --task text:{tmp_path}/book.txt --probes perplexity"
    finish(*asked.split(), "--out", run)
    found = records(run)
    ids = AutoTokenizer.from_pretrained(tiny)(text, return_tensors="pt")["input_ids"]
    window = 2048  # the tiny model's positions, and the default
    model = load_model(tiny)
    total = predicted = 0
    for start in range(0, ids.shape[1], window):
        part = ids[:, start : start + window]
        with torch.no_grad():
            logprobs = model(part).logits[0].log_softmax(-1)
        total += logprobs[:-1].gather(1, part[0, 1:, None]).sum().item()
        predicted += part.shape[1] - 1
    assert found["prompt_tokens"].sum() == predicted
    assert abs(found["logprob"].sum() - total) <= 1e-4 * predicted
