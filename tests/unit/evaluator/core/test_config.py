"""What an evaluation may be told."""

import pytest
from pydantic import ValidationError

from evaluator.probes.config import EvalConfig


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
        ({"task": "xquad", "probes": ("fidelity",)}, "needs the probe greedy too"),
        ({"task": "xquad", "probes": ("aligned_rank", "rank")}, "reads the base's greedy answers: it needs"),
        ({"task": "xquad", "fidelity_top": 4}, "first 5 ranks"),
        ({"task": "xquad", "probes": ("perplexity",)}, "probe perplexity takes a text, as in task text:FILE"),
        ({"task": "text:a.txt"}, "'text:a.txt' takes the probe perplexity or text_fidelity and no other: greedy, beam"),
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
