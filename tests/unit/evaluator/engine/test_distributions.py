"""What is kept of distributions, and compared with them, against formulas."""

import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from evaluator.engine.base import Reference
from evaluator.engine.distributions import RANKS, divergences_from, unusable

TOLERANCE = 1e-5  # nats; shares and probabilities
IDS = list(range(40))


def rows(seed, count=40, columns=500):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, columns, generator=draw) * 3


def expected(base_TV, own_TV, ids):
    """Every measure by its definition, in float64."""
    p, q = (each.double().log_softmax(1) for each in (base_TV, own_TV))
    first_p, first_q = (
        each.argsort(dim=1, descending=True, stable=True)[:, :RANKS] for each in (p, q)
    )
    return [
        (
            float((p[t].exp() * (p[t] - q[t])).sum()),
            float((q[t].exp() * (q[t] - p[t])).sum()),
            float(torch.minimum(p[t].exp(), q[t].exp()).sum()),
            bool(first_p[t, 0] == first_q[t, 0]),
            float((first_p[t] == first_q[t]).double().mean()),
            float(p[t, ids[t]]),
            float(p[t].exp().max()),
        )
        for t in range(len(ids))
    ]


def compared(path, base, own, ids=IDS, top=0):
    """The divergences of `own` from a base that is kept first."""
    kept = Reference(path=str(path), keep=True, top=top)
    assert divergences_from(kept, base, ids) == ()
    return divergences_from(Reference(path=str(path), keep=False, top=top), own, ids)


def check(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, abs=TOLERANCE)
        assert one.same_top is other[3]


def test_divergences_equal_their_definitions(tmp_path):
    base, own = rows(1), rows(2)
    own[:20] = base[:20] + 0.1 * own[:20]  # nearly the same, and not at all
    found = compared(tmp_path / "deeper" / "one", base, own)
    check(found, expected(base, own, IDS))
    assert {each.same_top for each in found} == {True, False}
    assert not list(tmp_path.glob("**/.*"))  # nothing half-written stays


def test_impossible_tokens_are_infinitely_far(tmp_path):
    """But not those that are impossible on both sides."""
    base, own = rows(1, 2), rows(2, 2)
    base[:, 7] = own[:, 7] = float("-inf")
    own[1, 9] = float("-inf")
    one, other = compared(tmp_path / "one", base, own, [1, 2])
    assert math.isfinite(one.kld)
    assert (other.kld, math.isfinite(other.kld_reverse)) == (math.inf, True)


def test_top_tokens_give_bounds(tmp_path):
    """The more tokens are kept, the closer; with all of them, the whole."""
    base = rows(1)
    own = base + 0.5 * rows(2)
    whole, last = expected(base, own, IDS), -math.inf
    for top in (RANKS, 16, 100, 500, 900):
        found = compared(tmp_path / str(top), base, own, top=top)
        for one, other in zip(found, whole, strict=True):
            assert one.kld <= other[0] + TOLERANCE
            assert one.kld_reverse <= other[1] + TOLERANCE
            assert one.acceptance >= other[2] - TOLERANCE
            assert one[3:] == pytest.approx(other[3:], abs=TOLERANCE)
        mean = sum(each.kld for each in found)
        assert mean >= last - TOLERANCE
        last = mean
    check(found, whole)


def test_other_tokens_count_as_one(tmp_path):
    """By hand, for one row and five tokens."""
    base = rows(1)
    own = base + 0.5 * rows(2)
    (first, *_) = compared(tmp_path / "one", base, own, top=RANKS)
    p, q = base[0].double().softmax(0), own[0].double().softmax(0)
    kept = p.argsort(descending=True)[:RANKS]
    p, q = (torch.cat((each[kept], (1 - each[kept].sum())[None])) for each in (p, q))
    assert first.kld == pytest.approx(float((p * (p / q).log()).sum()), abs=TOLERANCE)
    overlap = float(torch.minimum(p, q).sum())
    assert first.acceptance == pytest.approx(overlap, abs=TOLERANCE)


def test_unusable_references_are_named(tmp_path):
    path = str(tmp_path / "one.safetensors")
    compare = Reference(path=path, keep=False)
    assert "are not there" in unusable(compare, (1, 2), 500)
    compared(path, rows(1, 2), rows(2, 2), (1, 2))
    assert unusable(compare, (1, 2), 500) is None
    assert unusable(Reference(path=path, keep=True), (9, 9), 4) is None
    assert "other tokens" in unusable(compare, (1, 3), 500)
    assert "500 columns, the vocabulary here has 512" in unusable(compare, (1, 2), 512)
    save_file(load_file(path), path, {"tokens": "1,2", "columns": "500"})
    assert "is damaged, or of an older version" in unusable(compare, (1, 2), 500)
    (tmp_path / "one.safetensors").write_bytes(b"half")
    assert "are not there" in unusable(compare, (1, 2), 500)
