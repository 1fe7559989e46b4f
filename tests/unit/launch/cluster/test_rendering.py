"""Files for Slurm, KubeRay, Ray's jobs and `ray up`: sound where they can be checked
here, whatever paths hold."""

import importlib.util
import json
import lzma
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from evaluator.core.isolated import environment
from launch.cluster.rendering import ClusterSettings, _seconds, render
from tests.support.sweeps import refused

SHARED = Path('/shared/my runs/it\'s $(touch owned); "x" `id`')  # the worst directory
PARTS = (("small", "small-int8"), ("large",))
# not kept below /shared
PLACES = ("/tmp/x", "/shared/../x", "/sharedx/x", "/shared", "runs/x")
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
    return ClusterSettings(
        **{"out": Path("/shared/runs/grid"), "sweep": "/shared/sweep.yaml", **given}
    )


def files(format: str, **given: Any) -> dict[str, str]:
    return render(format, settings(**given), PARTS)


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
@pytest.mark.parametrize("mode", ["symmetric"])
def test_slurm_runs_sweep_once(submitted, mode, code):
    text = files(
        "slurm",
        mode=mode,
        out=SHARED,
        sweep=f"{SHARED}/s.yaml",
        nodes=2,
        gpus=8,
        cpus=64,
    )["sweep.sbatch"]
    sound_bash(text)
    returned, calls = submitted(text, CODE=str(code))
    assert returned == code
    asked = [call[1:] for call in calls if call[0] == "resurface"]
    assert asked == [["sweep", f"{SHARED}/s.yaml", "--out", str(SHARED)]]
    # A port of Ray's worker processes (10002 to 19999) Ray does not take for its first
    # node, unless they have others.
    address = {"symmetric": "node-1:24711", "start": "node-1:13110"}[mode]
    assert ["RAY_ADDRESS", address] in calls
    started = [call[1:] for call in calls if call[0] == "ray"]
    assert all("--num-gpus=8" in call and "--num-cpus=64" in call for call in started)
    if mode == "symmetric":
        assert started[0][:5] == [
            "symmetric-run",
            "--address",
            address,
            "--min-nodes",
            "2",
        ]
    else:
        assert sorted("--head" in call for call in started) == [False, True]


def test_lost_node_ends_no_other():
    """`--exclusive` alone gives a job every core, and no more memory than the site's
    default."""
    assert "#SBATCH --mem=0\n" in files("slurm")["sweep.sbatch"]
    asked = files("slurm", memory="900G")["sweep.sbatch"]
    assert [line for line in asked.splitlines() if "--mem=" in line] == [
        "#SBATCH --mem=900G"
    ]
    assert "--mem=" not in files("slurm", mode="start")["sweep.sbatch"]
    assert "--signal=B:USR1@15\n" in files("slurm", time="1")["sweep.sbatch"]
    for none in (None, "0"):
        assert "--signal=B:USR1@120\n" in files("slurm", time=none)["sweep.sbatch"]
    # With `--no-kill` a job whose first node is gone would stay, with nobody at work,
    # until its time is over.
    for mode in ("symmetric", "start"):
        text = files("slurm", mode=mode, nodes=2)["sweep.sbatch"]
        assert "--wait=0 --kill-on-bad-exit=0" in text
        assert "#SBATCH --requeue\n" in text
        assert "--no-kill" not in text


