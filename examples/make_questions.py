"""Writes the example's own questions (passages.yaml) as JSON lines, for where XQuAD is
not at hand.

python -m examples.make_questions --out runs/questions.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

PASSAGES = Path(__file__).with_name("passages.yaml")


def questions(passages: Path = PASSAGES) -> Iterator[dict[str, Any]]:
    """The items, in the fields that the task `jsonl:FILE` reads; ids are
    `<passage>-<number from 1>`.

    Raises ValueError for an answer that does not stand in its passage exactly once, or
    that its question gives away.
    """
    for passage in yaml.safe_load(passages.read_text(encoding="utf-8")):
        for number, (question, answer) in enumerate(
            passage["questions"].items(), start=1
        ):
            name = f"{passage['id']}-{number}"
            if passage["text"].count(answer) != 1:
                raise ValueError(
                    f"{passages}: {name}: {answer!r} does not stand in the passage"
                    " exactly once"
                )
            if answer.lower() in question.lower():
                raise ValueError(
                    f"{passages}: {name}: the question gives {answer!r} away"
                )
            yield {
                "id": name,
                "language": "english",
                "context": passage["text"],
                "question": question,
                "answers": [answer],
            }


def write_questions(out: Path) -> int:
    """Write them to `out`, in place of what is there, and return how many there are."""
    lines = [json.dumps(item, ensure_ascii=False) + "\n" for item in questions()]
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.partial")
    partial.write_text("".join(lines), encoding="utf-8")
    partial.replace(out)
    return len(lines)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    out = parser.parse_args().out
    print(f"{out}: {write_questions(out)} questions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
