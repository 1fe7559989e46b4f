"""A job that gets on says so in each of its parts, however long its files, layers
and matrices are."""

from itertools import pairwise

import torch

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.files import digest_of_file
from evaluator.checkpoints.tensors import PROVEN
from evaluator.core.liveness import HEARTBEAT
from pruning.layers.repair import LeastSquares
from pruning.methods import masks, solver
from pruning.methods.base import Pruned
from pruning.methods.patterns import Unstructured
from pruning.run import prune
from tests.support import pruning as tiny

HALF = Unstructured(0.5)


def beats(work):
    before = HEARTBEAT.beats
    work()
    return HEARTBEAT.beats - before


def test_every_job_part_beats(checkpoints, passages, tmp_path):
    heard = [HEARTBEAT.beats]
    job = tiny.job(checkpoints("llama"), passages)
    prune(
        job,
        tmp_path / "out",
        progress=lambda done, total: heard.append(HEARTBEAT.beats),
    )
    heard.append(HEARTBEAT.beats)
    assert len(heard) > 3
    # of a layer, each read and written; and as many tensors and files at least before
    # and after the layers
    linears = 7
    assert all(after - before >= linears for before, after in pairwise(heard))


def test_long_work_beats_in_pieces(checkpoints, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x" * (5 << 20))
    assert beats(lambda: digest_of_file(file)) == 5
    checkpoint = Checkpoint(checkpoints("llama"))
    PROVEN.clear()
    assert beats(checkpoint.prove) >= len(checkpoint.tensors)
    generator = torch.Generator().manual_seed(0)
    inputs_TI = torch.randn(200, 64, generator=generator)
    hessian_II, weight_OI = (
        inputs_TI.T @ inputs_TI,
        torch.randn(8, 64, generator=generator),
    )
    factor = solver.factorise(hessian_II.clone(), "w")
    assert beats(lambda: solver.solve([weight_OI], factor, HALF, block=16)) == 4
    mask_OI = masks.select(weight_OI.abs(), HALF, "row")
    pruned = Pruned(masks.zeroed(weight_OI, mask_OI), mask_OI)
    least_squares = LeastSquares(hessian_II, "w")
    before = HEARTBEAT.beats
    _, facts = least_squares.repair(pruned, weight_OI, torch.float32)
    assert HEARTBEAT.beats - before == facts["repair_steps"] > 1
