"""What a sweep expands to, how joined sweeps share their checkpoints, and which
models belong together in a part."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from evaluator.core.config import validated
from evaluator.core.document import digest
from launch.sweep.config import RECIPES, SweepConfig, find_recipe, load_sweep
from launch.sweep.jobs import expand, parts_of, unfetched
from tests.support.sweeps import RUN, refused
from tests.support.sweeps import expanded as jobs

MAIN = yaml.safe_load("""
models: {dense: bundled}
prune: [{method: wanda, sparsity: 0.5}]
calibration: {source: gazetteer, samples: 8}
tasks: [{task: gazetteer, items: 4, probes: [greedy]}]
""")


def joined(*documents, **more):
    return jobs({"include": list(documents), **more})


def with_tasks(*tasks, **changes):
    return {
        **MAIN,
        **changes,
        "tasks": [{"task": "gazetteer", "items": 4, **task} for task in tasks],
    }


def test_models_times_settings_times_tasks():
    document = MAIN | yaml.safe_load("""
    models: {a: x, b: y}
    prune:
      - {method: wanda, sparsity: [0.5, 0.6]}
      - {method: magnitude, pattern: "2:4"}
    """)
    made = jobs(document)
    assert list(made) == [
        *("a", "a-wanda-0.5", "a-wanda-0.6", "a-magnitude-2of4"),
        *("b", "b-wanda-0.5", "b-wanda-0.6", "b-magnitude-2of4"),
    ]
    assert {name: job.base for name, job in made.items()}["b-wanda-0.5"] == "b"
    assert made["a"].base is None
    assert made["a"].path == Path("x")
    assert made["a-wanda-0.6"].path == RUN / "checkpoints" / "a-wanda-0.6"
    assert made["a-wanda-0.6"].prune.source == Path("x")
    assert made["a-magnitude-2of4"].prune.calibration is None


WANDA = "method: wanda, sparsity: 0.5"
MAGNITUDE = "method: magnitude, sparsity: 0.5"
ENGLISH = "calibration: {source: 'gazetteer:english', samples: 8}"


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ("[{method: layers, sparsity: [0.25, 0.5]}]", "layers-0.25 layers-0.5"),
        (
            "[{method: drop, pattern: ['20-25,28', '3,1-2']}]",
            "drop-20to25_28 drop-1to3",
        ),
        (
            f"[{{{WANDA}}}, {{{WANDA}, {ENGLISH}}}]",
            "wanda-0.5 wanda-0.5-gazetteer_english",
        ),
        (f"[{{{WANDA}}}, {{{WANDA}, {ENGLISH}, label: en}}]", "wanda-0.5 wanda-0.5-en"),
        (
            f"[{{{WANDA}, allocation: owl}}, {{{WANDA}, group: matrix}}]",
            "wanda-0.5-owl wanda-0.5-matrix",
        ),
    ],
)
def test_checkpoint_is_named_after_setting(settings, names):
    made = jobs({**MAIN, "prune": yaml.safe_load(settings)})
    assert list(made)[1:] == names.split()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            "[{method: drop, pattern: [1-3, '1,2,3']}]",
            "checkpoint 'drop-1to3' occurs twice",
        ),
        # the method's own group, spelled out
        (f"[{{{WANDA}}}, {{{WANDA}, group: row}}]", "give a setting a label"),
        (
            f"[{{{WANDA}}}, {{method: wanda, sparsity: [0.5, 1.5]}}]",
            """s.yaml: prune.1: {"method": "wanda", "sparsity": [0.5, 1.5]}""",
        ),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    assert message in refused(jobs, {**MAIN, "prune": yaml.safe_load(settings)})


def test_bad_names_are_errors():
    """Else the run would end at its first record, or log."""
    message = refused(jobs, {**MAIN, "models": {"a" * 191: "x", "b": "y"}})
    assert "its name has 201 characters; the limit is 200" in message
    models = {"one": "x", "two": "y"}
    message = refused(
        joined,
        {**MAIN, "models": models, "base": "one"},
        {**MAIN, "models": models, "base": "two"},
    )
    assert (
        message == "base: joined sweeps compare models in a circle: one -> two -> one"
    )


def test_joined_sweeps_merge_tasks():
    made = joined(
        with_tasks({"probes": ["greedy", "choice"]}),
        with_tasks({"probes": ["greedy"], "formats": ["shown", "open"]}),
        with_tasks({"probes": ["sample"], "seeds": [0, 1]}),
        with_tasks({"probes": ["sample"], "seeds": [0, 7]}, prune=[]),
    )
    assert list(made) == ["dense", "wanda-0.5"]
    dense, pruned = (made[name].tasks["gazetteer"] for name in made)
    assert dense.probes == pruned.probes == ("greedy", "sample", "choice")
    assert dense.formats == ("open", "shown")
    # the pruned one is not part of the last sweep
    assert dense.seeds == (0, 1, 7)
    assert pruned.seeds == (0, 1)
    made = jobs({**MAIN, "seed": 42})
    assert (made["dense"].tasks["gazetteer"].seed, made["wanda-0.5"].prune.seed) == (
        42,
        42,
    )
    bad = {**with_tasks({"probes": ["sample"], "seeds": [0, 1]}), "seed": 42}
    told = refused(jobs, bad)
    assert "seeds: 0, 1: the run seed 42 must be one of them: add it" in told
    assert told.endswith("or set seed: 0 (--seed 0)")


def test_grading_of_sweep_or_task():
    """A run's rule is part of its identity; without it a run's records are by the
    paper's."""
    own = with_tasks({"probes": ["greedy"], "grading": "strict"})
    for sweep, rule in (
        (MAIN, "strict"),
        ({**MAIN, "grading": "paper"}, "paper"),
        ({**own, "grading": "paper"}, "strict"),
    ):
        task = jobs(sweep)["dense"].tasks["gazetteer"]
        assert task.grading == rule
        assert task.identifying().get("grading", "paper") == rule
    message = refused(joined, MAIN, {**MAIN, "grading": "paper"})
    assert "with grading 'strict' and 'paper'; give one" in message


