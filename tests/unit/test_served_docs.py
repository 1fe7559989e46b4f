"""docs/served.md: what each server can answer, by the probes' own requests."""

import re
from collections import defaultdict
from pathlib import Path

from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.engine.base import Request, Response, Score
from evaluator.engine.endpoint.dialect import Dialect
from evaluator.engine.endpoint.engine import DIALECTS
from evaluator.probes import PROBES
from evaluator.probes.base import Probe
from evaluator.probes.beam import Beam
from evaluator.probes.choice import Choice
from evaluator.probes.perplexity import Perplexity
from launch.sweep.models import BUNDLED_MODEL
from tests.support.fake import FakeEngine
from tests.support.probing import EVERY_PROBE, answer, config, evaluation, questions

PAGE = Path(__file__).parents[2] / "docs" / "served.md"


def needs(probe: Probe, tokenizer) -> str:
    """What a server must report for a probe: nothing but tokens, likeliest tokens,
    scores or distributions."""
    if probe.references:
        return "distributions"
    if isinstance(probe, Perplexity):
        return "scores"
    if probe.name not in EVERY_PROBE:
        return "tops" if isinstance(probe, Beam) else scored_by_kind(probe)
    seen: list[Request] = []
    script = answer(tokenizer, "answer 3")

    def recorded(request: Request) -> Response:
        seen.append(request)
        return script(request)

    probes = tuple(dict.fromkeys(("greedy", probe.name)))
    settings = config(probes=probes, formats=("open",))
    asked = questions(settings)
    list(evaluation(tokenizer, settings, asked).run(FakeEngine(recorded)))
    if any(isinstance(request, Score) for request in seen):
        return "scores"
    tops = any(request.top_logprobs for request in seen)
    return "tops" if tops else "tokens"


def scored_by_kind(probe: Probe) -> str:
    return "scores" if isinstance(probe, Choice) else "tokens"


def able(dialect: Dialect, need: str) -> bool:
    return {
        "tokens": True,
        "tops": dialect.most_top > 0,
        "scores": dialect.scores,
        "distributions": dialect.distributions,
    }[need]


def test_table_follows_the_probes():
    tokenizer = load_tokenizer(BUNDLED_MODEL)
    probes = defaultdict(list)
    for probe in PROBES:
        need = needs(probe, tokenizer)
        cells = ["yes" if able(each, need) else "no" for each in DIALECTS.values()]
        probes[" | ".join(cells)].append(f"`{probe.name}`")
    rows = [f"| {', '.join(names)} | {cells} |" for cells, names in probes.items()]
    stated = re.search(
        r"<!-- table: abilities -->\n.*\n.*\n((?:\|.*\n)*)", PAGE.read_text("utf-8")
    )
    assert stated is not None
    assert stated[1].splitlines() == rows
