"""Every Eval Ever's own converter reads an exported run, and finds its result valid."""

import json
import shutil
import subprocess
import sys

import pytest

from evaluator.store.lm_eval import export
from tests.support.synthetic import write_run

CONVERTER = "every-eval-ever==0.3.0"
PYTHONS = [sys.executable, "python3.13", "python3.12"]
NEW_ENOUGH = "import sys; sys.exit(sys.version_info < (3, 12))"


@pytest.fixture(scope="module")
def converter(tmp_path_factory):
    """Its program, in an environment of its own."""
    for python in filter(shutil.which, PYTHONS):
        if subprocess.run([python, "-c", NEW_ENOUGH], capture_output=True).returncode:
            continue
        place = tmp_path_factory.mktemp("converter")
        subprocess.run([python, "-m", "venv", place], check=True)
        subprocess.run([place / "bin/pip", "install", "-q", CONVERTER], check=True)
        return place / "bin/every_eval_ever"
    pytest.skip(f"{CONVERTER} needs Python 3.12")


@pytest.mark.long
@pytest.mark.slow
def test_converter_reads_our_export(converter, tmp_path):
    names = ("dense", "wanda-0.6")
    run = write_run(tmp_path / "run", 8, names, languages=("english",))
    files = export(run, tmp_path / "exported")

    def call(*arguments):
        return subprocess.run([converter, *arguments], check=True, cwd=tmp_path)

    call("convert", "lm_eval", "--log_path", "exported", "--include_samples",
         "--source_organization_name", "us", "--output_dir", "data")  # fmt: skip
    made = sorted((tmp_path / "data").glob("*/local/*/*"))
    call("validate", *(file.relative_to(tmp_path) for file in made))
    assert len(made) == 2 * 2 * len(names)  # of each task, numbers and samples
    ours = {}
    for file in files:
        if file.name.startswith("results"):
            ours[file.parent.name] = json.loads(file.read_text())["results"]
    for file in made:
        if file.suffix == ".json":
            log = json.loads(file.read_text())
            task, _, name, _ = file.relative_to(tmp_path / "data").parts
            scores = [
                row["score_details"]["score"] for row in log["evaluation_results"]
            ]
            wanted = ours[name][task]
            assert scores == [
                wanted[key] for key in wanted if "stderr" not in key and key != "alias"
            ]
