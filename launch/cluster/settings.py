"""The settings of a cluster's files. Each value fits the place where a template writes it.

Shell scripts and YAML quote values. Quoting does not help in Slurm's comments, nor in commands that Ray forwards: Ray
quotes them for Windows' shell. Settings refuse unsafe values there.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, fields
from pathlib import Path

from evaluator.core.errors import InputError

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,+@:/-]*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?")  # of Kubernetes, with room for what is added to it
_TIME = re.compile(r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d){0,2}")  # as Slurm writes it
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./=@%+,:~-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Options of `resurface render`; None: not given."""

    out: Path  # the run directory, on a file system that all nodes share
    sweep: str  # the sweep file as the cluster's machines see it, or a bundled recipe
    name: str = "resurface"  # of the job
    nodes: int = 1
    gpus: int = 0  # per node
    cpus: int | None = None  # per node
    memory: str | None = None  # per node
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    setup: str | None = None  # a command before all others, as `source .venv/bin/activate`: it is run, not quoted
    mode: str = "symmetric"  # of Slurm
    image: str | None = None
    claim: str | None = None  # a PersistentVolumeClaim, mounted at `mount`
    mount: str = "/shared"
    namespace: str | None = None
    queue: str | None = None  # of Kueue
    tries: int = 3
    ray_version: str | None = None
    address: str | None = None  # of a Ray cluster's dashboard
    head: str | None = None  # a host, for `ray up`
    workers: tuple[str, ...] = ()
    user: str | None = None

    def __post_init__(self) -> None:
        """Raises InputError naming the option and the value."""
        for each in fields(self):
            value = getattr(self, each.name)
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str | Path) and (not str(text) or re.search(r"[\x00-\x1f\x7f]", str(text))):
                    raise _refused(each.name, value, "is empty or holds a control character")
        _need(self.nodes >= 1, "nodes", self.nodes, "at least one is needed")
        _need(self.gpus >= 0, "gpus", self.gpus, "cannot be fewer than none")
        _need(self.cpus is None or self.cpus >= 1, "cpus", self.cpus, "at least one is needed")
        _need(self.tries >= 1, "tries", self.tries, "at least one is needed")
        for name in ("name", "partition", "account"):
            self._need_form(name, _WORD, "letters, digits and _ . , + @ : / - only")
        for name in ("namespace", "claim", "queue"):
            self.need_label(name)
        self._need_form("time", _TIME, "minutes, HH:MM:SS or D-HH:MM:SS, as Slurm has it")
        self._need_form(
            "memory", re.compile(r"\d+([KMGT]i?)?"), "a number and K, M, G or T (Kubernetes also Ki, Mi, Gi, Ti)"
        )
        for host in filter(None, (self.head, *self.workers)):
            _need(bool(_HOST.fullmatch(host)), "head and --workers", host, "is no host")
        if self.setup is not None:
            _need(_words(self.setup) is not None, "setup", self.setup, "a quote is not closed")
        self._need_form("user", re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*"), "is no user's name")

    def need_plain(self, *names: str) -> None:
        """Raises InputError if Ray would change one of these in a command that it forwards."""
        for name in names:
            if not _PLAIN_PATH.fullmatch(str(getattr(self, name))):
                raise _refused(
                    name, getattr(self, name), "letters, digits and _ . / = @ % + , : ~ - only: Ray hands it on"
                )

    def need_mount(self) -> None:
        """Raises InputError if pods cannot mount the claim there."""
        holds = self.mount.startswith("/") and ":" not in self.mount
        _need(holds, "mount", self.mount, "an absolute path without a colon is needed, as Kubernetes has it")

    def need_distinct_hosts(self) -> None:
        """Raises InputError if a host appears twice. Ray accepts one node per host."""
        hosts = [self.head, *self.workers]
        for host in hosts:
            _need(hosts.count(host) == 1, "head and --workers", host, "occurs twice")

    def need_uncommented_setup(self) -> None:
        """Raises InputError if the setup ends in a comment, which would hide the later commands on its line."""
        if self.setup is not None:
            shown = _words(self.setup, comments=True) == _words(self.setup)
            _need(shown, "setup", self.setup, "what follows on the line would be part of the comment after #")

    def need_label(self, name: str) -> None:
        """Raises InputError for an impossible name in Kubernetes."""
        self._need_form(name, _LABEL, "small letters, digits and hyphens only, as Kubernetes has them")

    def need(self, what: str, *names: str) -> None:
        """Raises InputError if one of these is missing. `what` explains it."""
        for name in names:
            if not getattr(self, name):
                raise InputError(f"Missing option '--{_option(name)}': {what}")

    def _need_form(self, name: str, form: re.Pattern[str], why: str) -> None:
        value = getattr(self, name)
        _need(value is None or bool(form.fullmatch(value)), name, value, why)


def _words(command: str, *, comments: bool = False) -> list[str] | None:
    """The words of a command, as a shell splits it; None if a quote is open."""
    try:
        return shlex.split(command, comments=comments)
    except ValueError:
        return None


def _need(holds: bool, name: str, value: object, why: str) -> None:
    if not holds:
        raise _refused(name, value, why)


def _refused(name: str, value: object, why: str) -> InputError:
    shown = str(value) if isinstance(value, Path) else value
    return InputError(f"--{_option(name)}: {shown!r}: {why}")


def _option(name: str) -> str:
    return {"sweep": "sweep-path"}.get(name, name.replace("_", "-"))
