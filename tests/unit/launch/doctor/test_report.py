"""A report with scripted engines: sound ones pass everything, each wrong one fails
what it should. And the command."""

import dataclasses
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from evaluator.core.errors import EngineError, InputError
from evaluator.engine.base import Generate, LoadReport, Request, Response, Score
from evaluator.engine.tolerances import NATS
from launch.commands.cli import app
from launch.doctor import machine
from launch.doctor import report as doctor_report
from launch.doctor.report import Report, run_checks
from launch.doctor.runs import Inputs
from launch.documents import line_of
from tests.support.doctor import CPU, GPU, ScriptedEngine, scripted
from tests.support.runs import resurface
from tests.support.schemas import valid

ON_A_GPU = (
    "CUDA graphs",
    "swap, eager",
    "swap back, eager",
    "samples, deterministic",
    "masks, GPU",
    "solver, GPU",
)
SKIPPED_ON_A_CPU = dict.fromkeys(ON_A_GPU, "needs a GPU") | {
    "tensor parallel": "needs 2 GPUs"
}
TWO_GPUS = dataclasses.replace(GPU, gpus=2 * GPU.gpus)


@pytest.fixture
def examined(monkeypatch, tmp_path):
    def run(machine=CPU, so_far=lambda report: None, visible=8, **bent) -> Report:
        inputs = Inputs(
            dense=tmp_path / "dense", scratch=tmp_path, logs=tmp_path, dtype="auto"
        )
        monkeypatch.setattr(
            doctor_report, "run_apart", scripted(monkeypatch, bent, visible)
        )
        for _, result, report in run_checks(machine, inputs):
            if result is not None:
                so_far(report)
        return report

    return run


def failed(report: Report) -> set[str]:
    return {result.check.name for result in report.failed}


def off_by_a_tenth(request: Request, answer: Response) -> Response:
    if not isinstance(request, Score):
        return answer
    return replace(answer, logprobs=tuple(value - 0.1 for value in answer.logprobs))


def counting_ties(request: Request, answer: Response) -> Response:
    return replace(answer, ranks=tuple(rank + 1 for rank in answer.ranks))


def not_passed(report: Report) -> dict[str, str]:
    return {
        result.check.name: result.why
        for result in report.checks
        if result.status != "pass"
    }


def test_sound_engines_pass(examined):
    report = examined()
    assert not report.failed
    assert not_passed(report) == SKIPPED_ON_A_CPU
    assert doctor_report.verdict(report) == "all 12 checks passed, 7 skipped"
    assert report.dtype == "float32"


@pytest.mark.parametrize(
    ("logits", "computed"), [("bfloat16", "half"), ("float32", "half, float32 logits")]
)
def test_tolerances_follow_logits(examined, monkeypatch, logits, computed):
    loaded = ScriptedEngine.load

    def load(self: ScriptedEngine, checkpoint: Path) -> LoadReport:
        setup = {"logits": logits}
        return dataclasses.replace(loaded(self, checkpoint), setup=setup)

    monkeypatch.setattr(ScriptedEngine, "dtype", "bfloat16")
    monkeypatch.setattr(ScriptedEngine, "load", load)
    report = examined(TWO_GPUS)
    assert not_passed(report) == {}  # on GPUs nothing is skipped
    assert report.checks[0].tolerance == NATS[computed]


def test_missing_kernels_skip_checks(examined):
    report = examined(
        TWO_GPUS, deterministic=InputError("engine: deterministic: no such mode")
    )
    assert not report.failed
    assert not_passed(report) == {
        "samples, deterministic": "engine: deterministic: no such mode"
    }


@pytest.mark.parametrize(
    ("machine", "visible", "skipped"),
    [
        # nvidia-smi lists all GPUs, whatever CUDA_VISIBLE_DEVICES says; a container may
        # have none of it.
        (TWO_GPUS, 1, {"tensor parallel"}),
        (TWO_GPUS, 0, set(SKIPPED_ON_A_CPU)),
        (dataclasses.replace(GPU, gpus=()), 1, {"tensor parallel"}),
    ],
)
def test_visible_gpus_count(examined, machine, visible, skipped):
    report = examined(machine, visible=visible)
    assert not report.failed
    assert set(not_passed(report)) == skipped


DIED = EngineError(
    "after loading, x in the engine is not that of the files (worker 1 of 2)"
)


@pytest.mark.parametrize(
    ("machine", "name", "bent", "wrong"),
    [
        # Against prompt log-probabilities and transformers; the engine agrees with
        # itself.
        (
            CPU,
            "served",
            off_by_a_tenth,
            {"scores", "scores, oracle", "swap", "swap, oracle"},
        ),
        (CPU, "by_prompt", off_by_a_tenth, {"scores", "swap"}),
        (CPU, "served", counting_ties, {"ranks", "ranks, ties"}),
        (CPU, "by_prompt", counting_ties, {"ranks, ties"}),
        (TWO_GPUS, "divided", off_by_a_tenth, {"tensor parallel"}),
        (CPU, "by_prompt", DIED, {"scores", "ranks, ties", "swap"}),
    ],
)
def test_wrong_engine_fails_its_checks(examined, machine, name, bent, wrong):
    report = examined(machine, **{name: bent})
    assert failed(report) == wrong
    assert bent is not DIED or {result.why for result in report.failed} == {
        f"{name}: EngineError: {DIED}"
    }