def test_grader_belongs_to_a_task_if_it_is_not_the_default():
    """Without one, and with `text`, the settings have the digest of earlier runs."""
    written = {"probes": ["greedy"]}
    named = jobs(with_tasks({**written, "grader": "text"}))["dense"].tasks["gazetteer"]
    plain = jobs(with_tasks(written))["dense"].tasks["gazetteer"]
    other = jobs(with_tasks({**written, "grader": "number"}))["dense"].tasks[
        "gazetteer"
    ]
    assert digest(named.identifying()) == digest(plain.identifying())
    assert "grader" not in plain.identifying()
    assert other.identifying() == {**plain.identifying(), "grader": "number"}
    told = refused(
        joined, with_tasks(written), with_tasks({**written, "grader": "number"})
    )
    assert "with grader 'text' and 'number'; give one" in told
    for sweep in (
        {**with_tasks({**written, "grader": "exact"}), "grading": "paper"},
        with_tasks({**written, "grader": "exact", "grading": "paper"}),
    ):
        told = refused(jobs, sweep)
        assert told == "task 'gazetteer': grading: paper has the grader text alone"


def test_examples_and_system_belong_to_a_task_if_they_are_given():
    written = {"probes": ["greedy"], "chat": True}
    plain = jobs(with_tasks(written))["dense"].tasks["gazetteer"].identifying()
    assert plain.keys().isdisjoint(("few_shot", "system"))
    for name, value in (("few_shot", 2), ("system", "Be brief.")):
        task = jobs(with_tasks({**written, name: value}))["dense"].tasks["gazetteer"]
        assert task.identifying() == {**plain, name: value}
        told = refused(
            joined, with_tasks(written), with_tasks({**written, name: value})
        )
        assert f"with {name}" in told
    told = refused(jobs, with_tasks({"probes": ["greedy"], "system": "Be brief."}))
    assert "system: a chat template has system messages" in told


def test_other_items_need_other_names():
    task = {"probes": ["greedy"]}
    message = refused(joined, with_tasks(task), with_tasks({**task, "items": 5}))
    assert (
        "'gazetteer' occurs twice, with items 4 and 5; give one of the two another name"
        in message
    )
    message = refused(joined, MAIN, {**MAIN, "models": {"dense": "other"}})
    assert "'dense' is 'bundled' in one joined sweep, 'other' in another" in message
    made = joined(with_tasks(task), with_tasks({**task, "items": 5, "name": "five"}))
    assert list(made["dense"].tasks) == ["gazetteer", "five"]
    # Other prompts may share a name on other checkpoints only.
    chat = with_tasks({"probes": ["greedy"], "chat": True})
    assert "with chat False and True" in refused(
        joined, with_tasks({"probes": ["greedy"]}), chat
    )
    made = joined(
        with_tasks({"probes": ["greedy"]}), {**chat, "models": {"instruct": "x"}}
    )
    assert made["instruct"].tasks["gazetteer"].chat
    assert not made["dense"].tasks["gazetteer"].chat


# ---- parts and groups


def grouped(**changes: Any) -> SweepConfig:
    document = yaml.safe_load("""
    models: {dense: bundled}
    prune:
      - {method: magnitude, sparsity: [0.5, 0.6]}
      - {method: magnitude, pattern: "2:4"}
    tasks: [{task: gazetteer, items: 40, probes: [greedy, choice]}]
    """)
    return validated(SweepConfig, document | changes, "s.yaml")


def sweep(**changes):
    return grouped(models={"a": "org/a", "b": "org/b", "c": "org/c"}, **changes)


def part_of(config):
    asked = []

    def fetch(name, value, base):
        asked.append(value)
        return unfetched(name, value, base)

    expanded = expand(config, RUN, fetch)
    return {job.name: job for job in expanded}, asked


