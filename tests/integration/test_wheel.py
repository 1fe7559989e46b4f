"""The wheel: built, installed beside the packages of this environment, and run from
an empty directory."""

import os
import subprocess
import sys
import venv

import pytest

from tests.support.documents import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.more]
# as its entry point
_PROGRAM = (
    "import sys; from launch.commands.cli import main; sys.argv[0] = 'resurface';"
    " main()"
)


@pytest.fixture(scope="module")
def resurface(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("this environment has no pip")
    built = [
        *pip,
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(built, check=True, cwd=folder)
    (wheel,) = folder.glob("resurface-*.whl")
    venv.create(folder / "venv", symlinks=True)
    (packages,) = (folder / "venv" / "lib").glob("python3*/site-packages")
    subprocess.run(
        [
            *pip,
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(packages),
            str(wheel),
        ],
        check=True,
    )
    beside = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "beside.pth").write_text("\n".join(beside))
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    }

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [folder / "venv" / "bin" / "python", "-c", _PROGRAM, *arguments]
        empty = folder / "empty"
        empty.mkdir(exist_ok=True)
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            cwd=empty,
            env=environment | more,
        )
        assert not [*empty.iterdir()]
        return done

    return run


def test_wheel_runs_in_empty_directory(resurface):
    """The shell completes values too."""
    assert resurface("--version").stdout.startswith("resurface 0.1.0")
    for arguments in (("--help",), ("list", "probes"), ("sweep", "demo", "--dry-run")):
        done = resurface(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout
    assert "no benchmarks are installed" in resurface("bench", "score").stderr
    done = resurface(
        _RESURFACE_COMPLETE="complete_bash",
        COMP_WORDS="resurface eval --task xq",
        COMP_CWORD="3",
    )
    assert (done.stdout.split(), done.stderr, done.returncode) == (["xquad"], "", 0)
