"""A Slurm of two nodes on this machine: each has an address, a host name, processes, a
`/tmp/ray` and a `/dev/shm` of its own. All of it, its network too, is in namespaces
that end with it.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

NODES = ("n1", "n2")
NEEDED = (
    "slurmctld",
    "slurmd",
    "sbatch",
    "scontrol",
    "munged",
    "ip",
    "unshare",
    "nsenter",
    "mount",
)
_UNDER_WAY = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED")
_APART = ("unshare", "--net", "--mount", "--uts")
_PROCESSES = ("--pid", "--fork", "--kill-child", "--mount-proc")
_SECONDS = 90.0  # until Slurm has seen both nodes
_FILES = Path(__file__).parent / "slurm_nodes"
# that Slurm counts and hands out, and that no machine has
_GPUS = "Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n"


def lacking() -> str | None:
    """Why there can be no Slurm here; None: there can."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        return (
            f"not installed: {', '.join(missing)}"
            if missing
            else "only root can make namespaces"
        )
    tried = subprocess.run(
        [*_APART, "true"], capture_output=True, text=True, check=False
    )
    return tried.stderr.strip() or None


class Slurm:
    """The running one; its folder is on the file system that all nodes share."""

    def __init__(self, folder: Path, controller: int) -> None:
        self._folder = folder
        self._inside = [
            "nsenter",
            f"--target={controller}",
            "--net",
            "--mount",
            "--pid",
            "--uts",
        ]
        self._environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, *command: str) -> str:
        """What a command on the controller prints. Raises CalledProcessError."""
        inside = [*self._inside, *command]
        return subprocess.run(
            inside, env=self._environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    def add(self, name: str) -> None:
        """Have a node begin."""
        unshare = ["unshare", "--mount", "--uts", "--ipc", *_PROCESSES]
        script = (_FILES / "node.sh").read_text()
        with (self._folder / f"{name}.out").open("ab") as out:
            inside = [*self._inside, "nsenter", f"--net=/run/netns/{name}"]
            command = [*inside, *unshare, "bash", "-c", script, f"node-{name}"]
            variables = self._environment | {"FOLDER": str(self._folder), "NAME": name}
            self._nodes[name] = subprocess.Popen(
                command, env=variables, stdout=out, stderr=out
            )

    def lose(self, name: str) -> None:
        """End a node, and all that runs on it, at once."""
        if (node := self._nodes.pop(name, None)) is not None:
            # ours waits for it
            self.run("pkill", "-KILL", "--full", f"^unshare .* node-{name}$")
            node.wait()

    def wait_for_nodes(self) -> None:
        """Until Slurm can give all of them away. Raises TimeoutError."""
        end = time.monotonic() + _SECONDS
        while self.run("sinfo", "--noheader", "--format=%t %D").split() != [
            "idle",
            str(len(NODES)),
        ]:
            if time.monotonic() > end:
                raise TimeoutError(
                    self.run("sinfo", "--long", "--Node")
                    + (self._folder / "n1.log").read_text()
                )
            time.sleep(0.5)

    def submit(self, script: Path, *options: str) -> str:
        """The id of the job that a script has become."""
        return self.run(
            "sbatch", "--parsable", f"--chdir={script.parent}", *options, str(script)
        ).strip()

    def job(self, number: str) -> dict[str, str]:
        """What Slurm says of a job ("JobState", "Restarts", "ExitCode")."""
        return dict(
            re.findall(r"(\w+)=(\S*)", self.run("scontrol", "show", "job", number))
        )

    def ended(self, number: str) -> dict[str, str]:
        """The same, once the job has ended and is not to begin again."""
        while (found := self.job(number))["JobState"] in _UNDER_WAY:
            time.sleep(0.5)
        return found


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """A Slurm with both nodes, until the end of the block."""
    for name in ("munge", "state", *NODES):
        (folder / name).mkdir(parents=True)
    (folder / "munge" / "key").write_bytes(os.urandom(1024))
    (folder / "munge" / "key").chmod(0o400)
    (folder / "hosts").write_text(
        "127.0.0.1 localhost\n10.77.0.1 controller\n10.77.0.11 n1\n10.77.0.12 n2\n"
    )
    (folder / "slurm.conf").write_text(
        (_FILES / "slurm.conf").read_text().format(folder=folder)
    )
    (folder / "gres.conf").write_text(_GPUS)
    command = [*_APART, *_PROCESSES, "bash", str(_FILES / "controller.sh")]
    with (folder / "controller.out").open("wb") as out:
        environment = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "FOLDER": str(folder),
        }
        outer = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    try:
        while not (folder / "ready").exists():
            if outer.poll() is not None:
                raise RuntimeError((folder / "controller.out").read_text())
            time.sleep(0.1)
        inner = subprocess.run(
            ["pgrep", "--parent", str(outer.pid)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        made = Slurm(folder, int(inner.stdout.split()[0]))
        with contextlib.ExitStack() as stack:
            for name in NODES:
                stack.callback(made.lose, name)
                made.add(name)
            made.wait_for_nodes()
            yield made
    finally:
        outer.send_signal(signal.SIGKILL)
        outer.wait()