def test_parts_hold_compared_models():
    assert parts_of(sweep(base="b", prune=[])) == (("a", "b", "c"),)
    given = [{"checkpoint": "org/a-int8", "label": "a-int8", "base": "a"}]
    assert parts_of(sweep(compress=given)) == (("a",), ("b",), ("c",))
    part, _ = part_of(sweep(compress=given, only=("a",)))
    assert [name for name, job in part.items() if not job.is_made] == ["a", "a-int8"]
    whole, _ = part_of(sweep())
    parts = {}
    for part in parts_of(sweep()):
        some, fetched = part_of(sweep(only=part))
        assert fetched == [f"org/{name}" for name in part]  # no other model is needed
        assert not parts.keys() & some.keys()
        parts |= some
    assert parts == whole
    assert "a-magnitude-0.5" in whole
    assert "only: 'a' is compared with 'b', which is left out" in refused(
        part_of, sweep(base="b", prune=[], only=["a"])
    )
    told = "unknown model of `only`, which takes no compressed ones: 'd'"
    assert told in refused(part_of, sweep(only=["d"]))


def test_policy_of_a_sweep():
    """Tolerances alone, or a policy: its tasks must be in the sweep, and the required
    ones may lack."""
    flat = grouped(gate={"max_drop": 3})
    assert flat.model_dump(mode="json")["gate"] == {"max_drop": 3}
    policy = {"default": {"max_drop": 3}, "tasks": {"gazetteer": {"max_drop": 1}}}
    assert expand(grouped(gate={**policy, "required": ["later"]}), RUN)
    policy["tasks"] = {"gazeteer": {}}
    told = refused(expand, grouped(gate=policy), RUN)
    assert told.startswith("gate: unknown task of `tasks` 'gazeteer'; did you mean")


# ---- files


def write(path, document):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def test_includes_are_files_or_recipes(tmp_path, monkeypatch):
    write(tmp_path / "one.yaml", with_tasks({"probes": ["greedy"]}))
    file = write(
        tmp_path / "all.yaml",
        {"include": ["one", "one.yaml", "small/candidates", MAIN]},
    )
    included = load_sweep(file).include
    assert included[2] == load_sweep(RECIPES / "small" / "candidates.yaml")
    assert included[3].models == {"dense": "bundled"}
    monkeypatch.chdir(tmp_path)
    mine = write(tmp_path / "main.yaml", MAIN)
    assert find_recipe("main").resolve() == mine
    assert "did you mean 'main'?" in refused(find_recipe, "man")


def test_bad_includes_name_the_entry(tmp_path):
    file = tmp_path / "all.yaml"
    assert "includes this file in turn" in refused(
        load_sweep, write(file, {"include": ["all.yaml"]})
    )
    broken = {**MAIN, "tasks": [{"task": "gazetteer", "probe": ["greedy"]}]}
    message = refused(load_sweep, write(file, {"include": [broken]}))
    assert (
        f"{file}: include.0: tasks.0.probe: unknown key 'probe'; did you mean 'probes'?"
        in message
    )
    for document in (
        {},
        {"models": {"a": "x"}},
        {"include": [MAIN], "tasks": [{"task": "gazetteer"}]},
    ):
        assert "at least one of each" in refused(load_sweep, write(file, document))


# ---- the bundled recipes

PAPER = (
    *("main", "ladder", "candidates", "hard_distractors", "recovery_seeds", "one_shot"),
    *("models_and_datasets", "scale", "calibration"),
)


def recipe_jobs(name):
    return {job.name: job for job in expand(load_sweep(find_recipe(name)), RUN)}


@pytest.mark.parametrize("folder", ["", "small/"])
def test_paper_joins_all_recipes(folder):
    paper = recipe_jobs(f"{folder}paper")
    assert {path.stem for path in (RECIPES / folder).glob("*.yaml")} - {
        "demo",
        "two_models",
        "paper_values",
    } == {*PAPER, "paper"}
    prunes = {
        (job.model, job.prune and job.prune.model_dump_json()) for job in paper.values()
    }
    assert len(prunes) == len(paper)  # every checkpoint once
    apart = 0
    for name in PAPER:
        alone = recipe_jobs(f"{folder}{name}")
        apart += len(alone)
        for job in alone.values():
            (shared,) = [
                each
                for each in paper.values()
                if (each.model, each.prune) == (job.model, job.prune)
            ]
            for task, config in job.tasks.items():
                assert set(config.formats) <= set(shared.tasks[task].formats)
                assert set(config.probes) <= set(shared.tasks[task].probes)
                assert set(config.run_seeds) <= set(shared.tasks[task].run_seeds)
    assert len(paper) < apart


def test_paper_has_papers_settings():
    jobs = recipe_jobs("paper")
    dense = jobs["qwen3-8b"].tasks["tydiqa"]
    caps = (dense.prompt_tokens, dense.one_shot_prompt_tokens, dense.max_new_tokens)
    assert (dense.items, *caps) == (200, 512, 1024, 32)
    assert len(dense.seeds) == 5
    calibration = jobs["qwen3-8b-wanda-0.5"].prune.calibration
    assert (calibration.source, calibration.samples, calibration.sequence_length) == (
        "c4",
        128,
        2048,
    )
