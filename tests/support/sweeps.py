"""Sweeps that are expanded, and the one line that refuses what is wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from evaluator.core.config import validated
from evaluator.core.errors import InputError
from launch.sweep.config import SweepConfig
from launch.sweep.jobs import CheckpointJob, expand

RUN = Path("run")


def expanded(document: dict[str, Any]) -> dict[str, CheckpointJob]:
    """The jobs of a sweep by name, without the hub."""
    return {
        job.name: job for job in expand(validated(SweepConfig, document, "s.yaml"), RUN)
    }


def rows(text: str) -> list[Any]:
    """A table of parameters, a row a line: fields as in a sweep file, and what is said
    of them."""
    return [
        pytest.param(yaml.safe_load(f"{{{fields}}}"), said, id=fields)
        for fields, said in lines(text)
    ]


def lines(text: str) -> list[list[str]]:
    """A table of two columns of text."""
    pairs = [line.rsplit(" |", 1) for line in text.strip("\n").splitlines()]
    return [[each.strip() for each in pair] for pair in pairs]


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
