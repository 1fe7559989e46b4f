"""What an evaluation may be told."""

import pytest
from pydantic import ValidationError

from evaluator.probes.config import EvalConfig


def test_defaults_are_the_protocols():
    config = EvalConfig(task="xquad")
    assert config.items == 200
    assert config.formats == ("open",)
    assert config.probes == ("greedy", "beam", "sample", "choice", "rank", "aligned_rank")
    assert (config.prompt_tokens, config.one_shot_prompt_tokens, config.max_new_tokens) == (512, 1024, 32)
    assert (config.beam_width, config.samples, config.top_p, config.temperature) == (5, 10, 0.9, 1.0)
    assert (config.window, config.chat, config.seeds) == (2048, False, (0,))


def test_sample_seeds_are_the_run_seed_unless_named():
    assert EvalConfig(task="xquad", seed=7).seeds == (7,)
    assert EvalConfig(task="xquad", seed=7, sample_seeds=(7, 1)).seeds == (7, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "xquad", "formats": ("open", "open")}, "each one once"),
        ({"task": "xquad", "probes": ()}, "at least one"),
        ({"task": "xquad", "sample_seeds": ()}, "at least one"),
        ({"task": "xquad", "sample_seeds": (3, 3)}, "at least one: 3, 3"),
        ({"task": "xquad", "sample_seeds": (0, -1)}, "greater than or equal to 0"),
        ({"task": "xquad", "sample_seeds": (2**63,)}, "less than 9223372036854775808"),
        ({"task": "xquad", "seed": 2**63}, "less than 9223372036854775808"),
        ({"task": "xquad", "probes": ("perplexity",)}, "probe perplexity takes a text, as in task text:FILE"),
        ({"task": "xquad", "probes": ("greedy", "perplexity")}, "takes a text"),
        ({"task": "text:a.txt"}, "'text:a.txt' takes the probe perplexity or text_fidelity and no other: greedy, beam"),
        (
            {"task": "text:a.txt", "probes": ("perplexity", "greedy")},
            "takes the probe perplexity or text_fidelity and no other",
        ),
        ({"task": "xquad", "name": "a/b"}, "pattern"),
        ({"task": "xquad", "formats": ("opened",)}, "open_capped"),
        ({"task": "xquad", "window": 1}, "greater than or equal to 2"),
        ({"task": "xquad", "temperature": 2.1}, "less than or equal to 2"),
        ({"task": "xquad", "temperature": 0.001}, "greater than or equal to 0.01"),
    ],
)
def test_what_is_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        EvalConfig(**settings)


def test_a_text_takes_perplexity():
    assert EvalConfig(task="text:a.txt", probes=("perplexity",)).is_text
