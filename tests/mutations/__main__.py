"""Changes one line of the product at a time, and sees whether its tests fail.

    python -m tests.mutations [--tree DIR] [--only AREA] --out TABLE.json

`mutations.json` has the changed lines, and for each changed file its fast tests. All
happens in a copy of the tree's tracked files. `--out TABLE.md` writes the table for
people. An unchanged tree must pass first. README.md has the results.
"""

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_LISTS = Path(__file__).with_name("mutations.json")
_SECONDS = 300  # of the tests of one file; a mutation may never end
Row = dict[str, str]


class Mutation(NamedTuple):
    """A line before and after, each with the line above where it is not alone."""

    area: str
    file: str
    function: str
    before: str
    after: str

    def applied(self, text: str) -> str | None:
        """None: the line is not there exactly once."""
        text, line = f"\n{text}", f"\n{self.before}\n"
        if text.count(line) != 1:
            return None
        return text.replace(line, f"\n{self.after}\n")[1:]

    def row(self, result: str) -> Row:
        """Of the table; a change without the lines that stay."""
        old, new = (each.split("\n")[-1].strip() for each in (self.before, self.after))
        return {
            "area": self.area,
            "place": f"{self.file}: {self.function}",
            "change": f"`{old}` -> `{new}`",
            "result": result,
        }


def copied(tree: Path, copy: Path) -> None:
    """The files that git tracks and that are there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=tree, check=True, capture_output=True, text=True
    )
    for name in listed.stdout.split("\0"):
        if (tree / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tree / name, copy / name)


def passes(copy: Path, tests: Sequence[str]) -> bool:
    """Whether these tests pass; those that are not there do not count."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow"]
    command += ["-p", "no:cacheprovider", *(t for t in tests if (copy / t).exists())]
    alone = {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = subprocess.run(
            command,
            cwd=copy,
            env=os.environ | alone,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 0


def results(
    copy: Path, mutations: Sequence[Mutation], tests: dict[str, list[str]]
) -> Iterator[Row]:
    """A row for each mutation; afterwards its file is as before."""
    unchanged = functools.cache(lambda *names: passes(copy, names))
    for mutation in mutations:
        path, names = copy / mutation.file, tests[mutation.file]
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        changed = mutation.applied(text)
        if changed is None:
            yield mutation.row("line gone")
            continue
        if not unchanged(*names):
            sys.exit(f"error: an unchanged tree fails: {' '.join(names)}")
        path.write_text(changed, encoding="utf-8")
        yield mutation.row("unnoticed" if passes(copy, names) else "noticed")
        path.write_text(text, encoding="utf-8")


def table(rows: Sequence[Row]) -> str:
    """In Markdown."""
    heads = list(Mutation("", "", "", "", "").row(""))
    lines = [heads, ["---"] * len(heads)]
    lines += [[each.replace("|", "\\|") for each in row.values()] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, default=Path())
    parser.add_argument("--only", help="one area of the list")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    lists = json.loads(_LISTS.read_text(encoding="utf-8"))
    mutations = [Mutation(**each) for each in lists["mutations"]]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        copied(options.tree, Path(folder))
        asked = [m for m in mutations if options.only in (None, m.area)]
        for row in results(Path(folder), asked, lists["tests"]):
            print(*row.values(), sep=" | ", flush=True)
            rows.append(row)
    as_json = json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    text = table(rows) if options.out.suffix == ".md" else as_json
    options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
