"""The documentation as data: its pages, the prose in them, their links, code blocks
and commands."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PROSE = [
    ROOT / name
    for name in ("README.md", "CHANGELOG.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
] + DOCS
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
PAGES = [
    *(*PROSE, *RESULTS, ROOT / "SECURITY.md", ROOT / "SKILL.md"),
    *(
        ROOT / folder / "README.md"
        for folder in ("benchmarks", "examples", "launch/reference_model", "tests/gpu")
    ),
]
_BLOCK = re.compile(
    r"^(?:<!-- example: (\S+) -->\n)?```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A fenced block. `file`: what the page calls the file with this content, from
    the comment before the fence."""

    page: str
    language: str
    text: str
    file: str | None


def blocks(page: Path) -> list[Block]:
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [
        Block(page.name, language, text, file or None) for file, language, text in found
    ]


def example(page: str, file: str) -> str:
    """What a page of docs/ shows as the content of a file."""
    return next(each.text for each in blocks(ROOT / "docs" / page) if each.file == file)


def commands(page: Path) -> list[list[str]]:
    """Every command line of a page's blocks without a language, split into words;
    comments are left out."""
    lines = [
        line
        for each in blocks(page)
        if each.language == ""
        for line in each.text.replace("\\\n", " ").splitlines()
    ]
    return [
        shlex.split(line, comments=True)
        for line in lines
        if re.match(r"(?:resurface|make|pip|python) ", line)
    ]


def sentences(page: Path) -> list[str]:
    """A page's prose: no code blocks, tables or headings; an item of a list ends a
    sentence."""
    text = re.sub(r"```.*?```", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found: list[str] = []
    for part in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.)\s+", text):
        lines = [
            line
            for line in part.splitlines()
            if not line.lstrip().startswith(("|", "#", ">", "![", "<!--"))
        ]
        plain = re.sub(
            r"`[^`]*`", "CODE", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(lines))
        )
        found += [
            each
            for each in re.split(r"(?<=[.!?])\s+(?=[A-Z\"'(])", plain.strip())
            if len(each.split()) > 2
        ]
    return found


def links(page: Path) -> list[tuple[str, str]]:
    """Each link and picture to a place of this project: its path ("" for the page
    itself), and its anchor or ""."""
    text = re.sub(
        r"```.*?```|`[^`]*`", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    targets = [
        target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target
    ]
    return [
        (path, anchor)
        for path, _, anchor in (target.partition("#") for target in targets)
    ]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and Zensical make them."""
    text = re.sub(r"```.*?```", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {
        re.sub(r" ", "-", re.sub(r"[^\w\- ]", "", title.lower())) for title in titles
    }
