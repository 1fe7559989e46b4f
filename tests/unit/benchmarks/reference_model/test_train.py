"""A killed training run goes on as if it had never stopped."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch

from benchmarks.reference_model import train as program
from benchmarks.reference_model.lessons import train_tokenizer


def options(out: Path, steps: int) -> argparse.Namespace:
    return argparse.Namespace(
        out=out, steps=steps, decay=0, batch=2, rate=2e-3, seed=0, threads=1, save_every=2, check_every=1000
    )


@pytest.mark.slow
@pytest.mark.long
def test_resumed_run_equals_uninterrupted_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
