"""Files for Slurm, sound whatever paths hold; and the documented ones for KubeRay."""

import lzma
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from evaluator.core.config import validated
from launch.cluster.rendering import ClusterSettings, _seconds, render
from launch.commands.options import as_option
from tests.support.sweeps import refused

SHARED = Path('/shared/my runs/it\'s $(touch owned); "x" `id`')  # the worst directory
PARTS = (("small", "small-int8"), ("large",))
ROOT = Path(__file__).parents[4]
KUBERAYS_OWN = Path(__file__).parent / "kuberay" / "ray.io_rayjobs.yaml.xz"


@pytest.fixture(scope="module")
def rayjob() -> Any:
    """KubeRay's definition of a RayJob, which refuses fields that it does not know,
    as `kubectl --validate=strict`."""
    (kind,) = yaml.load_all(
        lzma.decompress(KUBERAYS_OWN.read_bytes()), yaml.CSafeLoader
    )
    (schema,) = [
        each["schema"] for each in kind["spec"]["versions"] if each["name"] == "v1"
    ]
    strict = closed(schema["openAPIV3Schema"])
    strict["properties"]["metadata"] = {
        "required": ["name"],
        "properties": {"name": {"maxLength": 47}},
    }
    return jsonschema.Draft4Validator(strict)


def closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(each) for name, each in schema.items()}
    if (
        found.get("type") == "object"
        and "properties" in found
        and "x-kubernetes-preserve-unknown-fields" not in found
    ):
        found.setdefault("additionalProperties", False)
    return found


def settings(**given: Any) -> ClusterSettings:
    usual = {"out": Path("/shared/runs/grid"), "sweep": "/shared/sweep.yaml"}
    return validated(ClusterSettings, usual | given, "resurface render", as_option)


def files(**given: Any) -> dict[str, str]:
    return render(settings(**given), PARTS)


# $ in single quotes is for another shell or nobody; a comma joins the models of one
# part; `setup` may name any file.
INTENDED = "--exclude=SC2016,SC2054,SC1091"


