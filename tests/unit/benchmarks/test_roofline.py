"""The arithmetic of the roofline on a checkpoint whose sizes can be counted by hand."""

from benchmarks import roofline
from tests.support.models import save_tiny_model


def test_work_counts_layers_for_every_token_and_the_tied_head_where_a_distribution_is_needed(tmp_path):
    from safetensors import safe_open

    checkpoint = save_tiny_model(tmp_path / "tiny", "qwen3", 0)
    with safe_open(checkpoint / "model.safetensors", framework="pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118  (not a dict)
    head = shapes["model.embed_tokens.weight"][0] * shapes["model.embed_tokens.weight"][1]
    layers = sum(shape[0] * shape[1] for name, shape in shapes.items() if "proj" in name)
    norms = sum(shape[0] for shape in shapes.values() if len(shape) == 1)
    needed = roofline.work(checkpoint, forwards=10, distributions=3, steps=2)
    assert needed["flops"] == 2 * (10 * layers + 3 * head)
    assert needed["bytes"] == 2 * 4 * (layers + head + norms)


def test_an_untied_table_is_looked_up_and_not_read(tmp_path):
    tied = roofline.work(save_tiny_model(tmp_path / "a", "qwen3", 0), 1, 1, 1)
    untied = roofline.work(save_tiny_model(tmp_path / "b", "qwen3_untied", 0), 1, 1, 1)
    assert tied == untied


def test_the_larger_bound_is_the_share():
    machine = {"flops_per_second": 100.0, "bytes_per_second": 10.0}
    share = roofline.share_of_wall({"flops": 200.0, "bytes": 10.0}, machine, seconds=8.0)
    assert (share["compute_bound_s"], share["memory_bound_s"], share["share_of_wall"]) == (2.0, 1.0, 0.25)
    assert roofline.share_of_wall({"flops": 0.0, "bytes": 40.0}, machine, seconds=8.0)["share_of_wall"] == 0.5


def test_the_machine_is_measured():
    measured = roofline.measure("float32")
    assert measured["flops_per_second"] > 1e8
    assert measured["bytes_per_second"] > 1e7
