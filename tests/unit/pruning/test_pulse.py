"""A job that gets on says so in each of its parts, however long its files, layers
and matrices are."""

from itertools import pairwise

from evaluator.core.liveness import HEARTBEAT
from pruning.run import prune
from tests.support import pruning as tiny


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
