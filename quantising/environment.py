"""Virtual environments of programs whose requirements are not ours. They are made in
the user's cache on first use.

    python = python_of("llm-compressor", ["llmcompressor==0.14.0.1"])
    python = python_of("lm-eval", pins(LOCK), beside_ours=True)

One that must run on our vLLM gets an environment *beside ours*: it sees our packages
after its own, and its own are complete pins that leave ours out."""

import hashlib
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

from evaluator.core.errors import InputError
from evaluator.core.files import cache_folder


def python_of(
    name: str,
    requirements: Sequence[str],
    *,
    beside_ours: bool = False,
    pinned: bool = False,
) -> Path:
    """The interpreter of an environment with `requirements`. Raises InputError where
    there can be none. `pinned`: they are complete, and not resolved; with `beside_ours`
    they must be, since most of those are ours.
    """
    ours = sysconfig.get_path("purelib") if beside_ours else ""
    digest = hashlib.sha256("\n".join([*requirements, ours]).encode()).hexdigest()[:8]
    folder = cache_folder() / f"{name}-{digest}"
    python, done = folder / "bin" / "python", folder / "installed"
    if done.exists():
        return python
    print(f"installing {name} into {folder}", file=sys.stderr)
    # Our pip installs into it: its own pip would bring setuptools, in front of ours.
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q"]
    try:
        venv.create(folder, clear=True)
        if beside_ours:
            version = f"python{sys.version_info.major}.{sys.version_info.minor}"
            (folder / "lib" / version / "site-packages" / "ours.pth").write_text(
                f"{ours}\n"
            )
        if beside_ours or pinned:
            pip.append("--no-deps")
        subprocess.run(
            [*pip, *requirements], check=True, capture_output=True, text=True
        )
    except subprocess.CalledProcessError as error:
        reason = (str(error.stderr).strip() or str(error)).splitlines()[-1]
        raise InputError(f"{name}: its environment cannot be made: {reason}") from None
    except OSError as error:
        raise InputError(f"{name}: its environment cannot be made: {error}") from None
    done.touch()
    return python


def pins(lock: Path) -> list[str]:
    """The requirements of a lock file, without its comments."""
    return [
        line
        for line in lock.read_text().splitlines()
        if line and not line.startswith("#")
    ]
