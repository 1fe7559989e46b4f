"""`resurface sweep RECIPE --explain`."""

import yaml

from evaluator.metrics.published import paper
from launch.sweep.config import RECIPES, bundled_recipes
from tests.support.runs import typed


def test_each_recipe_is_explained():
    recipes = {name.removeprefix("small/") for name in bundled_recipes()}
    assert recipes == set(paper()["recipes"])


def test_explanation(monkeypatch, capsys):
    """A recipe names its question, figure, cost and exclusions."""
    assert typed(monkeypatch, "sweep", "one_shot", "--explain") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "question: Does one example in the prompt repair the gap?"
    assert lines[1] == "fills: Table 1 (arXiv:2606.17609v1)"
    assert lines[2] == "checkpoints: 2, 1 of them made by the sweep"
    # 8 languages of 200 items, 113 in Bengali; two formats
    assert lines[3].startswith("cost: 3,426 items over all checkpoints, 6,852 requests")
    assert "113 Bengali items" in lines[4]


def test_own_file_of_a_recipes_name(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "main.yaml").write_text(
        "models: {a: bundled}\ntasks: [{task: gazetteer, probes: [greedy]}]\n"
    )
    assert typed(monkeypatch, "sweep", "main.yaml", "--explain") == 2
    assert "main.yaml is no bundled recipe" in capsys.readouterr().err


def test_recipe_is_printed(monkeypatch, capsys):
    """As it can be stored, with its place in a comment."""
    assert typed(monkeypatch, "sweep", "two_models", "--show") == 0
    text = capsys.readouterr().out
    file = RECIPES / "two_models.yaml"
    assert text.startswith(f"# {file}\n")
    assert yaml.safe_load(text) == yaml.safe_load(file.read_text(encoding="utf-8"))
