"""Two machines' networks on this one: a namespace for each, and a wire that can be cut.

    with two_places(folder) as (here, there):
        head = here.start_ray("--head", ...)      # a Ray node, its log in `folder`
        there.cut(hears=False)              # it still speaks
        there.slow()

Each place has an address, processes, a `/tmp/ray` and a `/dev/shm` of its own; both see
all other files. A place ends with its first process, and the wire with the places.
"""

import contextlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

import psutil

from tests.support.kills import when
from tests.support.runs import environment

HERE, THERE = "10.79.0.1", "10.79.0.2"
_NEEDED = ("ip", "nft", "tc", "unshare", "nsenter")
_APART = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child")
# what nobody else ends is reaped by this shell
_FIRST = "while :; do sleep 0.2; wait; done"
_WIRE = "wire"
_TRIED = f"ip link add name {_WIRE} type veth peer name other && nft add table inet cut"
# nobody else is in these networks
OPEN = {"RAY_AUTH_MODE": "disabled"}
_STARTED = "Ray runtime started"


def lacking() -> str | None:
    """Why there can be no such places here; None: there can."""
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    command = [*_APART, "--mount-proc", "sh", "-c", _TRIED]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"no network namespaces: {tried.stderr.strip()}"
    return None


class Place:
    """A machine's network and processes."""

    def __init__(self, folder: Path, address: str) -> None:
        self.address = address
        self._folder = folder
        self._outer = subprocess.Popen([*_APART, "--mount-proc", "sh", "-c", _FIRST])
        self._first: psutil.Process | None = None
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Place":
        while not (children := psutil.Process(self._outer.pid).children()):
            assert self._outer.poll() is None, "the place could not be made"
            time.sleep(0.02)
        self._first = children[0]
        self.run("ip", "link", "set", "lo", "up")
        for folder in ("/tmp/ray", "/dev/shm"):
            Path(folder).mkdir(exist_ok=True)
            self.run("mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", folder)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # all others in the place end with the first process
        with contextlib.suppress(psutil.NoSuchProcess):
            if self._first is not None:
                self._first.kill()
        self._outer.kill()
        for process in (self._outer, *self._started):
            process.wait()

    @property
    def pid(self) -> int:
        assert self._first is not None, "only within the block"
        return int(self._first.pid)

    def inside(self, *command: str) -> list[str]:
        """A command as it is run there."""
        apart = ["--net", "--mount", "--pid"]
        return ["nsenter", f"--target={self.pid}", *apart, *command]

    def run(self, *command: str) -> None:
        subprocess.run(self.inside(*command), check=True)

    def start_ray(
        self, *options: str, variables: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a Ray node, and wait until it is there. The process is the parent of
        all its others."""
        program = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        more = [f"--node-ip-address={self.address}", "--object-store-memory=100000000"]
        file = self._folder / f"ray-{self.address}.log"
        with file.open("wb") as log:
            started = subprocess.Popen(
                self.inside(*program, *more, *options),
                env=environment() | OPEN | {"PYTHONUNBUFFERED": "1"} | dict(variables),
                stdout=log,
                stderr=log,
            )
        self._started.append(started)
        when(started, lambda: re.findall(_STARTED, file.read_text()), file)
        return started

    def cut(self, *, hears: bool = False, speaks: bool = False) -> None:
        """Drop every packet of the wire, unless the place still `hears` or
        `speaks`."""
        rules = "table inet cut {\n"
        if not hears:
            rules += _rule("input", "iifname")
        if not speaks:
            rules += _rule("output", "oifname")
        self.run("nft", rules + "}")

    def heal(self) -> None:
        """The end of `cut`."""
        self.run("nft", "delete", "table", "inet", "cut")

    def slow(self) -> None:
        """From now on, it sends 1 Mbit/s."""
        limit = ("rate", "1mbit", "burst", "32kbit", "latency", "400ms")
        self.run("tc", "qdisc", "add", "dev", _WIRE, "root", "tbf", *limit)


def _rule(hook: str, name: str) -> str:
    where = f"type filter hook {hook} priority 0;"
    return f'chain {hook} {{ {where} {name} "{_WIRE}" drop; }}\n'


@contextlib.contextmanager
def two_places(folder: Path) -> Iterator[tuple[Place, Place]]:
    """Two places with a wire between them."""
    with Place(folder, HERE) as here, Place(folder, THERE) as there:
        wire = ["ip", "link", "add", "name", _WIRE, "type", "veth"]
        peer = ["peer", "name", _WIRE, "netns", str(there.pid)]
        net = ["nsenter", f"--target={here.pid}", "--net"]
        subprocess.run([*net, *wire, *peer], check=True)
        for place, other in ((here, there), (there, here)):
            place.run("ip", "addr", "add", f"{place.address}/24", "dev", _WIRE)
            place.run("ip", "link", "set", _WIRE, "up")
            # Ray finds its own address by the route
            place.run("ip", "route", "add", "default", "via", other.address)
        yield here, there
