"""From a row of a data set to an item, according to `Fields`. Pure.

    mapping = RowMapping(source, task="arc", language="english", where="data set
    'allenai/ai2_arc'")
    mapping.columns(known)                       # the columns to read; a missing one is
                                                 an error
    mapping.item(row, "test-000017", "row 17")   # the names are for a row without an
                                                 id, and for errors

`values.py` decides what a value means as text. Every text is trimmed, unless
`Source.texts` says otherwise. A row without a right answer (an empty list, null, a
hidden label) is excluded and counted. Any other malformed row is an error that names
data, row and field.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from evaluator.core.errors import Document, InputError, one_line, unknown
from evaluator.core.records import Item, groups_of
from evaluator.tasks.base import shared_text
from evaluator.tasks.source import CONSTANT, Fields, Source
from evaluator.tasks.values import ClassLabel, Texts

MOST_OPTIONS = 10
# how test splits without labels spell the answer that they do not have
_HIDDEN = ("", "-1")


class RowMapping:
    """Makes the items of one language of one data set, row by row."""

    def __init__(
        self,
        source: Source,
        *,
        task: str,
        language: str | None,
        where: str,
        texts: Texts | None = None,
    ) -> None:
        """`source` has fields; `language`: every row's, or None; `where` names the
        data. Raises InputError for fields that make no item."""
        fields = source.fields or Fields()
        problem = fields.problem()
        if problem is None and (language is None) == (fields.language is None):
            problem = (
                "set the language (language: english) or its column (fields:"
                f" {{language: COLUMN}}), not both: {language!r}, {fields.language!r}"
            )
        if problem is not None:
            raise InputError(f"{where}: {problem}")
        self._source, self._fields = source, fields
        self._task = task
        self._language = language
        self._where = where
        self._texts = texts or Texts()
        # (language, context) -> the first item with this context
        self._clusters: dict[tuple[str, str], str] = {}

    def columns(self, known: Collection[str]) -> list[str]:
        """The columns that are read, of those that the data has. Raises InputError
        for those that it does not have."""
        columns, lacking = list[str](), dict[str, str]()
        paths_of = {name: self._fields.paths(name) for name in Fields.model_fields}
        for name, paths in {**paths_of, "groups": self._source.groups or ()}.items():
            for path in paths:
                if path.startswith(CONSTANT):
                    continue
                column = path if path in known else path.partition(".")[0]
                if column not in known:
                    lacking.setdefault(column, name)
                columns.append(column)
        for column, name in lacking.items():
            missing = f"{unknown('column', column, known)}"
            if others := ", ".join([*lacking][1:]):
                missing += f"; there is no {others} either"
            raise InputError(f"{self._where}: field {name!r}: {missing}")
        return list(dict.fromkeys(columns))

    def item(self, row: Document, name: str, place: str) -> Item:
        """The item of a row, which is called `name` where no column has an id.
        Raises InputError."""
        reader = _Reader(row, self._source, f"{self._where}: {place}", self._texts)
        item_id = "-".join(reader.needed("id")) if self._fields.id is not None else name
        language = self._language or "-".join(reader.needed("language"))
        context = "\n".join(reader.texts("context"))
        answers, options = reader.answers_and_options()
        if mark := self._source.answer_mark:
            answers = tuple(text.rpartition(mark)[2].strip() for text in answers)
        question = reader.question()
        if self._fields.cluster is not None:
            cluster = "-".join(reader.needed("cluster"))
        else:
            shared = shared_text(context, question, answers)
            cluster = self._clusters.setdefault((language, shared), item_id)
        return Item(
            task=self._task,
            language=language,
            item_id=item_id,
            context=context,
            question=question,
            answers=answers,
            cluster=cluster,
            options=options,
            groups=groups_of(reader.groups(self._source.groups or ())),
        )


class _Reader:
    """One row, by the names of an item's fields."""

    def __init__(self, row: Document, source: Source, place: str, texts: Texts) -> None:
        self._row = row
        self._fields, self._as = source.fields or Fields(), source.texts
        self._place = place
        self._texts = texts

    def needed(self, name: str) -> list[str]:
        """The texts of a field: at least one."""
        texts = self.texts(name)
        if not texts:
            raise InputError(f"{self._at(name)} is empty")
        return texts

    def question(self) -> str:
        """Its parts, a line each; of HellaSwag label and beginnings, as lm-eval joins
        them."""
        parts = self.needed("question")
        if self._as != "hellaswag":
            return "\n".join(parts)
        label, *begun = [text or "" for text in self._values("question")]
        begun[1:] = map(str.capitalize, begun[1:])
        return _cleaned(f"{label}: {' '.join(begun)}")

    def texts(self, name: str) -> list[str]:
        """The texts of a field that are not empty, in order."""
        return [text for text in self._values(name) if text]

    def groups(self, paths: Sequence[str]) -> Iterator[tuple[str, str]]:
        """The columns of a row's groups and their values; an empty one makes none."""
        for path in paths:
            for text in filter(None, self._at_path(path, "groups")):
                yield path, text

    def answers_and_options(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The gold answers, the right options first, and every option. An empty
        option is none."""
        listed = [text or "" for text in self._values("options")]
        right = [self._option(value, listed) for value in self._values("answer")]
        right += self.texts("answers")
        answers = tuple(dict.fromkeys(filter(None, right)))
        options = tuple(filter(None, listed))
        if self._fields.options is not None:
            count = len({*options, *answers[:1]})
            if not 2 <= count <= MOST_OPTIONS:
                raise InputError(
                    f"{self._at('options')} gives a choice among {count}, not among 2"
                    f" to {MOST_OPTIONS}"
                )
        return answers, options

    def _option(self, answer: str | None, options: Sequence[str]) -> str | None:
        """The option that `answer` names by its number from 0, its letter or its
        label; None where it is hidden."""
        labels = [text or "" for text in self._values("labels")]
        if answer is None or (answer in _HIDDEN and answer not in labels):
            return None
        is_letter = len(answer) == 1 and answer.isalpha()
        if isinstance(answer, ClassLabel) and answer not in labels and not is_letter:
            answer = str(answer.number)
            is_letter = False
        if self._fields.labels is not None:
            if len(labels) != len(options):
                raise InputError(
                    f"{self._at('labels')} has {len(labels)} entries, and 'options'"
                    f" {len(options)}"
                )
            if labels.count(answer) > 1:
                raise InputError(f"{self._at('labels')} has {answer!r} twice")
            number = labels.index(answer) if answer in labels else -1
        elif answer.isascii() and answer.isdecimal():
            number = int(answer)
        elif is_letter and answer.isascii():
            number = ord(answer.upper()) - ord("A")
        else:
            raise InputError(
                f"{self._at('answer')}: {answer[:60]!r} is neither a number from 0 nor"
                " a letter from A: put a text in fields.answers, and other names of"
                " options in fields.labels"
            )
        if not 0 <= number < len(options) or not options[number]:
            raise InputError(
                f"{self._at('answer')}: {answer!r} is none of the"
                f" {len(options)} options"
            )
        return options[number]

    def _values(self, name: str) -> Iterator[str | None]:
        """The texts of a field, in order; None where a row lacks one."""
        for path in self._fields.paths(name):
            yield from self._at_path(path, name)

    def _at_path(self, path: str, name: str) -> Iterator[str | None]:
        """The same of one of its paths."""
        if path.startswith(CONSTANT):
            yield path.removeprefix(CONSTANT).strip()
            return
        prose = name not in ("answers", "options")
        whole = self._as is not None and name in ("context", "question", "options")
        column, *parts = [path] if path in self._row else path.split(".")
        place = f"{self._place}: field {name!r} ({path})"
        for value, alone in self._walk(self._row.get(column), parts, path, place):
            text = self._texts.read(value, path, place, alone=alone, prose=prose)
            if whole and text and isinstance(value, str):
                text = value
                if self._as == "hellaswag" and name == "options":
                    text = _cleaned(text)
            yield text

    def _walk(
        self, value: Any, parts: Sequence[str], path: str, place: str
    ) -> Iterator[tuple[Any, bool]]:
        """The values at the end of a path, and whether each is alone, or an entry of
        a list."""
        if isinstance(value, list | tuple):
            entries, rest = value, parts
            if parts and parts[0].isdecimal():
                number = int(parts[0])
                entries, rest = value[number : number + 1] or [None], parts[1:]
            for entry in entries:
                for inner, _ in self._walk(entry, rest, path, place):
                    yield inner, False
        elif not parts or value is None:
            yield value, True
        elif isinstance(value, dict):
            entry = self._texts.entry(value, parts[0], path, place)
            yield from self._walk(entry, parts[1:], path, place)
        else:
            shown = one_line(repr(value), 60)
            raise InputError(f"{place}: there is no {parts[0]!r} in {shown}")

    def _at(self, name: str) -> str:
        paths = ", ".join(self._fields.paths(name))
        return f"{self._place}: field {name!r} ({paths})"


def _cleaned(text: str) -> str:
    """A text of HellaSwag without the marks of WikiHow, as in lm-eval."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")
