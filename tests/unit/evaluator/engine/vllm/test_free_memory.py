"""An engine waits for the memory of a process that has just ended, and not for ever."""

import stat

import pytest
import torch

from evaluator.engine.vllm import start
from evaluator.engine.vllm.start import own_memory, wait_for_memory

GIB = 2**30


@pytest.fixture
def waited(monkeypatch):
    """The seconds of each pause, on a clock that only pauses move."""
    pauses: list[float] = []
    monkeypatch.setattr(start.time, "sleep", pauses.append)
    monkeypatch.setattr(start.time, "monotonic", lambda: sum(pauses))
    return pauses


def _free(monkeypatch, seen):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (next(seen) * GIB, 80 * GIB))


def test_it_goes_on_once_there_is_enough_and_after_a_minute_at_the_latest(monkeypatch, waited):
    seen = iter([4, 40, 71, 72, 80])
    _free(monkeypatch, seen)
    wait_for_memory(0.9)
    assert len(waited) == 3
    assert list(seen) == [80]  # 72 of 80 are enough
    _free(monkeypatch, iter([8, 44, 80]))
    wait_for_memory(0.45)  # beside an engine of the same share: one that has ended has not freed its part yet
    assert len(waited) == 4
    before = sum(waited)
    _free(monkeypatch, iter(lambda: 40, None))  # somebody else's: vLLM refuses it
    wait_for_memory(0.9)
    assert 59 < sum(waited) - before < 62


def test_what_others_do_to_a_shared_gpu_while_an_engine_starts_is_not_seen(monkeypatch):
    """Two engines of 36 GiB; this one loads 10 GiB, while the other first takes its part and then ends."""
    free, held = [80], [0]

    def real(*device):
        return free[0] * GIB, 80 * GIB

    monkeypatch.setattr("torch.accelerator.get_memory_info", real)
    monkeypatch.setattr("torch.accelerator.memory_reserved", lambda *device: held[0] * GIB)
    with own_memory():
        look = torch.accelerator.get_memory_info
        assert look("cuda:0") == (80 * GIB, 80 * GIB)  # as it is: vLLM refuses where there is no room
        for free[0], held[0] in ((44, 0), (34, 10), (71, 10)):
            assert look()[0] == (80 - held[0] - 1) * GIB
    assert torch.accelerator.get_memory_info is real


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """A program of that name, which prints a line of `answers` for each GPU and call and notes what it was asked."""
    answers, program = tmp_path / "answers", tmp_path / "nvidia-smi"
    program.write_text(
        f"""#!/bin/sh
echo "$@" >> {tmp_path}/asked
[ -s {answers} ] || exit 9
head -n 2 {answers}
sed -i 1,2d {answers}
"""
    )
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: pytest.fail("it takes memory"))
    return answers


def test_workers_of_their_own_wait_until_every_gpu_is_free_if_somebody_tells(nvidia_smi, monkeypatch, waited):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-7b,5")
    nvidia_smi.write_text("80000, 81559\n4, 81559\n80000, 81559\n70000, 81559\n80000, 81559\n73404, 81559\n")
    wait_for_memory(0.9, gpus=2)
    assert len(waited) == 2
    asked = nvidia_smi.with_name("asked").read_text().splitlines()
    assert len(asked) == 3
    assert asked[0].endswith("-i 3,GPU-7b")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    for answer in ("", "[N/A], 81559\n[N/A], 81559\n"):
        nvidia_smi.write_text(answer)
        wait_for_memory(0.9, gpus=2)
    assert nvidia_smi.with_name("asked").read_text().splitlines()[3].endswith("-i 0,1")
    monkeypatch.setenv("PATH", "")
    wait_for_memory(0.9, gpus=2)
    assert len(waited) == 2
