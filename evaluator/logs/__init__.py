"""Other programs' logs: a reader for each of lm-eval, inspect, lighteval and NeMo
Evaluator.

A new program is an entry of READERS."""

from pathlib import Path

from evaluator.core.errors import InputError
from evaluator.logs.base import LoggedTask, Reader, files_at
from evaluator.logs.inspect_ai import Inspect
from evaluator.logs.lighteval import Lighteval
from evaluator.logs.lm_eval import LmEval
from evaluator.logs.nemo import Nemo

READERS: tuple[Reader, ...] = (LmEval(), Inspect(), Lighteval(), Nemo())


def read_logged(path: Path) -> list[LoggedTask]:
    """The newest logs at a path. Raises InputError for none, for those of two
    programs and for compressed or damaged ones."""
    logs = {}
    for reader in READERS:
        for file in files_at(path, f"{reader.names}.gz"):
            raise InputError(f"{file}: compressed with gzip: unpack it (gunzip)")
        if files := reader.files(path):
            logs[reader] = files
    if len(logs) > 1:
        programs = " and ".join(reader.program for reader in logs)
        raise InputError(f"{path}: logs of {programs}: name those of one")
    for reader, files in logs.items():
        return reader.read(path, files)
    for reader in READERS:
        if lacking := reader.lacking(path):
            raise InputError(f"{path}: {lacking}")
    known = [f"{reader.program} ({reader.names})" for reader in READERS]
    raise InputError(f"{path}: not a run directory, and no log of {', '.join(known)}")
