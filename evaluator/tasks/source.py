"""A user's settings for a data set: its address and the columns that make an item.
Read from YAML.

    config: main                # a configuration of the data set; or {LANGUAGE:
                                CONFIGURATION, ...}
    split: test
    revision: 1a2b3c            # on the hub: a branch, a tag or a commit
    language: english           # for every row, without a language column
    answer_mark: "####"         # texts of fields.answers begin behind it
    blank: "_"                  # options are put in its place in the question, and what
                                follows it is scored
    texts: whole                # not trimmed, as lm-eval reads them
    translations: true          # items of several languages with one cluster have
                                translations of one context
    groups: [team, product]     # columns; a row of the tables for each of their values
    fields: {question: question_stem, options: choices.text, labels: choices.label,
    answer: answerKey}

All keys are optional for a preset. Each given key replaces the preset's."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from evaluator.core.config import Frozen

# `=text` stands for the text itself, where a path to a column is expected
CONSTANT = "="


def _paths(value: Any) -> Any:
    """One path or several, as YAML has them."""
    listed = [value] if isinstance(value, str) else value
    if listed is None:
        return None
    if not isinstance(listed, list | tuple) or not listed:
        raise ValueError(
            "a column's path is needed (answers.text), a list of paths, or a text"
            " behind '='"
        )
    for path in listed:
        if not isinstance(path, str) or not path.strip():
            raise ValueError(
                f"{path!r} is not a column's path (answers.text); a number must be"
                " quoted"
            )
    return tuple(listed)


Paths = Annotated[tuple[str, ...] | None, BeforeValidator(_paths)]


class Fields(Frozen):
    """Where a row holds each field of an item: a dotted path (`answers.text`), or
    several of them.

    A path follows objects by name and lists by number, or else every entry of a list. A
    hyphen joins the parts of an id, a line break the parts of a text. Answers and
    options form one list. `=text` is the text itself.
    """

    id: Paths = None  # None: split and number of the row
    language: Paths = None
    # None, or empty in a row: the question is asked without a context
    context: Paths = None
    question: Paths = None
    answers: Paths = None  # texts
    options: Paths = None  # texts: all options, or the wrong ones
    # which option is right: its number from 0, its letter from A, or its label
    answer: Paths = None
    # what `answer` names options by, where that is neither numbers from 0 nor letters
    labels: Paths = None
    cluster: Paths = None  # None: questions on one context are one cluster

    def paths(self, name: str) -> tuple[str, ...]:
        """The paths of one field, by its name."""
        paths: tuple[str, ...] | None = getattr(self, name)
        return paths or ()

    def columns(self) -> list[str]:
        """All paths, each once."""
        paths = [path for name in type(self).model_fields for path in self.paths(name)]
        return [path for path in dict.fromkeys(paths) if CONSTANT not in path]

    def problem(self) -> str | None:
        """Why no item can be made with these fields, naming the one that lacks; None
        where all is well."""
        if self.question is None:
            return "fields.question is missing: the column of the question"
        if self.answers is None and self.answer is None:
            return "fields.answers (texts) or fields.answer (an option) is missing"
        if self.answer and not self.options:
            return (
                "fields.answer needs fields.options: it says which is right (texts:"
                " fields.answers)"
            )
        if self.labels and not self.answer:
            return "fields.labels needs fields.answer"
        return None


class Source(Frozen):
    """Which rows of a data set are read, and how a row becomes an item."""

    config: str | dict[str, str] | None = None
    split: str | None = Field(default=None, min_length=1)
    revision: str | None = Field(default=None, min_length=1)
    language: str | None = Field(default=None, min_length=1)
    translations: bool | None = None  # None: no
    fields: Fields | None = None
    groups: Paths = None  # each value makes a row of the tables: `team=billing`
    # A text of fields.answers begins behind the last of these: `####` of GSM8K.
    answer_mark: str | None = Field(default=None, min_length=1)
    # Options are put in its place in the question, and what follows it is scored.
    blank: str | None = Field(default=None, min_length=1)
    # Context, question and options: trimmed (None), as they are, or as lm-eval makes
    # them of the columns of HellaSwag.
    texts: Literal["whole", "hellaswag"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _out_of_fields(cls, given: Any) -> Any:
        """Groups are columns too: `fields` may hold them."""
        fields = given.get("fields") if isinstance(given, Mapping) else None
        if not isinstance(fields, Mapping) or "groups" not in fields:
            return given
        rest = {name: each for name, each in fields.items() if name != "groups"}
        return {"groups": fields["groups"], **given, "fields": rest}

    @field_validator("groups")
    @classmethod
    def _are_columns(cls, given: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for path in given or ():
            if CONSTANT in path:
                raise ValueError(f"{path!r}: a column's path is needed, without '='")
        return given

    @model_validator(mode="after")
    def _one_language(self) -> "Source":
        if isinstance(self.config, dict) and not self.config:
            raise ValueError("config: names no configuration")
        if isinstance(self.config, dict) and self.language is not None:
            raise ValueError(
                f"language: {self.language!r}: config names languages already"
            )
        return self

    @property
    def configs(self) -> dict[str | None, str | None]:
        """Language -> configuration; the language is None where it is a column's."""
        if not isinstance(self.config, dict):
            return {self.language: self.config}
        return dict[str | None, str | None](self.config.items())

    def given(self) -> dict[str, Any]:
        """The given settings as JSON. Without settings it is empty, so it leaves a
        run's identity unchanged."""
        return self.model_dump(
            mode="json", include={*Source.model_fields}, exclude_none=True
        )

    def over(self, usual: "Source") -> "Source":
        """`usual` with what this says in its place: key by key, also within
        `fields`."""
        said, kept = self.given(), usual.given()
        if isinstance(said.get("config"), dict):  # each configuration has its language
            kept.pop("language", None)
        if "language" in said and isinstance(kept.get("config"), dict):
            kept.pop("config")
        fields = {**kept.pop("fields", {}), **said.pop("fields", {})}
        return Source.model_validate(
            kept | said | ({"fields": fields} if fields else {})
        )
