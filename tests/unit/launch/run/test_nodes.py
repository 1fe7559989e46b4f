"""What processes need of the cluster's nodes."""

from __future__ import annotations

from launch.run.nodes import prune_options


def test_a_prune_process_ends_with_its_task_where_it_has_a_gpu() -> None:
    on_gpu, on_cpu = prune_options(gpu=True), prune_options(gpu=False)
    assert (on_gpu["num_gpus"], on_gpu["max_calls"]) == (1, 1)
    assert (on_cpu["num_gpus"], on_cpu["max_calls"]) == (0, 0)
