"""The documentation holds what it promises: its length, its English, its links, its
figures, and what it names."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from evaluator.core.config import validated
from evaluator.deciding.policy import Policy
from evaluator.engine.config import EngineConfig
from evaluator.tasks.data_sets import DataSource
from launch.commands import cli
from launch.sweep.config import Resources, SweepConfig
from tests.support.documents import (
    DOCS,
    PAGES,
    PROSE,
    ROOT,
    anchors,
    blocks,
    commands,
    links,
    sentences,
)

README = ROOT / "README.md"
every_page = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: str(page.relative_to(ROOT))
)


def test_pages_are_short_and_plain():
    text = README.read_text(encoding="utf-8")
    assert text.count("\n") <= 112
    assert len(text.split()) <= 900
    words = {
        page: len(page.read_text(encoding="utf-8").split())
        for page in (README, *DOCS, ROOT / "CHANGELOG.md")
    }
    studies = [page for page in words if page.parent.name == "studies"]
    assert max(words[page] for page in studies) <= 500
    assert sum(words.values()) - sum(words[page] for page in studies) <= 17_200
    # A smoke detector: long sentences are hard to read.
    found = [sentence for page in PROSE for sentence in sentences(page)]
    lengths = [len(sentence.split()) for sentence in found]
    assert sum(lengths) / len(lengths) <= 15
    assert sum(length > 25 for length in lengths) / len(lengths) <= 0.1


@every_page
def test_links_lead_somewhere(page: Path):
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def test_site_has_each_linked_file():
    """`make docs` copies files; a page's link within this repository leads to one of
    them, or to another host's."""
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    patterns = re.search(r"cp --parents (.*) build/pages", recipe)[1].split()
    copied = {path for pattern in patterns for path in ROOT.glob(pattern)}
    assert {README, *DOCS} <= copied
    targets = {
        (page.parent / path).resolve(): page.name
        for page in sorted(copied & {*PAGES})
        for path, _ in links(page)
        if path
    }
    assert {path: page for path, page in targets.items() if path not in copied} == {}


def test_llms_txt_lists_every_page():
    listed = (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8")
    for page in DOCS:
        title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        path = page.relative_to(ROOT / "docs")
        assert f"- [{title}]({path})" in listed


def test_each_option_stands_in_a_page():
    text = "\n".join(page.read_text(encoding="utf-8") for page in (README, *DOCS))
    named = set(re.findall(r"--[a-z][a-z-]*", text))
    missing = []
    for name, command in get_command(cli.app).commands.items():
        for option in command.params:
            spelled = {
                each
                for each in (*option.opts, *option.secondary_opts)
                if each.startswith("--")
            }
            if spelled and not spelled & named:
                missing.append((name, *spelled))
    assert missing == []


def test_the_map_names_files_that_exist():
    named = re.findall(
        r"(?:evaluator|launch|pruning|quantising|benchmarks|tests)/[\w./-]*",
        (ROOT / "ARCHITECTURE.md").read_text(),
    )
    assert len(named) > 30
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_readme_figures_equal_the_card():
    """Said, picked and picked only as in the card; still said is the rest, which the
    card gives as lost."""
    card = (ROOT / "benchmarks" / "results" / "smollm2.md").read_text(encoding="utf-8")
    section = card[
        card.index("## English, raw prompts") : card.index("`Delta_PR` compares")
    ]
    measured = {
        line.split("|")[1].strip(): line.split("|")[2:]
        for line in section.splitlines()
        if line.count("|") > 6
    }
    rows = [
        [cell.strip(" %") for cell in line.strip("|").split("|")]
        for line in _table(README, "| checkpoint | said")
    ]
    assert {name for name, *_ in rows} == {*measured} - {"checkpoint", "---"}
    for name, opened, chosen, said, picked in rows:
        cells = [cell.split("(")[0].strip() for cell in measured[name]]
        assert [opened, chosen, picked] == [cells[0], cells[1], cells[3]], name
        assert name == "dense" or float(said) == pytest.approx(
            100 - float(cells[3]) - float(cells[4]), abs=0.15
        )


def _table(page: Path, beginning: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return text[text.index(beginning) :].partition("\n\n")[0].splitlines()[2:]


def test_skill_is_short():
    skill = ROOT / "SKILL.md"
    assert skill.read_text(encoding="utf-8").count("\n") <= 120
    named = {words[1] for words in commands(skill) if words[0] == "resurface"}
    assert {"eval", "gate", "status"} <= named


def test_the_site_leads_to_every_page():
    def pages(entries):
        return [
            page for entry in entries for _, value in entry.items()
            for page in (pages(value) if isinstance(value, list) else [value])
        ]  # fmt: skip

    named = pages(
        tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"][
            "nav"
        ]
    )
    assert {ROOT / page for page in named} == {README, ROOT / "CHANGELOG.md", *DOCS} - {
        ROOT / "docs" / "index.md"
    }
    assert {path for path, _ in links(ROOT / "docs" / "index.md")} == {
        str(page.relative_to(ROOT / "docs")) for page in DOCS
    } - {"index.md"}


@every_page
def test_documented_options_exist(page: Path):
    program = get_command(cli.app)
    targets = set(
        re.findall(
            r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    for words in commands(page):
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= targets, words
        elif words[0] == "resurface":
            context = program.make_context(
                "resurface", words[1:2], resilient_parsing=True
            )
            program.commands[words[1]].make_context(words[1], words[2:], parent=context)


@every_page
def test_every_sweep_file_is_one(page: Path):
    """A block of YAML is a sweep file, some keys of one, a policy, or a mapping."""
    least = {"models": {"dense": "models/mine"}, "tasks": [{"task": "gazetteer"}]}
    for block in blocks(page):
        document = yaml.safe_load(block.text) if block.language == "yaml" else None
        if isinstance(document, dict) and "default" in document:
            assert validated(Policy, document, page.name).tasks
        elif isinstance(document, dict) and "data" in document:
            assert validated(DataSource, document, page.name).fields
        # a workflow of CI, or an object of Kubernetes
        elif isinstance(document, dict) and not {"jobs", "steps", "kind"} & {*document}:
            assert validated(SweepConfig, {**least, **document}, page.name).tasks


def test_reference_states_the_defaults():
    defaults = {"engine": EngineConfig(), "resources": Resources()}
    stated = 0
    for block in blocks(ROOT / "docs" / "reference.md"):
        if "with the defaults" in block.text:
            ((name, values),) = yaml.safe_load(block.text).items()
            values["cuda_graphs"] = None  # stands for full
            for key in values.keys() & vars(defaults[name]).keys():
                assert values[key] == getattr(defaults[name], key), key
                stated += 1
    assert stated > 15


def test_help_is_short_with_example(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for name, command in get_command(cli.app).commands.items():
        assert CliRunner().invoke(cli.app, [name, "--help"]).output.count(
            "\n"
        ) in range(5, 85), name
        assert command.help, name
        assert command.epilog, name
        assert command.epilog.startswith("Example:"), name
