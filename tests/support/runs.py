"""Running the real command line on tiny models, for tests that need a whole run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from tests.support.guard import GUARD, UNSTARTED

KEY = ["checkpoint", "task", "language", "item_id", "format", "probe", "seed", "index"]

SECRET = "hf_" + "t0ps3cr3t" * 3  # no run may tell it anybody


def environment() -> dict[str, str]:
    """Quiet, offline and never on somebody else's cluster; without Ray and vLLM for a test that is not marked slow."""
    keep = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    if not GUARD.permits:
        keep["PYTHONPATH"] = os.pathsep.join([str(UNSTARTED), *filter(None, [keep.get("PYTHONPATH")])])
    return keep | {"HF_HUB_OFFLINE": "1", "HF_TOKEN": SECRET, "COLUMNS": "160"}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "launch.commands.cli", *map(str, arguments)]


def resurface(
    *arguments: str | Path, cwd: Path | None = None, cluster: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end; `cluster`: the address of a running Ray."""
    variables = environment() | ({} if cluster is None else {"RAY_ADDRESS": cluster})
    return subprocess.run(command(*arguments), env=variables, cwd=cwd, capture_output=True, text=True, check=False)


def start(*arguments: str | Path, log: Path) -> subprocess.Popen[bytes]:
    """Run the command line in the background, its output in `log`."""
    with log.open("ab") as output:
        return subprocess.Popen(command(*arguments), env=environment(), stdout=output, stderr=output)


def records(run: Path) -> pd.DataFrame:
    """Every record of a run, in one order, without the counter that says how warm the cache happened to be."""
    frames = [pq.read_table(path).to_pandas() for path in sorted((run / "records").glob("*/*/*.parquet"))]
    found: pd.DataFrame = pd.concat(frames).sort_values(KEY).reset_index(drop=True).drop(columns="cached_tokens")
    return found


def assert_alike(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """The same records in the same order, up to rounding in float32: a batch changes it.

    Sums over 32 tokens were seen to differ by 4e-6 nats.
    """
    one, other = (frame.reset_index(drop=True) for frame in (found, expected))
    for frame in (one, other):
        ids = [None if each is None else tuple(each) for each in frame["token_ids"]]
        frame["token_ids"] = pd.Series(ids, dtype=object)
    pd.testing.assert_frame_equal(one, other, check_exact=False, rtol=0, atol=1e-4)
