"""Which process has Ray given a task to? One that waits for its place has none, and may wait for ever.

A process says so itself as soon as it can; this is for one that never comes so far. Ray's control service knows, of
what the driver tells it. Ray publishes that in its dashboard alone, which a local one goes without, so the service is
asked as Ray itself asks it: where that fails (another version, `RAY_task_events_report_interval_ms=0`), nothing is
known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import ray

from launch.run.work import Where

_ANSWER_SECONDS = 2.0  # for an answer of Ray's


def given(function: str, pending: Iterable[Any]) -> dict[Any, Where]:
    """The processes of those of these tasks, all calls of `function`, that have one, as far as is known."""
    with contextlib.suppress(Exception):
        return _given(function, {each.task_id().binary(): each for each in pending})
    return {}


def _given(function: str, tasks: dict[bytes, Any]) -> dict[Any, Where]:
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import gcs_service_pb2 as said
    from ray.core.generated.gcs_service_pb2_grpc import TaskInfoGcsServiceStub, WorkerInfoGcsServiceStub

    own = ray.get_runtime_context()
    asked = said.GetTaskEventsRequest()
    asked.filters.job_filters.add(job_id=bytes.fromhex(own.get_job_id()))
    asked.filters.task_name_filters.add(task_name=function)
    with init_grpc_channel(own.gcs_address) as service:
        events = TaskInfoGcsServiceStub(service).GetTaskEvents(asked, timeout=_ANSWER_SECONDS).events_by_task
        places = {each.task_id: each.state_updates for each in events if each.state_updates.worker_id}
        if not tasks.keys() & places.keys():
            return {}
        listed = WorkerInfoGcsServiceStub(service).GetAllWorkerInfo(
            said.GetAllWorkerInfoRequest(), timeout=_ANSWER_SECONDS
        )
    pids = {each.worker_address.worker_id: each.pid for each in listed.worker_table_data}
    return {
        tasks[task]: Where(node="", node_id=place.node_id.hex(), device="", pid=pids[place.worker_id])
        for task, place in places.items()
        if task in tasks and place.worker_id in pids
    }