def test_sweeps_end_ends_job(submitted):
    text = files("slurm", nodes=2)["sweep.sbatch"]
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
    text = files("slurm", mode=mode, nodes=1 if mode == "array" else 2, time="1:00:00")[
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


def test_array_has_job_per_part(submitted, tmp_path):
    out = tmp_path / "a run; it's"
    made = files("slurm", mode="array", out=out, setup="export READY=1")
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


# ---- KubeRay

KUBERAY = {"image": "registry/resurface:1", "claim": "models", "ray_version": "2.60.0"}


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_rayjob_fits_kuberays_own_definition(rayjob, nodes):
    made = files(
        "kuberay",
        **KUBERAY,
        nodes=nodes,
        gpus=8,
        cpus=64,
        memory="512Gi",
        time="1-02:00:00",
        queue="night",
    )
    document = yaml.safe_load(made["rayjob.yaml"])
    rayjob.validate(document)
    assert (document["apiVersion"], document["kind"]) == ("ray.io/v1", "RayJob")
    spec = document["spec"]
    command = "resurface sweep /shared/sweep.yaml --out /shared/runs/grid"
    assert (
        spec["entrypoint"] == f"python -m launch.cluster.job {spec['jobId']} {command}"
    )
    assert spec["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"], spec["suspend"]) == (
        2,
        26 * 3600,
        True,
    )
    workers = spec["rayClusterSpec"].get("workerGroupSpecs", [])
    assert [group["replicas"] for group in workers] == ([2] if nodes == 3 else [])
    for group in (spec["rayClusterSpec"]["headGroupSpec"], *workers):
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == {
            "cpu": "64",
            "memory": "512Gi",
            "nvidia.com/gpu": 8,
        }
        assert {mount["mountPath"] for mount in container["volumeMounts"]} == {
            "/shared",
            "/dev/shm",
        }


