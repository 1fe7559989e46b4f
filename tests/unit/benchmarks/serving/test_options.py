"""What is wrong with a benchmark's options is an InputError of one line."""

import pytest

from benchmarks.serving import workload
from evaluator.core.errors import InputError


def parse(*arguments):
    return workload.parser("About.", task="gazetteer", items=3, rounds=2).parse_args(arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["--rounds", "many"], "argument --rounds: 'many' is not a count of at least 1"),
        (["--rounds", "0"], "argument --rounds: '0' is not a count"),
        (["--items"], "argument --items: expected one argument"),
        (["--llm-args", "{"], "argument --llm-args: '{' is not JSON"),
        (["--engine-args", "[]"], "argument --engine-args: '\\[\\]' is not a JSON object"),
    ],
)
def test_a_bad_option(arguments, said, capsys):
    with pytest.raises(InputError, match=said) as caught:
        parse(*arguments)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr() == ("", "")  # no usage


@pytest.mark.parametrize("lengths", ["", "short", "300,", "0", "300,-1"])
def test_bad_lengths_of_random_contexts(lengths):
    with (
        pytest.raises(InputError, match=f"--task random:{lengths}: must be lengths in tokens"),
        workload.written(parse("--task", f"random:{lengths}")),
    ):
        pass


def test_good_options():
    options = parse("--rounds", "4", "--llm-args", '{"seed": 1}', "--task", "random:5,6")
    assert (options.rounds, options.items, options.llm_args) == (4, 3, {"seed": 1})
    with workload.written(options) as path:
        assert path.stat().st_size > 0
