"""Errors as the one line that a user reads; checked access to JSON fields: what
passes, and how a complaint reads."""

import pytest

from evaluator.core import errors
from evaluator.core.errors import (
    InputError,
    field,
    mapping_at,
    one_line,
    redacted,
    rows_at,
    spelled,
)
from tests.support.sweeps import refused


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("first\n  second "), "first second"),
        ("a\tb\n", "a b"),
        (ValueError(" \n"), "ValueError"),
        (ValueError("x" * 300), "x" * 198 + " \N{HORIZONTAL ELLIPSIS}"),
        ("x" * 200, "x" * 200),
        # a path is whole or not there at all
        (
            f"{'x' * 180}: remove runs/night/checkpoints/one",
            f"{'x' * 180}: remove \N{HORIZONTAL ELLIPSIS}",
        ),
        ("", ""),
    ],
)
def test_error_is_one_bounded_line(error, line):
    assert one_line(error) == line


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: errors.parse(b"\xff", "f: line 2"),
            "f: line 2: not UTF-8 text (byte 0: invalid start byte)",
        ),
        (
            lambda: field({"id": None}, "id", str, "f"),
            "f: field 'id' must be a string, not null",
        ),
        (lambda: errors.strings(["x", 1], "f"), "f[1] must be a string, not 1"),
        (
            lambda: errors.of_kind("a\udc00", str, "f"),
            "f holds a lone surrogate at character 1",
        ),
        (
            lambda: errors.of_kind(["x" * 99], dict, "f"),
            f'f must be an object, not ["{"x" * 55}...',
        ),
    ],
)
def test_complaints(call, message):
    assert refused(call) == message


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "X_SECRET",
        "X_PASSWORD",
        "OPENAI_KEY",
        "PGPASSWORD",
        "MYSQL_PWD",
        "AWS_ACCESS_KEY_ID",
        "OPENAI_APIKEY",
        "SLACK_WEBHOOK_URL",
        "SENTRY_DSN",
        "KEY",
    ],
)
def test_quoted_error_hides_secret(monkeypatch, name):
    monkeypatch.setenv(name, "s3cr3t-value")
    assert (
        one_line(ValueError("401: Bearer s3cr3t-value was\nrefused"))
        == "401: Bearer *** was refused"
    )


def test_secrets_and_long_values(monkeypatch):
    """Secrets are not told and a long value by its beginning and end."""
    text = (
        "hf_abcdefghijklmnopqrstuv at http://user:pass@proxy:3128/x, hub id"
        " org/name@main"
    )
    assert redacted(text) == "*** at http://***@proxy:3128/x, hub id org/name@main"
    assert (
        redacted("hf_jwt_eyJhbGciOi.eyJzdWIiOi.x-y_z0 said 'Bearer s3cret-w0rd'")
        == "*** said 'Bearer ***'"
    )
    shapes = (
        "sk-proj-abcdefghijklmnop0123 xoxb-123456789012-abcdef ghp_abcdefghij0123456789"
        " github_pat_11ABCDEFG0123456789 AKIAIOSFODNN7EXAMPLE"
    )
    assert redacted(shapes) == "*** *** *** *** ***"
    for address, seen in (
        ("https://hooks.slack.com/services/T0/B0/x", "https://hooks.***"),
        (
            "https://discord.com/api/webhooks/1/x.",
            "https://discord.com/api/webhooks/***",
        ),
        ("at http://h/v1?api_key=a&b=c#d", "at http://h/v1?***&***#d"),
    ):
        assert redacted(address) == seen
    monkeypatch.setenv("PWD", "/srv/models")
    monkeypatch.setenv("MONKEY", "the-animal")
    monkeypatch.setenv("CI_TOKEN", "token")  # short: "token" stands in many a sentence
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "disabled!")
    for text in (
        "a token is disabled!",
        "hf_hub_download and hf_transfer",
        "the bearer of it",
        "sk-learn and pk-1 in /srv/models: the-animal",
    ):
        assert redacted(text) == text
    told = str(
        InputError(
            f"config.json: field 'model_type' is {'x' * 10**6!r}, an unknown"
            " architecture"
        )
    )
    assert len(told) < 5000
    assert told.startswith("config.json: field 'model_type' is 'xxx")
    assert told.endswith("xxx', an unknown architecture")
    assert str(InputError("y" * 4000)) == "y" * 4000


@pytest.mark.parametrize("other", [None, ["a"], {"b": {}}])
def test_missing_json_is_empty(other):
    assert mapping_at({"a": {"b": {"c": 1}}}, "a", "b") == {"c": 1}
    assert mapping_at(other, "a", "b") == {}
    assert rows_at({"a": [{"b": 1}, 3, None]}, "a") == [{"b": 1}]
    assert rows_at({"a": other}, "a") == []


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ({"a": 1, "b": 2}, {"b": 2.0, "a": 1.0}, True),
        ({"until": ["x"]}, {"until": "x"}, True),
        (0, 0.0, True),
        ([1, {"a": 0}], [1.0, {"a": 0.0}], True),
        (True, 1, False),
        (False, 0, False),
        (None, 0, False),
        (["x", "y"], ["y", "x"], False),
        (0.1, 0.2, False),
        ({}, [], False),
    ],
)
def test_equal_values_are_spelled_alike(one, other, alike):
    assert (spelled(one) == spelled(other)) == alike