@pytest.mark.parametrize(
    ("stages", "wrong"),
    [
        # dense, pruned, and dense again: it agrees with itself
        ({1, 2, 3}, {"CUDA graphs", "swap, eager"}),
        ({2}, {"swap, eager"}),
        ({3}, {"swap back, eager"}),
    ],
)
def test_eager_engine_swaps_both_ways(examined, stages, wrong):
    asked: Counter[str] = Counter()

    def at_times_wrong(request: Request, answer: Response) -> Response:
        asked[request.request_id] += 1
        return (
            off_by_a_tenth(request, answer)
            if asked[request.request_id] in stages
            else answer
        )

    assert failed(examined(TWO_GPUS, eager=at_times_wrong)) == wrong
    assert {
        name: count for name, count in asked.items() if name.startswith("score-")
    } == {"score-0": 3, "score-1": 3}


def test_changing_samples_fail(examined):
    first: dict[str, Response] = {}

    def drawn_otherwise_later(request: Request, answer: Response) -> Response:
        drawn = isinstance(request, Generate) and request.temperature > 0
        if drawn and request.request_id in first:
            other = answer.token_ids[-1] + 1
            return replace(answer, token_ids=(*answer.token_ids[:-1], other))
        first[request.request_id] = answer
        return answer

    assert failed(examined(served=drawn_otherwise_later)) == {"samples"}


def test_missing_swap_fails(examined, monkeypatch):
    load = ScriptedEngine.load

    def load_first(self: ScriptedEngine, checkpoint: Path) -> LoadReport:
        return load(self, self.loaded[0] if self.loaded else checkpoint)

    monkeypatch.setattr(ScriptedEngine, "load", load_first)
    assert {"swap", "ranks, ties"} <= failed(examined())


def test_progress_follows_each_run(examined):
    """A report may be cut off."""
    told = []
    whole = examined(TWO_GPUS, so_far=told.append)
    assert [len(each.seconds) for each in told] == list(
        range(1, len(whole.seconds) + 1)
    )
    first = doctor_report.verdict(told[0])
    assert first.startswith("all 1 checks passed")
    assert first.endswith("; it goes on, or was cut off")
    early = {each.check.name: each.measured for each in told[0].checks}
    assert early["scores"] == "not reached when this was written"
    assert told[-1].checks == whole.checks
    assert (told[-1].ended, whole.ended) == (True, True)


def test_no_engine_is_tried_after_served(examined):
    report = examined(TWO_GPUS, served=EngineError("no kernel"))
    assert (report.ended, report.seconds.keys()) == (True, {"pruning"})
    assert {f.check.name for f in report.checks if f.status == "pass"} == {"masks"}
    assert failed(report) == {"samples", "two runs", "swap back"}
    assert {f.why for f in report.checks if f.status == "skipped"} == {
        "not tried: the run 'served' has no result"
    }
    assert report.dtype == ""
    assert "engine" not in doctor_report.document(report).machine


def test_card_repeats_table(examined):
    report = examined(served=off_by_a_tenth)
    lines = doctor_report.markdown(report).splitlines()
    assert lines[0] == "# doctor: 4 of 12 checks failed, 7 skipped"
    assert "| processor | a processor, 2 cores |" in lines
    assert (
        "| scores | fail | forced scores | prompt log-probabilities | 0.001 / 0.0002"
        " | 0.1 / 0.1 nats, of 6 |"
    ) in lines
    document = valid("doctor", line_of(doctor_report.document(report)))
    assert document["passed"] is False
    by_name = {row.pop("check"): row for row in document["checks"]}
    assert by_name["scores"] == {
        "status": "fail",
        "fast": "forced scores",
        "slow": "prompt log-probabilities",
        "tolerance": {"largest": 1e-3, "mean": 2e-4},
        "unit": "nats",
        "largest": pytest.approx(0.1),
        "mean": pytest.approx(0.1),
        "compared": 6,
        "why": "",
    }
    assert by_name["CUDA graphs"]["why"] == "needs a GPU"
    assert list(by_name) == [result.check.name for result in report.checks]


# ---- the command


@pytest.fixture
def doctor(monkeypatch):
    def run(*arguments, **bent):
        monkeypatch.setattr(machine, "this_machine", lambda: CPU)
        monkeypatch.setattr(doctor_report, "run_apart", scripted(monkeypatch, bent))
        return CliRunner().invoke(app, ["doctor", *map(str, arguments)])

    return run


def test_sound_machine_exits_zero(doctor, tmp_path):
    card = tmp_path / "cards" / "card.md"
    done = doctor("--out", card)
    assert done.exit_code == 0, done.output
    assert "all 12 checks passed, 7 skipped" in done.stdout
    assert card.read_text().startswith("# doctor: all 12 checks passed, 7 skipped\n")
    assert (tmp_path / "cards" / "card.logs").is_dir()
    assert f"logs: {tmp_path}" in done.output.replace("\n", "")


def test_failed_check_exits_one(doctor, tmp_path):
    done = doctor("--out", tmp_path / "card.md", served=off_by_a_tenth)
    assert done.exit_code == 1
    assert "checks failed" in done.stdout
    assert "| scores | fail |" in (tmp_path / "card.md").read_text()
    document = valid("doctor", doctor("--json").stdout)
    assert document["passed"] is True
    assert document["machine"]["processor"] == "a processor, 2 cores"


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("", "{}: --out: is a directory, not a file"),
        ("other.md", "{}/other.logs: --out: the logs need this folder (File"),
        ("file/card.md", "{0}/file/card.md: --out: {0}/file is a file, not a"),
        (f"{'c' * 244}.md", "{}/.ccc"),
    ],
)
def test_bad_out_exits_two(tmp_path, out, message):
    (tmp_path / "file").write_text("")
    (tmp_path / "other.logs").write_text("")
    done = resurface("doctor", "--out", tmp_path / out)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {message.format(tmp_path)}")


def test_unknown_dtype_exits_two():
    done = resurface("doctor", "--dtype", "float33")
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown --dtype 'float33'; did you mean")
