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
    ("typed", "code"),
    [("gate RUN", 4), ("status RUN", 0), ("compare RUN RUN", 0), ("status RUN-钥", 2)],
)
@pytest.mark.parametrize(
    "variables", [ASCII, {"PYTHONIOENCODING": "latin-1"}], ids=["C", "latin-1"]
)
def test_characters_that_a_terminal_lacks(run, typed, code, variables) -> None:
    done = ended(run, typed, **variables)
    assert done.returncode == code, done.stderr
    assert "Error" not in done.stderr
    shown = done.stdout + done.stderr
    if code != 2 and typed != "compare RUN RUN":
        last = "é" if variables.get("PYTHONIOENCODING") == "latin-1" else "?"
        assert f"wanda-0.7-????-??-{last}" in shown


@pytest.mark.parametrize(
    ("to", "codes", "told"),
    [
        (">&-", (4, 0, 2), ""),
        ("<&- >&- 2>&-", (4, 0, 2), None),
        ("| head -c 1", (4, 0, 2), ""),
        ("> /dev/full", (4, 1, 2), FULL),
    ],
)
def test_output_that_nobody_takes(run, to, codes, told) -> None:
    """A full device is a failure; a reader who has seen enough is none. The gate's 4
    stays."""
    typed = ("gate RUN", "status RUN --json", "gate RUN-none")
    done = [ended(run, each, to) for each in typed]
    assert tuple(each.returncode for each in done) == codes
    assert [each.stderr for each in done if "Traceback" in each.stderr] == []
    if told is not None:
        assert [each.stderr for each in done[:2]] == [told] * 2
        assert done[2].stderr.startswith("error: ")
        assert done[2].stderr.count("\n") == 1


def test_a_watch_ends_with_its_reader(run) -> None:
    lasting = run / "lasting"
    lasting.mkdir()
    (lasting / "run.json").write_text(
        (run / "run.json").read_text().replace("{", '{"state": "running", ', 1)
    )
    assert ended(lasting, "status RUN --watch --json", "| head -c 1").returncode == 0
