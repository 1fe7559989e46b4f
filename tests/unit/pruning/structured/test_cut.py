"""How many parts go, and how lists of them are written."""

import pytest

from pruning.methods.patterns import Share, read_numbers, written
from pruning.structured.cut import _step


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0", (0,)),
        ("28,20-22", (20, 21, 22, 28)),
        ("3-3,4", (3, 4)),
        ("1,2-99999", tuple(range(1, 100_000))),  # each beside each would take minutes
    ],
)
def test_a_list_of_layers_is_read_in_any_order(text, numbers):
    assert read_numbers(text) == numbers
    assert read_numbers(written(numbers)) == numbers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,,2", "is no list of layers"),
        ("-1", "is no list of layers"),
        ("5-3", "5-3 ends before it begins"),
        ("1-3,2", "names 2 twice"),
    ],
)
def test_another_text_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        read_numbers(text)


def test_a_share_is_rounded_down_to_whole_steps():
    assert Share("layers", 0.25).count(30) == 7
    assert Share("layers", 0.29).count(100) == 29  # 28.999999999999996 in floating point
    assert Share("channels", 0.25).count(4864, 128) == 1152  # of 1216
    assert Share("heads", 0.25).count(3) == 0
    assert Share("layers", 1 - 1e-12).count(4) == 3  # a model without layers is none


@pytest.mark.parametrize(("channels", "step"), [(96, 2), (97, 1), (448, 8), (4864, 128), (8960, 128), (11008, 128)])
def test_channels_go_in_steps_of_at_most_a_32nd(channels, step):
    assert _step(channels) == step
