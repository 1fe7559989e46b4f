"""The device that is named is the one that this process may use."""

import subprocess
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from launch import provenance

NAMES = {"0": "NVIDIA H100", "1": "NVIDIA H100", "2": "NVIDIA L4"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        commands.append(command)
        if "MIG-7" in command:
            raise subprocess.CalledProcessError(6, command)
        chosen = (
            command[command.index("-i") + 1].split(",") if "-i" in command else NAMES
        )
        return SimpleNamespace(stdout="".join(f"{NAMES[each]}\n" for each in chosen))

    monkeypatch.setattr(subprocess, "run", run)
    provenance.device.cache_clear()
    yield commands
    provenance.device.cache_clear()


@pytest.mark.parametrize(
    ("visible", "device", "count"),
    [
        ("2", "NVIDIA L4", 1),
        ("0,1", "NVIDIA H100, NVIDIA H100", 2),
        ("MIG-7", "GPU MIG-7", None),
        (None, "NVIDIA H100, NVIDIA H100, NVIDIA L4", 3),
        ("", "Some CPU", 0),
    ],
)
def test_given_gpus_count(asked, visible, device, count, monkeypatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(provenance, "processor", lambda: "Some CPU")
    assert provenance.device() == device
    assert len(asked) == (visible != "")
    assert provenance.count_gpus() == count


@pytest.mark.parametrize("runs", [True, False])
def test_commands_for_mps_are_shown_beside_a_gpu(monkeypatch, runs) -> None:
    monkeypatch.setattr(provenance, "gpus", lambda: ["NVIDIA H100"])
    monkeypatch.setattr(provenance, "mps_runs", lambda: runs)
    shown = provenance.this_machine()["MPS"]
    assert shown.startswith("running; " if runs else "off; ")
    assert "nvidia-cuda-mps-control -d" in shown
    assert "echo quit | nvidia-cuda-mps-control" in shown
