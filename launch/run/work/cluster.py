"""Ray: local by default, or the cluster of RAY_ADDRESS if that is set; without output,
and watched.

If Ray's control service dies, Ray ends the driver's process after a minute, without an
error to the program. If a local raylet dies, Ray waits for a new one. `Cluster.check`
notices both sooner.

Killed drivers leave the folders of Ray's sessions behind. A driver marks its session
with its process. Only a marked session of a dead process of this machine and user is
removed, and only if no process names it.
"""

import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.exceptions import ActorUnavailableError, ObjectLostError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from evaluator.core.errors import Json, ResurfaceError, counted, one_line
from evaluator.core.files import need_unfenced
from evaluator.core.liveness import Owner, sight, this_process
from launch import provenance
from launch.process import check_stop, noting_stop
from launch.run.decide.nodes import Node, Nodes
from launch.run.events import Tell
from launch.run.work.fleet import Steps, Wait
from launch.sweep.plugins import VARIABLE

# shards and questions are small; Ray's default takes 30 % of the memory
_OBJECT_STORE_BYTES = 256 * 2**20
_POLL_SECONDS = 0.25
_TRIES = 3  # to start a local Ray
_MEMORY_SECONDS = 60.0  # for nodes to tell the memory of their GPUs
# without an answer of Ray's control service; Ray ends this process after 60
_SILENCE_SECONDS = 20.0


class ClusterError(ResurfaceError):
    """Ray itself cannot be started or reached, or died."""


class Cluster:
    """A connected Ray. A separate thread checks several times a second whether it
    lives."""

    def __init__(self, *, local: bool) -> None:
        self._name = "the local Ray" if local else "the Ray cluster"
        self._local = local
        self._node = ray.get_runtime_context().get_node_id()
        self._answered = time.monotonic()
        self._listing: list[Json] = ray.nodes()
        self._raylet_died = False
        self.closed = threading.Event()
        threading.Thread(target=self._watch, name="ray-watch", daemon=True).start()

    @property
    def lost(self) -> str | None:
        """How Ray died; None while it lives. Returns at once."""
        if self._raylet_died:
            return "its raylet is gone"
        silence = time.monotonic() - self._answered
        return f"no answer for {silence:.0f} s" if silence > _SILENCE_SECONDS else None

    def nodes(self) -> tuple[Node, ...]:
        """The nodes alive at the last check, this process's own first. Returns at
        once."""
        found = [
            Node(
                node_id=each["NodeID"],
                name=each["NodeManagerHostname"],
                cpus=int(each["Resources"].get("CPU", 0)),
                gpus=int(each["Resources"].get("GPU", 0)),
                driver=each["NodeID"] == self._node,
            )
            for each in self._listing
            if each["Alive"]
        ]
        return tuple(
            sorted(found, key=lambda node: (not node.driver, node.name, node.node_id))
        )

    def check(self) -> None:
        """Raises ClusterError if Ray is gone."""
        if (how := self.lost) is not None:
            raise ClusterError(
                f"{self._name} died ({how}); finished work is kept, the same command"
                " resumes"
            )

    def _watch(self) -> None:
        while not self.closed.wait(_POLL_SECONDS):
            # `lost` decides what Ray's silence means
            with suppress(Exception):
                # Ray notices a dead raylet after some ten seconds, then ends this
                # process. No public call shows it sooner.
                if self._local and "raylet" in dict(
                    ray._private.worker._global_node.dead_processes()
                ):
                    self._raylet_died = True
                self._listing = ray.nodes()
                alive = {node["NodeID"]: node["Alive"] for node in self._listing}
                self._answered = time.monotonic()
                self._raylet_died = self._raylet_died or not alive.get(self._node, True)


def room_of_gpus(nodes: Nodes) -> provenance.Room | None:
    """What the engines of a GPU have on the node with the least of it; None if a node
    does not answer."""
    ask = ray.remote(num_cpus=0)(provenance.room_of_gpus)
    places = [
        NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        for node in nodes
        if node.gpus
    ]
    answers = [ask.options(scheduling_strategy=place).remote() for place in places]
    with suppress(RayError):
        rooms: list[provenance.Room] = ray.get(answers, timeout=_MEMORY_SECONDS)
        return min(rooms, key=lambda room: (room.memory or 0, room.cores / room.gpus))
    return None


def lives(node_id: str) -> bool:
    """Whether a node lives, as far as Ray knows."""
    with suppress(Exception):  # without an answer, the node counts as alive
        return all(node["Alive"] for node in ray.nodes() if node["NodeID"] == node_id)
    return True


