"""Sweeps that are expanded, and the one line that refuses what is wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluator.core.config import validated
from evaluator.core.errors import InputError
from launch.sweep.config import SweepConfig
from launch.sweep.jobs import CheckpointJob, expand

RUN = Path("run")


def expanded(document: dict[str, Any]) -> dict[str, CheckpointJob]:
    """The jobs of a sweep by name, without the hub."""
    return {
        job.name: job
        for job in expand(validated(SweepConfig, document, "s.yaml"), RUN, fetch=False)
    }


def refused(function: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """The one line with which a call is refused."""
    with pytest.raises(InputError) as caught:
        function(*arguments, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def gazetteer(**settings: Any) -> dict[str, Any]:
    """A sweep's task of two English items, asked greedily, unless `settings` differ."""
    usual = {"items": 2, "languages": ["english"], "probes": ["greedy"]}
    return {"task": "gazetteer", **usual, **settings}
