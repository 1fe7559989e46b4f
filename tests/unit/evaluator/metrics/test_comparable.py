"""The settings that a run states."""

from evaluator.metrics.comparable import settings_of
from evaluator.probes.config import EvalConfig


def test_an_omitted_setting_is_its_default():
    """So two runs are compared in it too."""
    usual, other = (
        EvalConfig(task="gazetteer", **given).identifying()
        for given in ({}, {"few_shot": 2, "grader": "exact"})
    )
    assert "few_shot" not in usual
    run = {"identity": {"task_settings": {"c": {"usual": usual, "other": other}}}}
    told = [settings_of(run, "c", task) for task in ("usual", "other")]
    assert [each["few_shot"] for each in told] == [0, 2]
    assert [each["grader"] for each in told] == ["text", "exact"]
    assert [each["system"] for each in told] == ["", ""]
    assert settings_of(run, "c", "none") == {}
