"""Output never ends a command: an exit code tells of its work, whatever a terminal,
a pipe or a disk can take."""

import subprocess
from pathlib import Path

import pytest

from tests.support.runs import command, environment
from tests.support.synthetic import write_run

# names of files are ASCII here too
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
FULL = "error: the output is incomplete: [Errno 28] No space left on device\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A blocked checkpoint; the name of its folder has characters of several
    scripts."""
    return write_run(
        tmp_path_factory.mktemp("run"),
        80,
        ("dense", "wanda-0.7-ключ-钥匙-é"),
        languages=("swahili",),
    )


def ended(
    run: Path, typed: str, to: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """`resurface TYPED`, with RUN as the run directory, in a shell that sends its
    output somewhere."""
    words = " ".join(command(*typed.replace("RUN", str(run)).split()))
    script = f"set -o pipefail; {words} {to}"
    return subprocess.run(
        ["bash", "-c", script],
        env=environment() | variables,
        capture_output=True,
        encoding="latin-1",
        check=False,
    )


@pytest.mark.more
@pytest.mark.parametrize(
    ("typed", "code", "shown"),
    [("gate RUN", 4, "wanda-0.7-????-??-?"), ("status RUN-钥", 2, "error: ")],
)
def test_characters_that_a_terminal_lacks(run, typed, code, shown) -> None:
    done = ended(run, typed, **ASCII)
    assert done.returncode == code, done.stderr
    assert "Error" not in done.stderr
    assert shown in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("typed", "to", "code", "told"),
    [
        ("status RUN --json", "<&- >&- 2>&-", 0, ""),
        ("status RUN --json", "| head -c 1", 0, ""),
        ("gate RUN", "> /dev/full", 4, FULL),
        ("status RUN --json", "> /dev/full", 1, FULL),
        ("gate RUN-none", "> /dev/full", 2, "error: "),
    ],
)
def test_output_that_nobody_takes(run, typed, to, code, told) -> None:
    """A full device is a failure; a reader who has seen enough is none. The gate's 4
    stays."""
    done = ended(run, typed, to)
    assert done.returncode == code
    if code == 2:
        assert done.stderr.startswith(told)
        assert done.stderr.count("\n") == 1
    else:
        assert done.stderr == told


def test_a_watch_ends_with_its_reader(run) -> None:
    lasting = run / "lasting"
    lasting.mkdir()
    (lasting / "run.json").write_text(
        (run / "run.json").read_text().replace("{", '{"state": "running", ', 1)
    )
    assert ended(lasting, "status RUN --watch --json", "| head -c 1").returncode == 0
