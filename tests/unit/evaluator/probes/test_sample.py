"""The sample probe: seeds of its own, one answer for each."""

from evaluator.probes.sample import sample_seed
from tests.support.probing import config, questions, start


def test_samples_of_every_seed_with_seeds_of_their_own(tokenizer):
    settings = config(formats=("open",), probes=("sample",), seed=3, sample_seeds=(3, 4, 9))
    asked = questions(settings)[0]
    samples = start(tokenizer, settings, asked)
    assert len(samples) == 3 * 10
    assert [r.seed for r in samples] == [
        sample_seed(seed, asked.item.item_id, number) for seed in (3, 4, 9) for number in range(10)
    ]
    assert {(r.temperature, r.top_p, r.max_tokens) for r in samples} == {(1.0, 0.9, 32)}
    assert len({r.request_id for r in samples}) == 30
    one = start(tokenizer, config(formats=("open",), probes=("sample",), seed=3), asked)
    assert [r.seed for r in one] == [r.seed for r in samples[:10]]


def test_sample_seeds_depend_on_run_item_and_number_only() -> None:
    seeds = {sample_seed(run, item, number) for run in (0, 1) for item in ("a", "b") for number in range(10)}
    assert len(seeds) == 40
    assert all(0 <= seed < 2**63 for seed in seeds)
    # Pinned: another value would silently change every sample of every run.
    assert sample_seed(0, "q0", 0) == 5050325379533103084
