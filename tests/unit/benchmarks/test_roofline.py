"""The arithmetic of the roofline on checkpoints whose sizes can be counted by hand."""

from collections import Counter

import pytest
import torch

from benchmarks import roofline
from tests.support import checkpoint_files
from tests.support.models import save_tiny_model

# Of the tiny models: hidden 64, intermediate 128, 2 query heads and 1 key head of 32, 2
# layers, 384 tokens.
QKV, OUT, GATE_UP, DOWN, HEAD = (128, 64), (64, 64), (256, 64), (64, 128), (384, 64)


@pytest.mark.parametrize("architecture", ["qwen3", "qwen3_untied", "mistral", "phi3"])
def test_products_are_the_matrices_as_they_are_multiplied_fused_in_the_file_or_not(
    tmp_path, architecture
):
    """Grouped query heads cost what their matrices hold: one key and one value head
    beside two query heads."""
    products = roofline.read_products(save_tiny_model(tmp_path / "tiny", architecture))
    assert products.layers == {QKV: 2, OUT: 2, GATE_UP: 2, DOWN: 2}
    assert products.head == HEAD
    assert products.cached == 2 * 2 * 32  # a key and a value in each layer


def test_norms_and_biases_are_read_and_not_multiplied(tmp_path):
    sizes = {
        "model.embed_tokens.weight": (10, 4),
        "model.layers.0.self_attn.q_proj.weight": (6, 4),
        "model.layers.0.self_attn.q_proj.bias": (6,),
        "model.layers.0.self_attn.k_proj.weight": (2, 4),
        "model.norm.weight": (4,),
    }
    biased = {name: torch.zeros(shape) for name, shape in sizes.items()}
    tied = roofline.read_products(checkpoint_files.write(tmp_path / "tied", biased))
    assert (tied.layers, tied.head, tied.others) == ({(8, 4): 1}, (10, 4), 10)
    head = {"lm_head.weight": torch.zeros(10, 4), "lm_head.bias": torch.zeros(10)}
    untied = roofline.read_products(
        checkpoint_files.write(tmp_path / "untied", {**biased, **head})
    )
    assert (untied.layers, untied.head, untied.others) == ({(8, 4): 1}, (10, 4), 20)


def test_work_counts_layers_for_every_token_and_the_larger_bound_is_the_share():
    products = roofline.Products(
        layers=Counter({(3, 5): 2, (7, 1): 1}), head=(11, 5), others=13, cached=6
    )
    counts = {"forwards": 10, "distributions": 3, "steps": 2, "cached": 40}
    needed = roofline.work(products, **counts, element_bytes=2)
    assert needed["flops"] == 2 * (10 * (2 * 15 + 7) + 3 * 55)
    assert needed["bytes"] == 2 * (2 * (2 * 15 + 7 + 55 + 13) + 40 * 6)
    machine = {"threads": 2, "flops_per_second": 100.0, "bytes_per_second": 10.0}
    share = roofline.share_of_wall(
        {"flops": 200.0, "bytes": 10.0}, machine, seconds=8.0
    )
    assert (
        share["compute_bound_s"],
        share["memory_bound_s"],
        share["share_of_wall"],
    ) == (2.0, 1.0, 0.25)
    assert (
        roofline.share_of_wall({"flops": 0.0, "bytes": 40.0}, machine, seconds=8.0)[
            "share_of_wall"
        ]
        == 0.5
    )


def test_a_gpu_is_synchronised_once_for_many_products_and_times_them_itself(
    monkeypatch,
):
    """A product of 5 us whose launch takes 20: the GPU starts when all are launched,
    and times them alone."""
    said: list[str] = []
    launched = [0]

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            said.append("event")
            self.products = launched[0]

        def synchronize(self):
            said.append("synchronised")

        def elapsed_time(self, other):
            return 0.005 * (other.products - self.products)

    def product():
        launched[0] += 1

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: said.append("asleep"))
    assert roofline._best(product) == pytest.approx(5e-6)
    rounds = said.count("synchronised")
    assert rounds > 5
    assert said == ["asleep", "event", "event", "synchronised"] * rounds
    assert launched[0] == rounds * 50
