"""Every probe through a served model has the records of the model itself."""

import pytest
from msgspec.structs import asdict, replace

from evaluator.checkpoints.tokenizer import load_tokenizer
from tests.support import probing
from tests.support.fake import FakeEngine
from tests.support.served import BASE, FakeServer, endpoint_engine


def records_of(engine, settings, tokenizer):
    asked = probing.questions(settings)
    stream = probing.evaluation(tokenizer, settings, asked).run(engine)
    rows = [asdict(record) for _, records in stream for record in records]
    for row in rows:
        for name in ("logprob", "margin"):
            if row[name] is not None:
                row[name] = pytest.approx(row[name], abs=1e-9)
    names = ("item_id", "language", "format", "probe", "seed", "index")
    return {tuple(row[name] for name in names): row for row in rows}


@pytest.mark.parametrize("dialect", ["llama", "vllm"])
def test_records_equal_the_models(dialect):
    server = FakeServer(dialect)
    server.context = 2048
    server.partial = frozenset(range(1, 3072, 2))
    tokenizer = load_tokenizer(BASE)
    settings = probing.config(items=2, max_new_tokens=6, formats=("open", "shown"))
    with endpoint_engine(server) as engine:
        found = records_of(engine, settings, tokenizer)

    def own(request):
        """llama.cpp's seeds have 32 bits."""
        if dialect == "llama" and getattr(request, "seed", None) is not None:
            request = replace(request, seed=request.seed % (2**32 - 1))
        return server.lm.answer(request)

    expected = records_of(FakeEngine(own), settings, tokenizer)
    assert found == expected
    assert {row["probe"] for row in found.values()} >= {"beam", "sample", "choice"}
    assert {row["status"] for row in found.values()} <= {"ok", "truncated", "excluded"}


def test_excluded_records_name_the_reason():
    """Of a server that ignores the bias: greedy answers and samples stay."""
    server = FakeServer()
    server.context, server.ignored = 2048, frozenset({"logit_bias"})
    tokenizer = load_tokenizer(BASE)
    settings = probing.config(items=1, max_new_tokens=4, formats=("open",))
    with endpoint_engine(server) as engine:
        found = records_of(engine, settings, tokenizer)
    probes = {}
    for row in found.values():
        probes.setdefault(row["probe"], set()).add(row["status"])
        if row["status"] == "excluded":
            assert row["text"]
            assert row["logprob"] is row["rank"] is None
    for name in ("beam", "choice", "rank", "hard_choice"):
        assert probes[name] == {"excluded"}, name
    for name in ("greedy", "sample"):
        assert probes[name] <= {"ok", "truncated"}, name
