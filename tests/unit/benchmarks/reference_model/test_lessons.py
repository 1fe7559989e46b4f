"""Packed training sequences compute what plain prompts do, and a killed training run goes on as if never stopped."""

import argparse

import pytest
import torch

from benchmarks.reference_model import lessons
from benchmarks.reference_model import train as program
from benchmarks.reference_model.lessons import IGNORED, LessonStream, build_model, collate, pack, train_tokenizer
from evaluator.tasks.gazetteer import LANGUAGES, build_passage


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(vocabulary=800, passages=40)


@pytest.mark.parametrize("language", LANGUAGES)
def test_packed_blocks_equal_plain_prompts(tokenizer, language):
    model = build_model(tokenizer, seed=1).eval()
    passage = build_passage(language, "training", 3)
    neighbour = build_passage(language, "training", 4, (6, 6))  # longer: the passage under test is padded
    batch = collate([pack(passage, tokenizer), pack(neighbour, tokenizer)], tokenizer.pad_token_id)
    with torch.inference_mode():
        hidden_BLD = model.model(
            input_ids=batch.ids_BL, attention_mask=batch.mask_B1LL, position_ids=batch.positions_BL, use_cache=False
        ).last_hidden_state
        supervised_L = batch.labels_BL[0] != IGNORED
        packed_NV = model.lm_head(hidden_BLD[0][supervised_L])
        labels_N = batch.labels_BL[0][supervised_L].tolist()
        done = 0
        for fact in passage.facts:
            prompt = f"Context: {passage.text}{lessons.question_block(fact.question)}"
            prompt_ids = tokenizer(prompt)["input_ids"]
            ids = [*tokenizer(f"{prompt} {fact.answer}")["input_ids"], tokenizer.eos_token_id]
            assert ids[: len(prompt_ids)] == prompt_ids
            answer = ids[len(prompt_ids) :]
            plain_NV = model(input_ids=torch.tensor([ids])).logits[0, len(prompt_ids) - 1 : -1]
            assert labels_N[done : done + len(answer)] == answer
            torch.testing.assert_close(packed_NV[done : done + len(answer)], plain_NV, rtol=1e-4, atol=1e-4)
            done += len(answer)
    assert done == len(labels_N)


def test_batches_depend_on_their_number_only(tokenizer):
    first = LessonStream(tokenizer, seed=0, batch_size=2)
    second = LessonStream(tokenizer, seed=0, batch_size=2)
    first.batch(0, (1, 1))
    assert torch.equal(first.batch(40, (3, 6)).ids_BL, second.batch(40, (3, 6)).ids_BL)
    assert second.batch(40, (1, 1)).ids_BL.shape[1] < second.batch(40, (3, 6)).ids_BL.shape[1]


def options(out, steps):
    fixed = {"decay": 0, "batch": 2, "rate": 2e-3, "seed": 0, "threads": 1, "save_every": 2, "check_every": 1000}
    return argparse.Namespace(out=out, steps=steps, **fixed)


@pytest.mark.slow
@pytest.mark.long
def test_resumed_run_equals_uninterrupted_run(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "open_hits", lambda *_: {"english": [True]})
    monkeypatch.setattr(program, "LOG_EVERY", 2)
    monkeypatch.setattr(program, "CURRICULUM", (((1, 1), 0.0, 4), ((1, 3), 0.0, 100)))
    threads = torch.get_num_threads()
    tokenizer = train_tokenizer(vocabulary=400, passages=5)
    for name in ("whole", "cut"):
        tokenizer.save_pretrained(tmp_path / name / "tokenizer")
    program.train(options(tmp_path / "whole", 6))
    program.train(options(tmp_path / "cut", 2))
    program.train(options(tmp_path / "cut", 6))
    torch.set_num_threads(threads)
    whole, cut = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("whole", "cut"))
    assert whole["progress"]["stage"] == cut["progress"]["stage"] == 1
    for name, weight in whole["model"].items():
        assert torch.equal(weight, cut["model"][name]), name
