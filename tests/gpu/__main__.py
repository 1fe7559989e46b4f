"""Each test of an engine in a process of its own: its memory is free again when its
process has ended. What starts no engine runs a file at a time, without starting CUDA
for every test.

python -m tests.gpu [what pytest should be given besides]
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
_PYTEST = (sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider")
_ENGINES = "test_engine"  # how the names of the files whose tests start engines begin


def collected(arguments: Sequence[str]) -> list[str]:
    """The ids of the tests. Raises CalledProcessError where they cannot be
    collected."""
    # Not all of `tests`: a machine with a GPU may lack what other tests import.
    # pyproject.toml gives -q, with which pytest prints ids; with another one it would
    # print how many a file has.
    command = [*_PYTEST, "--collect-only", *(arguments or [str(HERE)])]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [line for line in found.stdout.splitlines() if "::" in line]


def processes(tests: Sequence[str]) -> list[list[str]]:
    """The tests of each process, in the order of the files."""
    together: dict[str, list[str]] = {}
    for test in tests:
        file = test.partition("::")[0]
        together.setdefault(
            test if Path(file).name.startswith(_ENGINES) else file, []
        ).append(test)
    return list(together.values())


def main(arguments: Sequence[str]) -> int:
    """0 if all pass or are skipped, 1 if one fails or none is found."""
    import torch

    if not torch.cuda.is_available():
        print("no GPU: nothing is tested")
        return 0
    groups = processes(collected(arguments))
    if not groups:
        print("no test is found")
        return 1
    failed = [
        group
        for group in groups
        if subprocess.run([*_PYTEST, *group], check=False).returncode
    ]
    names = [
        group[0] if len(group) == 1 else f"some of {group[0].partition('::')[0]}"
        for group in failed
    ]
    print(
        f"{len(groups) - len(failed)} of {len(groups)} processes passed",
        *names,
        sep="\n",
        flush=True,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
