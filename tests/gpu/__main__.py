"""Each test that is marked `gpu` in a process of its own: an engine's memory is free again when its process has ended.

python -m tests.gpu [what pytest should be given besides]
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

_PYTEST = (sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider")


def collected(arguments: Sequence[str]) -> list[str]:
    """The ids of the tests. Raises CalledProcessError where they cannot be collected."""
    command = [*_PYTEST, "--collect-only", "-q", *(arguments or ["tests"])]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [line for line in found.stdout.splitlines() if "::" in line]


def main(arguments: Sequence[str]) -> int:
    """0 if all pass or are skipped."""
    import torch

    if not torch.cuda.is_available():
        print("no GPU: nothing is tested")
        return 0
    tests = collected(arguments)
    failed = [test for test in tests if subprocess.run([*_PYTEST, test], check=False).returncode]
    print(f"{len(tests) - len(failed)} of {len(tests)} tests passed, each alone", *failed, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
