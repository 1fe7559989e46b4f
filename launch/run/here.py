"""What is certain of this machine before Ray starts, and what a sweep can therefore not have.

Of a cluster nothing is: there, Ray counts its nodes, and engines refuse for themselves.
"""

from __future__ import annotations

import os
import platform

from evaluator.engine.config import ENGINES
from evaluator.engine.processor import usable_cores
from launch.run.nodes import Node, place_engines
from launch.run.provenance import count_gpus
from launch.sweep.config import SweepConfig


def check_here(config: SweepConfig) -> None:
    """Raises InputError for engines that this machine cannot have, where it is the one that they are to run on."""
    if os.environ.get("RAY_ADDRESS"):
        return
    ENGINES[config.engine.kind].check_here(config.engine)
    gpus = count_gpus()
    if gpus is not None:
        node = Node(node_id="", name=platform.node(), cpus=usable_cores(), gpus=gpus, driver=True)
        place_engines([node], config.engine.tensor_parallel, config.resources.engines, spare=1)
