"""The README's own commands, run as a reader would, on a tiny model in an empty directory."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from launch.commands import cli
from tests.support.models import save_tiny_model
from tests.support.runs import environment

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.split("#")[0].split()
    for line in README.splitlines()
    if re.match(r"resurface (prune|eval|report|sweep) ", line)
]
SWEEP = re.search(r"```yaml\n(# sweep\.yaml.*?)```", README, re.DOTALL)


def test_the_first_screen_shows_the_two_commands_and_the_result() -> None:
    first_screen = README[: README.index("## ")]
    assert "make demo" in first_screen
    assert "make test" in first_screen
    assert "![" in first_screen
    picture = re.search(r"!\[.*?\]\((.*?)\)", first_screen)
    assert picture is not None
    assert (Path(__file__).resolve().parents[2] / picture[1]).is_file()
    assert not re.search(r"\b[A-Z]+_(TABLE|TEXT)\b", README)


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", README)
    assert targets
    assert [t for t in targets if not (Path(__file__).resolve().parents[2] / t).exists()] == []


@pytest.mark.parametrize("name", ["demo", "prune", "eval", "sweep", "report", "doctor", "bench"])
def test_every_subcommand_of_the_readme_has_help_with_an_example(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["resurface", name, "--help"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert "Example:" in capsys.readouterr().out


@pytest.mark.slow
def test_the_commands_run(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "models" / "mine", "qwen3")
    lines = [
        {
            "id": f"q{number}",
            "language": "english",
            "context": f"The town of Karo{number} was founded in {1700 + number}.",
            "question": f"When was Karo{number} founded?",
            "answers": [str(1700 + number)],
        }
        for number in range(4)
    ]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    (tmp_path / "calibration.txt").write_text(
        "\n".join(f"Line {n} of plain text." for n in range(40)), encoding="utf-8"
    )
    assert SWEEP is not None
    (tmp_path / "sweep.yaml").write_text(SWEEP[1], encoding="utf-8")
    assert yaml.safe_load(SWEEP[1])["models"] == {"dense": "models/mine"}
    assert [command[1] for command in COMMANDS] == ["prune", "eval", "report", "sweep", "sweep"]
    for command in COMMANDS:
        done = subprocess.run(
            [sys.executable, "-m", "launch.commands.cli", *command[1:]],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
    assert (tmp_path / "pruned" / "wanda-0.5" / "prune_manifest.json").is_file()
    for run in ("mine", "grid"):
        assert (tmp_path / "runs" / run / "report" / "index.html").is_file()
