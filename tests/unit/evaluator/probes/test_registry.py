"""What an evaluation may be told, what each probe says, and a toy probe that a test
adds from requests to report."""

import pytest
from pydantic import ValidationError

from evaluator.core.errors import EngineError, ResurfaceError
from evaluator.probes import PROBES
from evaluator.probes.base import Cost, ItemProbe
from evaluator.probes.config import EvalConfig
from tests.support.fake import FakeEngine
from tests.support.letters import (
    letter_evaluation,
    letter_items,
    letter_model,
    letter_plans,
    letter_questions,
    noted,
)
from tests.support.registries import temporarily
from tests.support.requests import generation
from tests.support.sweeps import rows


class Again(ItemProbe):
    """Goes on from the greedy answer: two answers, the greedy one and what follows
    it."""

    name = "again"
    help = "what the model says after its answer"
    evidence = "reachable"
    view = "answers"
    title = "second thoughts"
    columns = {"agains": "Int64", "again_hit": "boolean", "again_hits": "Int64"}  # noqa: RUF012

    def why_not(self, item):
        return super().why_not(item) or (
            "no fifth letter" if item.item.question.startswith("e") else None
        )

    def run(self, item):
        (first,) = yield [item.greedy()]
        prompt_ids = (*item.prompts["open"].token_ids, *first.token_ids)
        (second,) = yield [generation(item.request_id(self.name, 0), prompt_ids, 4)]
        found = enumerate((first, second))
        return [
            item.record(self.name, index=index, **item.generated(response))
            for index, response in found
        ]

    def cost(self, config):
        return Cost(requests=2, generated_tokens=2 * config.max_new_tokens)

    def reduce(self, asked):
        from evaluator.core.reducing import hits

        return hits(asked, self.name)


@pytest.fixture
def again():
    with temporarily(PROBES, Again()) as probe:
        yield probe


def test_order_of_probes_is_pinned():
    """The order of probes is that of records and identities."""
    order = (
        "greedy beam sample choice rank aligned_rank hard_choice perplexity fidelity"
        " text_fidelity"
    )
    assert PROBES.names == tuple(order.split())


def config(**changes):
    usual = {
        "task": "toy",
        "items": 0,
        "max_new_tokens": 6,
        "probes": ("again", "greedy", "beam"),
    }
    return EvalConfig(**usual | changes)


def records_of(settings):
    asked, script = noted(letter_model().answer)
    plans = letter_plans(letter_questions(letter_items(6), settings), settings)
    stream = letter_evaluation(plans, settings).run(FakeEngine(script))
    return [record for _, found in stream for record in found], asked


def test_toy_probe_shares_and_follows_up(again):
    records, asked = records_of(config())
    by_item = {
        name: [r for r in records if r.item_id == name]
        for name in {r.item_id for r in records}
    }
    for name, mine in by_item.items():
        (greedy,) = [r for r in mine if r.probe == "greedy"]
        more = [r for r in mine if r.probe == "again"]
        if name == "q4":
            assert [(r.status, r.text) for r in more] == [
                ("excluded", "no fifth letter")
            ]
        else:
            assert [r.status for r in more] == ["ok", "ok"]
            assert more[0].token_ids == greedy.token_ids
    ids = [request.request_id for request in asked]
    assert len(ids) == len(set(ids))
    # asked once, for three probes
    assert sum("/greedy/open" in name for name in ids) == 6
    alone, _ = records_of(config(probes=("again",)))
    assert sorted(alone, key=repr) == sorted(
        (r for r in records if r.probe == "again"), key=repr
    )


@pytest.mark.parametrize("method", ["run", "why_not", "continuations"])
def test_probe_error_names_probe_and_item(again, method, monkeypatch, caplog):
    """Not an EngineError: the engine is well, and another one would not help."""

    def fail(*_):
        raise KeyError("q")

    monkeypatch.setattr(Again, method, fail)
    line = (
        r"^probe 'again' failed on item 'q\d' \(english\) of task 'toy': KeyError: 'q'$"
    )
    with pytest.raises(ResurfaceError, match=line) as caught:
        records_of(config())
    assert not isinstance(caught.value, EngineError)
    assert "in fail" in caplog.text  # the traceback, for the log


REFUSED = """
formats: [open, open] | each one once
probes: [] | at least one
probes: [greedy, again] | unknown probe 'again'
seeds: [3, 3] | at least one: 3, 3
seed: 9223372036854775808 | less than 9223372036854775808
probes: [fidelity] | needs the probe greedy too
probes: [aligned_rank, rank] | reads the base's greedy answers: it needs
fidelity_top: 4 | first 5 ranks
probes: [perplexity] | probe perplexity takes a text, as in task wikitext2 or text:FILE
task: 'text:a.txt' | takes the probe perplexity or text_fidelity and no other: greedy, beam
task: 'text:a.txt', probes: [perplexity], items: 5 | items: task 'text:a.txt' is a whole text
task: wikitext2, probes: [perplexity], chat: true, formats: [open] | formats, chat: task 'wikitext2' is a whole text
name: a/b | pattern
temperature: 2.1 | less than or equal to 2
thinking: maybe | must be off, on, or
thinking: 0 | must be off, on, or
thinking: 'on' | set chat: true
thinking: 'on', probes: [greedy, fidelity] | use thinking: off
context_tokens: 9, formats: [one_shot] | only the contexts of questions can be longer
"""


@pytest.mark.parametrize(("settings", "message"), rows(REFUSED))
def test_what_is_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        EvalConfig(**{"task": "xquad"} | settings)
