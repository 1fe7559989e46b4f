"""`resurface doctor`: exit codes, the card, JSON; on scripted engines."""

import json

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from launch.commands.cli import app
from launch.doctor import machine, report
from tests.support.doctor import CPU, scripted
from tests.support.runs import resurface


@pytest.fixture
def doctor(monkeypatch):
    def run(*arguments, run_apart=None, **bent):
        monkeypatch.setattr(machine, "this_machine", lambda: CPU)
        monkeypatch.setattr(report, "run_apart", run_apart or scripted(monkeypatch, bent))
        return CliRunner().invoke(app, ["doctor", *map(str, arguments)])

    return run


def off(request, answer):
    return replace(answer, logprobs=tuple(value - 0.1 for value in answer.logprobs))


def test_a_sound_machine_exits_0_and_a_card_is_written_with_the_witnesses_logs_beside_it(doctor, monkeypatch, tmp_path):
    folders = set()
    executes = scripted(monkeypatch, {})

    def run_apart(run, inputs):
        folders.add(inputs.logs)
        return executes(run, inputs)

    done = doctor("--out", tmp_path / "cards" / "card.md", run_apart=run_apart)
    assert done.exit_code == 0, done.output
    assert "all 12 checks passed, 7 skipped" in done.stdout
    assert (tmp_path / "cards" / "card.md").read_text().startswith("# doctor: all 12 checks passed, 7 skipped\n")
    assert folders == {tmp_path / "cards" / "card.logs"}
    assert (tmp_path / "cards" / "card.logs").is_dir()
    assert f"logs: {tmp_path}" in done.output.replace("\n", "")


def test_a_failed_check_exits_1_and_the_card_says_so(doctor, tmp_path):
    done = doctor("--out", tmp_path / "card.md", served=off)
    assert done.exit_code == 1
    assert "checks failed" in done.stdout
    assert "| scores | fail |" in (tmp_path / "card.md").read_text()


def test_json_is_all_of_stdout(doctor):
    document = json.loads(doctor("--json").stdout)
    assert document["passed"] is True
    assert document["machine"]["processor"] == "a processor, 2 cores"


def test_what_can_be_mended_exits_2_before_anything_starts(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    (tmp_path / "other.logs").write_text("")
    for arguments, message in (
        (("--out", tmp_path), f"error: {tmp_path}: --out: is a directory, not a file"),
        (("--out", tmp_path / "other.md"), f"error: {tmp_path / 'other.logs'}: --out: the logs need this folder (File"),
        (("--out", file / "card.md"), f"error: {file / 'card.md'}: --out: {file} is a file, not a directory"),
        (("--dtype", "float33"), "error: unknown --dtype 'float33'; did you mean 'float32'?"),
    ):
        done = resurface("doctor", *arguments)
        assert done.returncode == 2
        assert done.stderr.startswith(message)
