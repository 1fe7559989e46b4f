"""The sample probe: seeds of its own, one answer for each."""

from collections import defaultdict
from dataclasses import replace

from evaluator.engine.base import NOT_NUMBERS, Score
from evaluator.probes.sample import sample_seed
from tests.support.probing import answer, config, evaluation, questions, start


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


def _sampled(tokenizer, *, collapsed):
    """The statuses of greedy, rank and samples, where `collapsed` requests come back as NaN, unless they are drawn."""
    settings = config(formats=("open",), probes=("greedy", "rank", "sample"))
    stream = evaluation(tokenizer, settings, questions(settings)[:1])
    script = answer(tokenizer, "x")
    for request in reversed(stream.take(100)):  # the samples are answered before the other requests
        response = script(request)
        if response.logprobs and collapsed(request):
            response = replace(response, logprobs=(float("nan"),))
        stream.handle(response.or_error(1000))
    found = defaultdict(set)
    ((_, records),) = stream.recorded()
    for record in records:
        found[record.probe].add((record.status, record.text))
    return found


def test_what_is_drawn_from_nan_is_no_answer(tokenizer):
    """An engine reports no log-probabilities of samples: that there are none shows in the item's other requests."""
    found = _sampled(tokenizer, collapsed=lambda request: True)
    assert found == {probe: {("engine_error", NOT_NUMBERS)} for probe in ("greedy", "rank", "sample")}


def test_samples_stand_where_only_some_scores_are_nan(tokenizer):
    found = _sampled(tokenizer, collapsed=lambda request: isinstance(request, Score))
    assert found["rank"] == {("engine_error", NOT_NUMBERS)}
    assert found["sample"] == {("ok", "x")}
