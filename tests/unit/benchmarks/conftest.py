"""Benchmarks are scripts: they import one another from the folder they lie in."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))
