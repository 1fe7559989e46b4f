"""When the two sides of `bench fidelity` have computed the same."""

import pytest

from benchmarks.serving.fidelity import TOLERANCE, agree


def side(**texts):
    return {"kld": texts}


@pytest.mark.parametrize(
    ("ours", "theirs", "holds"),
    [
        (side(a=[0.1, 0.2], b=[0.3]), side(a=[0.1, 0.2 + TOLERANCE / 2], b=[0.3]), True),
        (side(a=[0.1, 0.2]), side(a=[0.1, 0.2 + 2 * TOLERANCE]), False),
        (side(a=[0.1, 0.2]), side(a=[0.1]), False),
        (side(a=[0.1]), side(a=[0.1], b=[0.2]), False),
    ],
)
def test_every_position_of_every_text_must_agree(ours, theirs, holds):
    assert agree(ours, theirs).holds is holds