def test_pods_have_what_was_asked_for(rayjob):
    asked = {
        "node_selector": ("example.com/gpu=h100", "zone=a"),
        "tolerations": ("spot=yes:NoExecute", "shared"),
    }
    made = files(
        "kuberay",
        **KUBERAY,
        **asked,
        nodes=2,
        gpus=1,
        secrets=("hf", "wandb"),
        shm="64Gi",
    )
    document = yaml.safe_load(made["rayjob.yaml"])
    rayjob.validate(document)
    cluster = document["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        assert pod["nodeSelector"] == {"example.com/gpu": "h100", "zone": "a"}
        assert pod["tolerations"] == [
            {"key": "spot", "operator": "Equal", "value": "yes", "effect": "NoExecute"},
            {"key": "shared", "operator": "Exists"},
            {"key": "nvidia.com/gpu", "operator": "Exists"},
        ]
        assert pod["containers"][0]["envFrom"] == [
            {"secretRef": {"name": name}} for name in ("hf", "wandb")
        ]
        assert pod["volumes"][1]["emptyDir"] == {
            "medium": "Memory",
            "sizeLimit": "64Gi",
        }


@pytest.mark.parametrize("code", [0, 1, 4, 143])
def test_hopeless_job_stops_itself(submitted, code):
    """KubeRay tries a job again that failed, but none that Ray calls stopped: here,
    Ray ends it at once."""
    entrypoint = yaml.safe_load(files("kuberay", **KUBERAY)["rayjob.yaml"])["spec"][
        "entrypoint"
    ]
    program = (
        f"PYTHONPATH={environment()['PYTHONPATH']} exec"
        f" {entrypoint.replace('python', sys.executable, 1)}"
    )
    returned, calls = submitted(program, CODE=str(code))
    assert calls[0] == [
        "resurface",
        "sweep",
        "/shared/sweep.yaml",
        "--out",
        "/shared/runs/grid",
    ]
    stops = [call for call in calls if call[0] == "ray"]
    if code in (2, 3, 4):
        assert returned == -signal.SIGTERM
        assert stops == [
            [
                "ray",
                "job",
                "stop",
                "--no-wait",
                "--address",
                "http://127.0.0.1:8265",
                "resurface",
            ]
        ]
    else:
        assert (returned, stops) == (code, [])


def test_times_are_slurms(rayjob):
    times = {
        "90": 5400,
        "1:30": 90,
        "02:00:00": 7200,
        "1-2": 93600,
        "1-02:30": 95400,
        "1-00:00:01": 86401,
    }
    assert {time: _seconds(time) for time in times} == times
    for none in ("0", "00:00:00"):  # KubeRay refuses a deadline of 0 seconds
        document = yaml.safe_load(files("kuberay", **KUBERAY, time=none)["rayjob.yaml"])
        rayjob.validate(document)
        assert "activeDeadlineSeconds" not in document["spec"]


# ---- Ray's own


def test_job_id_names_run_and_try(submitted):
    text = files("job", address="http://head:8265")["submit.sh"]
    sound_bash(text)
    (call,) = [call for call in submitted(text)[1] if call[0] == "ray"]
    id = call[call.index("--submission-id") + 1]
    assert re.fullmatch("resurface-grid-.+-1", id)
    assert call[1:4] == ["job", "submit", "--address"]
    assert call[call.index("--") + 1 :] == [
        "resurface",
        "sweep",
        "/shared/sweep.yaml",
        "--out",
        "/shared/runs/grid",
    ]
    other = files("job", address="http://head:8265", out=Path("/elsewhere/grid"))[
        "submit.sh"
    ]
    assert id[:-2] not in other


def test_cluster_file_fits_schema():
    nodes = {
        "head": "10.0.0.1",
        "workers": ("10.0.0.2", "node-3"),
        "user": "me",
        "gpus": 4,
        "cpus": 32,
    }
    made = files("up", **nodes, setup=". v/activate")
    ray = Path(next(iter(importlib.util.find_spec("ray").submodule_search_locations)))
    document = yaml.safe_load(made["cluster.yaml"])
    jsonschema.validate(
        document, json.loads((ray / "autoscaler" / "ray-schema.json").read_text())
    )
    assert document["max_workers"] == 2
    for command in (
        *document["head_start_ray_commands"],
        *document["worker_start_ray_commands"],
    ):
        sound_bash(command)
        assert command.startswith(
            ". v/activate && export RAY_AUTH_MODE=token && ray stop && ray start "
        )
    sound_bash(made["up.sh"])


@pytest.mark.parametrize(
    ("format", "given", "said"),
    [
        ("slurm", {"name": "a\n#SBATCH --uid=0"}, "control character"),
        ("slurm", {"account": "-x"}, "--account: '-x'"),
        ("slurm", {"nodes": 0}, "--nodes: 0"),
        ("slurm", {"setup": 'echo "x'}, "a quote is not closed"),
        ("slurm", {"mode": "arry"}, "did you mean 'array'?"),
        (
            "slurm",
            {"mode": "array", "nodes": 2},
            "--nodes: 2: each job of an array has one node",
        ),
        ("slurm", {"image": "x"}, "--image: 'x': not used by slurm"),
        ("kuberay", {"image": None}, "Missing option '--image'"),
        ("kuberay", {"namespace": "A_B"}, "--namespace: 'A_B'"),
        # KubeRay and Ray hand the command on, quoted for another shell
        ("kuberay", {"out": SHARED}, "--out"),
        ("kuberay", {"sweep": "/a b.yaml"}, "--sweep-path: '/a b.yaml'"),
        *(
            ("kuberay", {"out": Path(path)}, f"--out: '{path}': is not below")
            for path in PLACES
        ),
        *(
            (
                "kuberay",
                {"sweep": path},
                f"--sweep-path: '{path}': is not below --mount /shared",
            )
            for path in PLACES
        ),
        ("kuberay", {"tries": 0}, "--tries: 0"),
        (
            "kuberay",
            {"tolerations": ("gpu:Never",)},
            "--tolerations: 'gpu:Never': KEY[=VALUE][:EFFECT] is needed",
        ),
        (
            "kuberay",
            {"secrets": ("hf", "HF_TOKEN")},
            "--secrets: 'HF_TOKEN': is no name of a Kubernetes secret",
        ),
        (
            "kuberay",
            {"ray_version": "2.51.1"},
            "--ray-version: '2.51.1': only Ray 2.52 and later has tokens",
        ),
        ("kuberay", {"mount": "/shared:ro"}, "--mount: '/shared:ro'"),
        ("kuberay", {"partition": "gpu"}, "--partition: 'gpu': not used by kuberay"),
        # Ray's file of hosts would have it once
        ("up", {"workers": ("node-1",)}, "'node-1': occurs twice"),
        # Ray would not be started
        ("up", {"setup": ". v/activate # ours"}, "--setup: '. v/activate # ours'"),
    ],
)
def test_impossible_rendering_is_one_line(format, given, said):
    needed = {"slurm": {}, "kuberay": KUBERAY, "up": {"head": "node-1", "user": "me"}}[
        format
    ]
    assert said in refused(files, format, **needed | given)


def test_quoted_hash_is_no_comment():
    assert "one part only" in refused(
        render, "slurm", settings(mode="array"), PARTS[:1]
    )
