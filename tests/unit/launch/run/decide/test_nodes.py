"""What processes need of the cluster's nodes, and which node each gets."""

from collections import Counter

import pytest

from launch.run.decide.nodes import (
    FreeGpus,
    Node,
    compress_options,
    missing_places,
    place_engines,
)
from tests.support.sweeps import refused


def _nodes(*gpus: int, cpus: int = 8) -> list[Node]:
    return [
        Node(
            node_id=name, name=f"host-{name}", cpus=cpus, gpus=count, driver=not number
        )
        for number, (name, count) in enumerate(
            zip("abcdefghijklmnop", gpus, strict=False)
        )
    ]


@pytest.mark.parametrize(
    ("gpus", "tensor_parallel", "wanted", "stand"),
    [
        ((3, 3, 3), 2, None, "abc"),  # nine GPUs, but no fourth pair on one node
        ((8,), 1, None, "aaaaaaaa"),
        ((0, 4, 2), 1, None, "bcbcbb"),  # a head without GPUs gets no engine
        ((2, 8), 4, None, "bb"),
        ((4, 4), 1, 2, "ab"),  # fewer than fit are spread
        ((4, 4), 2, 3, "aba"),
        ((0, 0), 1, 3, "aba"),
    ],
)
def test_engines_are_counted_for_each_node(
    gpus, tensor_parallel, wanted, stand
) -> None:
    places = place_engines(_nodes(*gpus), tensor_parallel, wanted)
    assert {place.gpus for place in places} == {tensor_parallel if any(gpus) else 0}
    assert "".join(place.node_id for place in places) == stand


FIT = "resources.engines: {}: {}: {}"


@pytest.mark.parametrize(
    ("nodes", "tensor_parallel", "wanted", "message"),
    [
        (_nodes(0, 0), 1, 65, "resources.engines: 65: at most 4 for each core, and there are 16 cores"),
        (_nodes(4), 2, 3, FIT.format("3 of tensor_parallel 2", "2 fit", "2 in 4 GPUs on host-a")),
        (_nodes(1, 2), 4, None,
         "engine.tensor_parallel: 4: no node has this many GPUs: 1 GPU on host-a, 2 GPUs on host-b"),
    ],
)  # fmt: skip
def test_too_many_engines_are_refused(nodes, tensor_parallel, wanted, message) -> None:
    assert refused(place_engines, nodes, tensor_parallel, wanted) == message


@pytest.mark.parametrize(
    ("cpus", "wanted", "stand"),
    [
        ((8, 8), 3, "a3 b8 a3"),  # the driver's core is spared
        ((2,), 4, "a1 a1 a1 a1"),
        # a node without CPUs gets an engine only where there is no other
        ((0, 8), 2, "b4 b4"),
        ((0,), None, "a1"),
    ],
)
def test_engines_on_cpus(cpus, wanted, stand) -> None:
    nodes = [
        Node(node_id=name, name=name, cpus=count, gpus=0, driver=name == "a")
        for name, count in zip("ab", cpus, strict=False)
    ]
    places = place_engines(nodes, 1, wanted)
    assert " ".join(f"{each.node_id}{each.threads}" for each in places) == stand


def test_one_run_has_one_kind() -> None:
    """An engine on a GPU computes differently."""
    (on_cpu,) = place_engines(_nodes(0), 1, None)
    found = missing_places(_nodes(0, 4), {"a": 1}, {}, on_cpu, None)
    assert [(each.node_id, each.gpus, each.threads) for each in found] == [("b", 0, 8)]
    (on_gpu,) = place_engines(_nodes(1), 1, None)
    assert missing_places(_nodes(0, 0), {}, {}, on_gpu, None) == ()


def test_gpus_of_compression_jobs() -> None:
    on_gpu, on_cpu = compress_options(gpu=True), compress_options(gpu=False)
    given = [(each["num_gpus"], each["max_calls"]) for each in (on_gpu, on_cpu)]
    assert given == [(1, 1), (0, 0)]
    assert on_cpu["runtime_env"]["env_vars"] == {"CUDA_VISIBLE_DEVICES": ""}
    assert "runtime_env" not in on_gpu


def test_gpus_are_taken_and_given_back() -> None:
    free = FreeGpus(_nodes(4, 2))
    assert [free.take_one() for _ in range(3)] == ["b", "b", "a"]
    assert free.take("a", 2)
    assert not free.take("a", 2)
    assert [free.take_one("a"), free.take_one()] == ["a", None]
    free.give_back("b")
    assert not free.take("b", 2)
    free.give_back("b")
    assert free.take("b", 2)


# GPUs of each node, engines that stand, retired ones, GPUs of an engine, and how many
# engines are wanted: what is missing
MISSING = """
22  abab -  1 - : -  as it should be
222 abab -  1 - : cc a node has come
2   aa   -  1 - : -  one has gone, and its engines with it
22  ab   -  1 - : ab engines have gone
44  ab   -  1 2 : -  as many as are wanted
444 a    -  1 2 : b
22  aa   -  1 6 : bb fewer fit than are wanted
421 aa   -  2 - : b
1   -    -  2 - : -  no room
-   -    -  1 - : -
22  aab  b  1 - : -  what failed there is not tried again
22  a    b  1 2 : a  but elsewhere
11  a    b  1 2 : -
2   aaa  -  1 - : -  more than fit
"""


@pytest.mark.parametrize("row", MISSING.strip().splitlines())
def test_engines_that_are_missing(row: str) -> None:
    given, told = row.replace("-", " - ").split(":")
    gpus, stand, retired, each, wanted = (s.strip("-") for s in given.split())
    first = place_engines(_nodes(8, 8), int(each), None)[0]
    nodes, count = _nodes(*map(int, gpus)), int(wanted) if wanted else None
    found = missing_places(nodes, Counter(stand), Counter(retired), first, count)
    assert "".join(place.node_id for place in found) == told.split()[0].strip("-")


def test_gpus_of_changing_nodes() -> None:
    free = FreeGpus(_nodes(1, 2))
    assert free.take("b", 2)
    free.follow(_nodes(1, 2, 4))
    assert not free.take("b", 1)
    assert free.take("c", 4)
    free.follow(_nodes(1))
    free.give_back("c", 4)  # it is gone
    assert not free.take("c", 1)
    assert free.take("a", 1)
    free = FreeGpus(_nodes(2, 2))
    assert free.take("a", 1)
    assert free.take("b", 2)
    free.give_back("a")
    # somebody else holds one of a's, and none of b's: there is one fewer than was
    # thought
    free.give_back("b", -1)
    assert free.take_one() == "a"
    assert free.take_one() == "a"
    assert free.take_one() is None
    free.give_back("b", 2)
    assert free.take_one() == "b"
    assert free.take_one() is None
