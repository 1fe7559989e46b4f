"""The machine that an estimate is for: this one, or one that `--machine` names."""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from evaluator.core.errors import unknown
from evaluator.engine.processor import usable_cores
from launch.provenance import count_gpus, device

# of one GPU: TFLOP/s in dense bfloat16, and GB
_GPUS: Mapping[str, tuple[int, int]] = {
    "H100": (989, 80),
    "H200": (989, 141),
    "A100": (312, 80),
    "L40S": (362, 48),
    "RTX 4090": (165, 24),
}
# TFLOP/s of a core in float32 with AVX-512. On an AMD EPYC, a product of 1,024 x 1,024
# reached 40 % of it.
_CORE = 0.07


class Machine(NamedTuple):
    name: str
    peak: float  # TFLOP/s of a GPU or a CPU
    memory: int = 0  # GB of a GPU
    gpus: int = 0


def machine_of(value: str | None) -> Machine:
    """'8 x H100', '8 H100', 'L40S' or 'cpu'; None: this machine, or a GPU of a cluster. Raises
    InputError for an unknown name."""
    spelled = _this() if value is None else value.strip()
    count, name = re.findall(r"^(?:([1-9]\d*) *x? *)?(.*)", spelled.upper(), re.I)[0]
    if name == "CPU":
        cores = usable_cores()
        return Machine(f"this CPU, {cores} cores", cores * _CORE)
    if name not in _GPUS:
        raise unknown("--machine", name or spelled, [*_GPUS, "cpu"])
    gpus = int(count or 1)
    return Machine(f"{gpus} x {name}", *_GPUS[name], gpus)


def _this() -> str:
    gpus = 1 if os.environ.get("RAY_ADDRESS") else count_gpus()
    if gpus == 0:
        return "cpu"
    known = [name for name in _GPUS if name in device().upper()]
    return f"{gpus or 1} x {[*known, 'H100'][0]}"
