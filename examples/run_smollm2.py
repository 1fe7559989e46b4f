"""A real model from start to report: makes SmolLM2, runs the sweep in smollm2.yaml,
writes the report.

    python -m examples.run_smollm2 --out runs/smollm2 [--items 200] [--task xquad:DIR]
    [--chat]

Without --task it asks English XQuAD where the Hugging Face hub can be reached, and the
questions of passages.yaml where it cannot. The sweep as it is run lies beside the run
(runs/smollm2.yaml). The same command finishes what a killed one left.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from examples.make_questions import write_questions
from examples.make_smollm2 import REPOSITORY, ExampleError

SWEEP = Path(__file__).with_name("smollm2.yaml")
_HUB_SECONDS = 10.0


def main() -> int:
    """The command line. Exit codes are those of `resurface sweep`; 2 where the model
    cannot be made."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--out",
        type=Path,
        default=REPOSITORY / "runs" / "smollm2",
        help="the run directory",
    )
    parser.add_argument(
        "--items",
        type=int,
        help="questions per checkpoint; 0: all (default: those of smollm2.yaml)",
    )
    parser.add_argument(
        "--task",
        help="xquad, xquad:DIR or jsonl:FILE (default: XQuAD, else our own questions)",
    )
    parser.add_argument(
        "--chat", action="store_true", help="ask through the model's chat template"
    )
    arguments = parser.parse_args()
    # paths in smollm2.yaml are relative to the repository
    out = Path(os.path.relpath(arguments.out, REPOSITORY))
    os.chdir(REPOSITORY)
    try:
        sweep = _write_sweep(out, arguments.task, arguments.items, chat=arguments.chat)
    except (ExampleError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    # Each in a process of its own: making the model goes offline and imports much that
    # the sweep does not need.
    return _run("examples.make_smollm2") or _run(
        "launch.commands.cli", "sweep", str(sweep), "--out", str(out)
    )


def _run(module: str, *arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", module, *arguments]).returncode


def _write_sweep(
    out: Path, task: str | None, items: int | None, *, chat: bool = False
) -> Path:
    """The sweep file of the run at `out`: a run that has begun keeps its task, number
    of items and kind of prompt.

    Raises ExampleError if these are not the requested ones.
    """
    file = out.with_name(f"{out.name}.yaml")
    if (out / "run.json").exists() and file.exists():
        (begun,) = yaml.safe_load(file.read_text(encoding="utf-8"))["tasks"]
        for name, wanted in (("task", task), ("items", items)):
            if wanted is not None and begun[name] != wanted:
                raise ExampleError(
                    f"{out}: its run has {name} {begun[name]!r}, not {wanted!r}; choose"
                    " another --out"
                )
        if chat and not begun.get("chat"):
            raise ExampleError(
                f"{out}: its run has no chat prompts; choose another --out"
            )
        return file
    document = yaml.safe_load(SWEEP.read_text(encoding="utf-8"))
    (asked,) = document["tasks"]
    if task is not None:
        asked["task"] = task
    elif not _hub_has_xquad():
        own = out.with_name("questions.jsonl")
        write_questions(own)
        asked["task"] = f"jsonl:{own}"
        print(
            "the hub cannot be reached: the questions are those of"
            " examples/passages.yaml",
            flush=True,
        )
    if not asked["task"].startswith("xquad"):
        asked.pop("languages")  # those that the file has
    if items is not None:
        asked["items"] = items
    if chat:
        asked["chat"] = True
    out.parent.mkdir(parents=True, exist_ok=True)
    header = f"# examples/{SWEEP.name} as run_smollm2.py runs it in {out.name}/\n"
    file.write_text(
        header + yaml.safe_dump(document, sort_keys=False), encoding="utf-8"
    )
    return file


def _hub_has_xquad() -> bool:
    """Whether the hub answers. One request: `datasets` would try for half a minute."""
    from huggingface_hub import HfApi

    try:
        answer: Any = HfApi().dataset_info("google/xquad", timeout=_HUB_SECONDS)
    except Exception:  # no network, offline mode, a proxy, a mirror without it: each raises another library's
        return False
    return answer is not None


if __name__ == "__main__":
    sys.exit(main())
