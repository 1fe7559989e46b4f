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
    """Two blocked checkpoints; the names of their folders have characters of several
    scripts."""
    return write_run(
        tmp_path_factory.mktemp("run"),
        30,
        ("dense", "magnitude-0.6", "wanda-0.7-ключ-钥匙-é"),
        languages=("english", "korean"),
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


@pytest.mark.parametrize(
    ("typed", "code", "variables", "last"),
    [
        ("gate RUN", 4, ASCII, "?"),
        ("gate RUN", 4, {"PYTHONIOENCODING": "latin-1"}, "é"),
        ("compare RUN RUN", 0, ASCII, None),
        ("status RUN-钥", 2, ASCII, None),
    ],
)
def test_characters_that_a_terminal_lacks(run, typed, code, variables, last) -> None:
    done = ended(run, typed, **variables)
    assert done.returncode == code, done.stderr
    assert "Error" not in done.stderr
    if last is not None:
        assert f"wanda-0.7-????-??-{last}" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("typed", "to", "code", "told"),
    [
        ("gate RUN", ">&-", 4, ""),
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