def sound_bash(text: str) -> None:
    # the package's, of this environment
    shellcheck = str(Path(sys.executable).parent / "shellcheck")
    # a script says so itself: whoever checks it hears nothing
    excluded = [] if text.startswith("#!") else [INTENDED]
    for command in (["bash", "-n"], [shellcheck, "--shell=bash", *excluded, "-"]):
        done = subprocess.run(
            command, input=text, text=True, capture_output=True, check=False
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert "{{" not in text.replace("${{", "")
    assert "{%" not in text


# ---- Slurm


SHIMS = {
    "scontrol": (
        'if [ "$1" = show ]; then printf "%s\\n" node-1 node-2; else log scontrol'
        ' "$@"; fi'
    ),
    # Here, in place of on the nodes.
    "srun": (
        'while [[ $1 == --* ]]; do shift; done; "$@"; code=$?; /bin/sleep'
        ' "${LOST_NODE-0}"; log ended; exit $code'
    ),
    "ray": (
        'log ray "$@"; case "$*" in "job stop"*) kill "$PPID" ;; esac; while [ $# -gt 0'
        ' ] && [ "$1" != -- ]; do shift; done; [ $# -eq 0 ] || { shift; exec "$@"; }'
    ),
    "resurface": 'log resurface "$@"; log RAY_ADDRESS "${RAY_ADDRESS-none}"; '
    # As a sweep does that TERM reaches while it works; the signal is the batch
    # script's.
    '[ -z "${SIGNAL-}" ] || { trap "log told; exit ${CODE-143}" TERM; kill -s "$SIGNAL"'
    ' "$BATCH"; for _ in {1..600}; do /bin/sleep 0.1; done; }; exit "${CODE-0}"',
    # nodes that are alive: those that have begun
    "python": 'grep -c "^ray" {log} || true',
    "sleep": "exec /bin/sleep 0.1",
}


@pytest.fixture
def submitted(tmp_path: Path):
    """Run a batch script with everything that it calls replaced by what writes down
    its arguments."""
    log, bin = tmp_path / "log", tmp_path / "bin"
    bin.mkdir()
    for name, body in SHIMS.items():
        written = (
            'log() { { printf "%s" "$1"; shift; printf "\\t%s" "$@"; echo; } >>'
            f" {log}; }}"
        )
        (bin / name).write_text(
            f"#!/bin/bash\n{written}\n{body.replace('{log}', str(log))}\n"
        )
        (bin / name).chmod(0o755)

    def run(text: str, **variables: str) -> tuple[int, list[list[str]]]:
        log.unlink(missing_ok=True)
        given = {
            "SLURM_JOB_ID": "4711",
            "SLURM_NNODES": "2",
            "SLURM_JOB_NODELIST": "node-[1-2]",
            **variables,
        }
        environment = {
            "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(tmp_path),
            **given,
        }
        text = text.replace("set -euo", "export BATCH=$$; set -euo", 1)
        done = subprocess.run(
            ["bash"], input=text, text=True, env=environment, cwd=tmp_path, check=False
        )
        assert not (tmp_path / "owned").exists()
        lines = log.read_text().splitlines() if log.exists() else []
        return done.returncode, [line.split("\t") for line in lines]

    return run


@pytest.mark.parametrize("code", [0, 3])
def test_slurm_runs_sweep_once(submitted, code):
    text = files(out=SHARED, sweep=f"{SHARED}/s.yaml", nodes=2, gpus=8, cpus=64)[
        "sweep.sbatch"
    ]
    assert "#SBATCH --mem=0\n" in text  # --exclusive alone gives the site's default
    assert "--wait=0 --kill-on-bad-exit=0" in text
    # a job whose first node is gone would stay until its time is over
    assert "--no-kill" not in text
    sound_bash(text)
    returned, calls = submitted(text, CODE=str(code))
    assert returned == code
    asked = [call[1:] for call in calls if call[0] == "resurface"]
    assert asked == [["sweep", f"{SHARED}/s.yaml", "--out", str(SHARED)]]
    # A port of Ray's worker processes (10002 to 19999) Ray does not take for its first
    # node, unless they have others.
    address = "node-1:24711"
    assert ["RAY_ADDRESS", address] in calls
    started = [call[1:] for call in calls if call[0] == "ray"]
    assert all("--num-gpus=8" in call and "--num-cpus=64" in call for call in started)
    begin = f"symmetric-run --address {address} --min-nodes 2"
    assert " ".join(started[0]).startswith(begin)


def test_sweeps_end_ends_job(submitted):
    text = files(nodes=2)["sweep.sbatch"]
    returned, calls = submitted(text, CODE="3", LOST_NODE="60")
    assert returned == 3
    assert "ended" not in [call[0] for call in calls]
    # where Ray does not start
    assert submitted(text.replace("ray symmetric-run", "false"))[0] == 1


@pytest.mark.parametrize("mode", ["symmetric", "array"])
@pytest.mark.parametrize(
    ("signal", "code", "again"),
    [
        *(("USR1", code, True) for code in (1, 143)),
        *(("USR1", code, False) for code in (0, 2, 3, 4)),
        ("TERM", 143, False),
        ("", 1, False),
    ],
)
def test_job_requeues_after_time_limit(submitted, mode, signal, code, again):
    """The limit's signal goes to the script alone; the sweep ends in order, and what
    it ends with decides."""
    text = files(mode=mode, nodes=1 if mode == "array" else 2, time="1:00:00")[
        "sweep.sbatch"
    ]
    assert {"#SBATCH --requeue", "#SBATCH --open-mode=append"} < set(text.splitlines())
    assert "#SBATCH --signal=B:USR1@120\n" in text
    task = (
        {"SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "1"}
        if mode == "array"
        else {}
    )
    returned, calls = submitted(text, SIGNAL=signal, CODE=str(code), **task)
    assert returned == code
    assert ["told"] * bool(signal) == [call[0] for call in calls if call[0] == "told"]
    requeued = ["scontrol", "requeue", "4700_1" if mode == "array" else "4711"]
    assert [call for call in calls if call[0] == "scontrol"] == [requeued] * again


@pytest.mark.parametrize("mode", ["symmetric", "start", "array"])
def test_job_that_begins_again_takes_over(submitted, mode) -> None:
    """A lost node may still run its driver. Another job's driver is left alone."""
    nodes = 1 if mode == "array" else 2
    text = files(mode=mode, nodes=nodes)["sweep.sbatch"]
    for given, last in (({}, 0), ({"SLURM_RESTART_COUNT": "1"}, 1)):
        returned, calls = submitted(text, SLURM_ARRAY_TASK_ID="0", **given)
        (asked,) = [call for call in calls if call[0] == "resurface"]
        assert (returned, asked.count("--take-over")) == (0, last)


def test_array_has_job_per_part(submitted, tmp_path):
    out = tmp_path / "a run; it's"
    made = files(mode="array", out=out, setup="export READY=1")
    for text in made.values():
        sound_bash(text)
    assert "#SBATCH --array=0-1" in made["sweep.sbatch"]
    for number, (models, name) in enumerate(
        (("small,small-int8", "small"), ("large", "large"))
    ):
        part = f"{out}.parts/{name}"
        returned, calls = submitted(
            made["sweep.sbatch"],
            SLURM_ARRAY_TASK_ID=str(number),
            RAY_ADDRESS="elsewhere",
        )
        asked = [
            "resurface",
            "sweep",
            "/shared/sweep.yaml",
            "--only",
            models,
            "--out",
            part,
        ]
        assert (returned, calls) == (0, [asked, ["RAY_ADDRESS", "none"]])
        for folder, file in (
            ("records", f"{name}/task/0.parquet"),
            ("items", "task.parquet"),
        ):
            path = Path(part) / folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
    returned, calls = submitted(made["join.sbatch"])
    assert (returned, calls[0]) == (0, ["resurface", "report", str(out)])
    found = sorted(str(path.relative_to(out)) for path in out.rglob("*.parquet"))
    assert found == [
        "items/task.parquet",
        "records/large/task/0.parquet",
        "records/small/task/0.parquet",
    ]


def test_times_are_slurms():
    times = {"90": 5400, "1:30": 90, "1-2": 93600, "1-00:00:01": 86401}
    assert {time: _seconds(time) for time in times} == times


def test_documented_rayjob_fits_kuberays_own_definition(rayjob):
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    documents = [
        yaml.safe_load(text)
        for text in re.findall("```yaml\n(.*?)```", page, re.DOTALL)
    ]
    volume, job = (each for each in documents if "kind" in each)
    rayjob.validate(job)
    claims = re.findall(r"claimName: (\S+)", yaml.safe_dump(job))
    assert {*claims} == {volume["metadata"]["name"]}
    assert volume["spec"]["accessModes"] == ["ReadWriteMany"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "a\n#SBATCH --uid=0"}, "control character"),
        ({"account": "-x"}, '--account: "-x"'),
        ({"nodes": 0}, "--nodes: 0"),
        ({"memory": "64Gi"}, '--memory: "64Gi"'),
        ({"setup": 'echo "x'}, "a quote is not closed"),
        ({"mode": "arry"}, "did you mean 'array'?"),
        (
            {"mode": "array", "nodes": 2},
            "--nodes: 2: each job of an array has one node",
        ),
    ],
)
def test_impossible_rendering_is_one_line(given, said):
    assert said in refused(files, **given)
