"""What has become of an actor that is out of reach.

When a connection breaks, Ray says at once that an actor is unavailable; that its process has ended it knows a moment
later, and that its node is gone after 15 seconds, or 65 where the node's address does not answer at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, ObjectLostError, RayError

from launch.run.cluster import lives

SOON_SECONDS = 3.0  # for Ray to know that a process has ended
VERDICT_SECONDS = 90.0  # for Ray to know that a node is gone
OUT_OF_REACH = (ActorUnavailableError, ObjectLostError)  # what was only on a node that is gone is lost, too
_LOOK_SECONDS = 1.0


class NodeLost(Exception):
    """The actor's node is gone, before Ray has said so of the actor."""


def fate(actor: Any, node_id: str, seconds: float, over: Callable[[], bool]) -> Exception | None:
    """The error that says what has become of an actor; None where it answers, or nothing is known in time.

    It has a method `pulse`. `over`: whether nobody needs to know any more.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until and not over():
        if not lives(node_id):
            return NodeLost()
        pulse = actor.pulse.remote()
        if not ray.wait([pulse], timeout=_LOOK_SECONDS)[0]:
            continue
        try:
            ray.get(pulse)
        except ActorUnavailableError:
            time.sleep(_LOOK_SECONDS)
        except RayError as error:
            said: Exception = error
            return said
        else:
            return None
    return None
