"""YAML from somebody who means harm."""

import os

import pytest

from evaluator.core.document import read_document
from launch.sweep.config import load_sweep
from tests.support import sweeps

SOUND = "models: {a: bundled}\ntasks: [{task: gazetteer}]\n"


@pytest.fixture
def refused(tmp_path):
    def line(text):
        file = tmp_path / "sweep.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        told = sweeps.refused(load_sweep, file)
        assert str(file) in told or "task" in told
        return told

    return line


@pytest.mark.parametrize(
    "line",
    [
        "{0}: &{0} [{1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}]",
        "{0}: &{0} {{<<: [{1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}]}}",
    ],
)
def test_aliases_of_millions_are_refused(refused, line):
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [line.format(f"a{n}", f"*a{n - 1}") for n in range(1, 9)]
    assert "its aliases stand for more than 100,000 entries" in refused(
        "\n".join(lines)
    )


def test_tags_and_pipes_are_refused(tmp_path, refused):
    marker = tmp_path / "made"
    assert "could not determine a constructor" in refused(
        f"models: !!python/object/apply:os.mkdir ['{marker}']\n"
    )
    assert not marker.exists()
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "not a regular file" in sweeps.refused(read_document, tmp_path / "pipe.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "models: &a {x: *a}",
        "models: " + "[" * 50_000,
        "seed: " + "9" * 5000,
        "seed: 2001-02-31",
        "? {a: b}\n: c\n",
        b"models: {a\0: b}\n",
        "models: {a: bundled}\nmodels: {b: bundled}\n",
    ],
)
def test_broken_document_is_one_line(refused, text):
    assert refused(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tasks: {task: gazetteer}", 'tasks: {"task": "gazetteer"}: a list is needed'),
        (
            "seed: 9223372036854775808",
            "seed: 9223372036854775808: Input should be less than",
        ),
        ("models: {a: b\ntasks: [", "line 1, column 9"),
        (
            "engine: {cuda_graphs: full, compile: true}",
            "cuda_graphs: 'full': compile: true has graphs of its own",
        ),
    ],
)
def test_mistakes_are_told_in_yaml(refused, text, told):
    line = refused(text)
    assert told in line
    assert "tuple" not in line
    assert "unicode string" not in line


@pytest.mark.parametrize(
    "content", ["s3cret: [", "[core]\ns3cret = 1", "s3cret", "password: s3cret"]
)
def test_other_files_are_not_quoted(tmp_path, content):
    (tmp_path / "other").write_text(content)
    (tmp_path / "sweep.yaml").write_text("include: [other]")
    assert "s3cret" not in sweeps.refused(load_sweep, tmp_path / "sweep.yaml")


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", "a\\n", ""])
def test_name_is_never_a_path(refused, name):
    assert "models" in refused(
        f'models: {{"{name}": bundled}}\ntasks: [{{task: gazetteer}}]\n'
    )
    assert "name" in refused(
        f'models: {{a: bundled}}\ntasks: [{{task: gazetteer, name: "{name}"}}]\n'
    )
    setting = f'{{method: wanda, sparsity: 0.5, label: "{name}"}}'
    assert "label" in refused(
        f"models: {{a: bundled}}\nprune: [{setting}]\ntasks: [{{task: gazetteer}}]\n"
    )
