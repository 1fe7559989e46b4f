"""The locks of `requirements/` as pip reads them, and what an installed environment
says of its own files."""

import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
PYTHONS = ("3.11", "3.12", "3.13")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]


def requirements(lines: Iterable[str]) -> list[Requirement]:
    """The requirements of such a file's lines: comments and options left out."""
    texts = (line.partition(" #")[0].strip() for line in lines)
    return [
        Requirement(text) for text in texts if text and not text.startswith(("#", "-"))
    ]


def pins(lock: str, python: str) -> dict[NormalizedName, str]:
    """A lock's names and versions on Linux. Raises ValueError for a line that is no
    pin, and for one pinned twice."""
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    pinned: dict[NormalizedName, str] = {}
    for requirement in requirements(
        (REQUIREMENTS / lock).read_text(encoding="utf-8").splitlines()
    ):
        if requirement.marker and not requirement.marker.evaluate(environment):
            continue
        name = canonicalize_name(requirement.name)
        (specifier,) = requirement.specifier
        if specifier.operator != "==" or name in pinned:
            raise ValueError(f"{lock}: {requirement}: not one exact version")
        pinned[name] = specifier.version
    return pinned