@contextmanager
def cluster(log_dir: Path, again: Tell = lambda text: None) -> Iterator[Cluster]:
    """Connect to Ray within the block; a local one's logs go to `log_dir`/ray. Raises
    ClusterError if there is none. On a busy machine a node may time out: the start is
    tried again, and `again` receives why.
    """
    address = os.environ.get("RAY_ADDRESS")
    try:
        with noting_stop():  # Ray has a handler of its own
            quiet: Json = {
                "log_to_driver": False,
                "logging_level": logging.ERROR,
                "configure_logging": True,
            }
            if not address:
                # "local" starts our own Ray even if another user's Ray runs on this
                # machine.
                quiet |= {
                    "include_dashboard": False,
                    "object_store_memory": _OBJECT_STORE_BYTES,
                }
            elif sent := _sent_environment(os.environ):
                quiet["runtime_env"] = {"env_vars": sent}
            for left in reversed(range(_TRIES)):
                try:
                    context = ray.init(address=address or "local", **quiet)
                    break
                except Exception as error:
                    if address or not left or "timed out" not in str(error).lower():
                        raise
                    again(f"Ray did not start ({one_line(error)}); trying it again")
                    ray.shutdown()
            if not address:
                mark(Path(context.address_info["session_dir"]))
        connected = Cluster(local=not address)
    except Exception as error:
        where = (
            f"cannot reach the Ray cluster at RAY_ADDRESS={address}"
            if address
            else "cannot start a local Ray"
        )
        with suppress(Exception):  # its processes, of a start that failed
            ray.shutdown()
        raise ClusterError(f"{where}: {one_line(error, 300)}") from error
    try:
        check_stop()
        yield connected
    finally:
        connected.closed.set()
        session = None if address else context.address_info.get("session_dir")
        # else Ray's C++ code could end this process before the error is reported
        if connected.lost is None:
            with suppress(Exception):
                ray.shutdown()
        if session:
            _keep_logs(Path(session) / "logs", log_dir / "ray")
            if connected.lost is None:
                # Ray leaves one behind for every run
                shutil.rmtree(session, ignore_errors=True)


def _sent_environment(own: Mapping[str, str]) -> dict[str, str]:
    """The part of this process's environment `own` that a cluster's processes get.
    Those of a local Ray inherit it all.

    They start in other directories, so the module search paths are made absolute. A
    node's own paths come after these."""
    sent = {VARIABLE: own[VARIABLE]} if VARIABLE in own else {}
    places = [
        os.path.abspath(place)
        for place in own.get("PYTHONPATH", "").split(os.pathsep)
        if place
    ]
    return sent | (
        {"PYTHONPATH": os.pathsep.join([*places, "${PYTHONPATH}"])} if places else {}
    )


def _keep_logs(source: Path, target: Path) -> None:
    """Copy small files that are not empty, unless another driver has the directory
    now."""
    with suppress(OSError, ResurfaceError):
        need_unfenced(target)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True, exist_ok=True)
        for path in source.glob("*"):
            if path.is_file() and 0 < path.stat().st_size < 2**22:
                shutil.copyfile(path, target / path.name)


SOON_SECONDS = 3.0  # until Ray notices the end of a process
VERDICT_SECONDS = 90.0  # until Ray notices the loss of a node
# data that only a lost node held is lost too
OUT_OF_REACH = (ActorUnavailableError, ObjectLostError)
_PULSE_SECONDS = 1.0  # for an actor to answer


class NodeLost(Exception):
    """The actor's node is gone, and Ray has not reported this for the actor yet."""


def outcome_of_actor(
    actor: Any, node_id: str, seconds: float, over: Callable[[], bool]
) -> Steps[Exception | None]:
    """An actor's error, or None if it answers (method `pulse`), the time is over, or
    `over()` is true."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not over():
        if not lives(node_id):
            return NodeLost()
        pulse = actor.pulse.remote()
        if not (yield Wait(time.monotonic() + _PULSE_SECONDS, pulse)):
            continue
        try:
            ray.get(pulse)
        except ActorUnavailableError:
            yield Wait(time.monotonic() + _PULSE_SECONDS)
        except RayError as error:
            outcome: Exception = error
            return outcome
        else:
            return None
    return None


_MARK = "resurface.json"


def mark(session: Path) -> None:
    """State in a session's folder that it belongs to this process."""
    with suppress(OSError):
        (session / _MARK).write_text(
            json.dumps(asdict(this_process())), encoding="utf-8"
        )


def remove_leftovers() -> list[str]:
    """Remove the sessions of dead drivers of ours; a line about these, and one about
    others that no process names."""
    # Ray's own rule.
    temporary = os.environ.get("TMPDIR", "/tmp")  # noqa: S108
    folder = Path(os.environ.get("RAY_TMPDIR", temporary)) / "ray"
    ours: list[Path] = []
    others: list[Path] = []
    used = " ".join(
        " ".join(each.info["cmdline"] or ())
        for each in psutil.process_iter(["cmdline"])
    )
    for path in sorted(folder.glob("session_2*")):
        with suppress(OSError, ValueError, TypeError):
            if (
                path.is_symlink()
                or path.stat().st_uid != os.getuid()
                or path.name in used
            ):
                continue
            if not (path / _MARK).exists():
                others.append(path)
            elif sight(Owner(**json.loads((path / _MARK).read_bytes()))) == "gone":
                ours.append(path)
    for path in ours:
        shutil.rmtree(path, ignore_errors=True)
    lines = []
    if ours:
        removed = counted(len(ours), "session")
        lines.append(f"{folder}: removed {removed} of killed runs")
    if others:
        kept = counted(len(others), "session")
        lines.append(
            f"{folder}: kept {kept} without a process ({others[0].name}), perhaps of"
            " another program: delete it if no Ray runs here"
        )
    return lines
