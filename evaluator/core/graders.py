"""Graders decide `contains` of a task's answers: by the strict rule of
`evaluator.core.grading`, or by what a text says last.

They read a text without its thoughts, up to where a model that runs on poses itself the
next question (`Question:`, at which lm-eval stops).
"""

import re
import unicodedata
from fractions import Fraction
from itertools import product
from math import isclose
from string import ascii_uppercase

from evaluator.core.config import Registry
from evaluator.core.errors import one_line
from evaluator.core.formulas import compared, is_formula
from evaluator.core.grading import follows, grade, is_denied, powers, strip_thinking
from evaluator.core.plain import in_numbers
from evaluator.core.records import Item
from evaluator.core.text import UNSPACED, main_code

# What ends an answer: the next question.
_NEXT = re.compile(
    r"\n[^\S\n]*(?:Question|Q|Problem|Frage|Pregunta|问题|問題)\s*\d*\s*[:：]"
)
# What a text marks as its answer; `#### 2. Add` is a heading.
_MARK = re.compile(r"\\boxed *\{|#### *(?!\d+[.):])(?=[$€£*\\-]*\d)")
# In normal form: a number with all that belongs to it, and one that has a value.
_NUMBER = re.compile(r"(?<![a-zµм\d⋅−⁄∶×^+√π±])[−√±]*\d[\d⋅−⁄∶×^+√π±]*")
_VALUE = re.compile(
    r"−?(?:(?:\d{1,99}\+)?\d{1,99}⁄0*[1-9]\d{0,99}|\d{1,99}(?:⋅\d{1,99})?)"
)
# of a gold answer that is more than a number: words before it, a list
_WORDY = re.compile(r"\D*[^\W\d_]{4}|.*\d[,;] .*\d|.*[(\[].*,", re.DOTALL)
_FRACTIONS = str.maketrans("⁄⋅", "/.", "−")
# Behind a language's code: what multiplies, if anything. Languages differ on a `billion`.
_TENS = re.compile(
    r"\w+ \Z(?P<e0>)|en hundred(?P<e2>)|(?:\w+ (?:thousand|tausend|tsd|mille(?!r)|mila|тыс|हज़ार|हजार|千|천|ألف"
    r"|آلاف)|(?:es|pt) mil\b|tr bin)(?P<e3>)|\w+ (?:万|萬|만)(?!亿)(?P<e4>)|\w+ (?:lakh|लाख)(?P<e5>)"
    r"|(?:\w+ (?:mill?i[oó]n|millon|millón|miljo|milh|milyon|mio|млн|миллион|मिलियन|مليون|ملايين"
    r"|triệu)|en m[nl])(?P<e6>)|\w+ (?:crore|करोड़)(?P<e7>)|\w+ (?:億|亿|억)(?P<e8>)"
    r"|(?:\w+ (?:mill?i?ard|miljard|milyar|mrd|млрд|миллиард|مليار|tỷ)|en b)(?P<e9>)"
    r"|(?:\w+ (?:万亿|兆|조)|en trillion)(?P<e12>)"
)


Graded = tuple[bool, tuple[str, ...] | None]


class Grader:
    """The text contains a gold answer by the strict rule.

    An item is as it is `posed`: with the options that its prompt lists.
    """

    name = "text"
    help = "contains a gold answer (default)"
    column = "contains"

    def problem(self, item: Item) -> str:
        """Why it cannot read a gold answer; empty: it can read all."""
        return ""

    def stated(self, item: Item) -> str:
        """The gold answer as a model writes it."""
        return item.answers[0]

    def graded(self, text: str, item: Item) -> Graded:
        """Whether a text is right, and what it takes as its answer: several are none;
        None: the text as a whole."""
        return bool(grade(text, item.answers, item.language)[self.column]), None

    def is_right(self, text: str, item: Item) -> bool:
        return self.graded(text, item)[0]


class Exact(Grader):
    """The normal form of the whole text is that of a gold answer, but for an article."""

    name = "exact"
    help = "is a gold answer, but for spelling and article"
    column = "exact_match"


class Number(Grader):
    """The text's last number is the gold answer's: lm-eval's `flexible-extract` of
    GSM8K. The first one behind the last `\\boxed{` or `####` goes before it, as in its
    `strict-match`.

    Thousands and decimals are read by the strict rule: by the language's custom where a
    sign is ambiguous. Signs, `1/2`, `3 1/2`, `1e3`, currencies and units too, and `5
    million` is 5000000. A range, a time, a root, a power or a denied number is no
    number. Two are equal within 1e-6 of the larger one, if they differ by less than 1.
    A percent sign is a unit: 50% is 50, and 0.5 where only one side has the sign.
    """

    name = "number"
    help = "its last number equals a gold answer, as numbers"

    def problem(self, item: Item) -> str:
        for answer in item.answers:
            if _WORDY.match(answer) or not _number(answer, item.language):
                return f"{one_line(answer, 60)!r} is no number"
        return ""

    def graded(self, text: str, item: Item) -> Graded:
        said = _answer(text)
        found = _number(said, item.language)
        if not found:
            return False, ()
        read = (_written(said, found[0], item.language),)
        for answer in item.answers:
            wanted = _number(answer, item.language)
            count = 1 if len(found) == len(wanted) else 2
            for a, b in product(found[:count], wanted[:count]):
                if isclose(a, b, rel_tol=1e-6) and abs(a - b) < 1:
                    return True, read
        return False, read


def _answer(text: str) -> str:
    return _NEXT.split(strip_thinking(text))[0]


def _number(text: str, language: str) -> list[float]:
    """The value of the number that a text gives as its answer; of per cent also as a
    part of one. Empty: there is none."""
    code, parts = main_code(language), _MARK.split(text)
    normal = in_numbers(parts[-1], language)
    numbers, (after, before) = list(_NUMBER.finditer(normal)), powers(code)
    for number in numbers[:1] if len(parts) > 1 else numbers[-1:]:
        start, end = number.span()
        power = after.match(normal, end)
        behind = power[0] if power else ""
        tens = _TENS.match(f"{code} {behind.strip()}")
        if (
            not (tens and _VALUE.fullmatch(number[0]))
            or after.match(normal, end + len(behind))
            or follows(before, normal, start)
            or is_denied(normal, start, end, code)
        ):
            break
        values = map(Fraction, number[0].translate(_FRACTIONS).split("+"))
        value = float(sum(values)) * float(f"1{tens.lastgroup}")
        value *= (-1) ** number[0].count("−")
        return [value, value / 100][: 1 + normal.startswith(" percent", end)]
    return []


# A number as a text writes it.
_WRITTEN = re.compile(
    r"(?<![^\W_])[-−+]?[$€£¥₹]?[-−]?"
    r"(?:\d+(?:[.,'’٫٬⁄/\u00a0\u202f]\d+| \d{3}\b| \d+/\d+)*[¼-¾⅐-⅞]?|[¼-¾⅐-⅞])"
)


def _written(text: str, value: float, language: str) -> str:
    """The text's answer as it stands there, or if that alone is another number (of
    `5 million`), its value."""
    parts = _MARK.split(text)
    places = _WRITTEN.findall(parts[-1])
    place = "".join(places[:1] if len(parts) > 1 else places[-1:])
    return place if _number(place, language)[:1] == [value] else f"{value:.15g}"


def numbers_in(text: str, language: str) -> list[float]:
    """The numbers that a text writes in digits, in order, but for those that alone are
    none."""
    found = (_number(each, language)[:1] for each in _WRITTEN.findall(text))
    return [value for values in found for value in values]


# A capital of A to Z, which stands for the last option's, that is alone. `A dog` and
# Italian `E poi` have none, and `B is wrong` does not choose it.
_ONE = (
    r"(?<!WORD)(?<!['’-])(?<!not )(?<!n't )(?<!nicht )(?<!pas )(?<!不是)([A-Z])(?!WORD|['’+#-])"
    r"(?!(?<=[AEI]) (?!(?:is|ist|est|es|or|and|oder|und|ou|et|o|y)\b)[a-zà-ÿ])"
    r"(?! (?:is|was) (?:not|wrong|incorrect)\b)"
).replace("WORD", rf"[^\W{UNSPACED}가-힣]")
_TWO = (
    _ONE
    + r"(?:[^\w.\n]{0,4}(?:or|and|oder|und|ou|et|o|y|или|и|或者?|和|または|か|및|또는)?[^\w.\n]{0,4}"
    + f"{_ONE})?"
)
# How a text chooses one, or two (`_TWO`: anywhere): as its answer; at the beginning of a
# line, in brackets or bold.
_NAMED = (
    r"(?i:answer|antwort|lösung|réponse|respuesta|resposta|risposta|svar|odpowied[zź]|ответ"
    r"|відповідь|答案|正解|答え|回答|정답|답|cevap|उत्तर|الإجابة|الجواب|đáp án|jawaban|jibu|คำตอบ"
    r"|\\boxed\{(?:\\text\{)?)[\W_]*[^\n.]{0,40}?" + _TWO
)
_FORMED = (
    r"^[^\w\n]*" + _TWO + r"|[(\[{*]" + _ONE + r"[)\]}*.:]|\(((?i:[A-Z]))\)"
    r"|^[^\w\n]*((?i:[A-Z]))(?=[).:]\s|[).]?\s*$)|[:：*]\s*((?i:[A-Z]))(?=[).*]*\s*$)"
)


# `'C'` and `_C_`; not `C'est`, `l'A`
_QUOTED = r"(?<![^\W_])(?:['‘]|__?)([A-Z])(?:['’]|__?)(?![^\W_])"


class Letter(Grader):
    """The text chooses the gold option: by its letter, or by its text.

    In this order: the whole text is an option. A letter is named as the answer (`The
    answer is B`, `答案是B`, `\\boxed{B}`). It begins a line or stands in brackets or bold
    (`B.`, `(B)`, `**B**`). The text contains one option by the strict rule. A capital
    stands alone. The first of these that finds anything decides; several letters or
    options are no answer.

    Options have letters where the prompt lists them with the gold answer, in its order.
    Options that are letters themselves keep these; beside a gold letter without options
    are A to J.
    """

    name = "letter"
    help = "chooses the gold option, by its letter or its text"

    def problem(self, item: Item) -> str:
        lettered = _letter(next(iter(self._options(item))))
        for answer in () if lettered else item.answers:
            if _letter(answer) or not item.options:
                return f"{one_line(answer, 60)!r} is neither an option nor its letter"
        return ""

    def stated(self, item: Item) -> str:
        found = self._options(item).items()
        return next((name for name, option in found if option in item.answers), "")

    def graded(self, text: str, item: Item) -> Graded:
        said = unicodedata.normalize("NFKC", _answer(text))
        said, options = re.sub(_QUOTED, r'"\1"', said), self._options(item)
        last = max(map(_letter, options)) or "A"
        texts = [option for option in options.values() if not _letter(option)]

        def by(form: str) -> set[str]:
            found = re.findall(form.replace("Z", last), said, re.MULTILINE)
            letters = (each.upper() for groups in found for each in groups)
            return {options[letter] for letter in letters if letter in options}

        def within(text: str, column: str = "contains") -> set[str]:
            return {
                each for each in texts if grade(text, (each,), item.language)[column]
            }

        held = within(said)
        held -= {part for each in held for part in within(each) - {each}}
        chosen = (
            within(said, "exact_match") or by(_NAMED) or by(_FORMED) or held or by(_TWO)
        )
        read = tuple(name for name, option in options.items() if option in chosen)
        gold = {*item.answers, *map(_letter, item.answers)}
        return len(chosen) == 1 and chosen <= gold, read

    def _options(self, item: Item) -> dict[str, str]:
        """The options by their letters, or where they have none by their texts."""
        every = *item.options, *item.answers
        names = list(map(_letter, every))
        if all(names):
            names += "" if item.options else "ABCDEFGHIJ"
            return dict(zip(names, names, strict=True))
        if {*item.answers}.isdisjoint(item.options):
            return dict(zip(every, every, strict=True))
        return dict(zip(ascii_uppercase, item.options, strict=False))


def _letter(text: str) -> str:
    """The letter that is all of a text; empty: it is no letter."""
    return "".join(re.findall(r"\A\W*([A-Za-z])\W*\Z", text)).upper()


class Math(Grader):
    """The text's formula equals a gold answer's, by the library math-verify: in
    `\\boxed{}`, else by its own order of forms. A text without LaTeX gives the number
    that the grader `number` reads, or in its last line the gold answer as it is
    written. Gold answers are LaTeX. A text that only repeats `What is $1+2$?` is right
    too: table `extraction` counts such questions."""

    name = "math"
    help = "its formula equals a gold answer (extra: resurface[math])"

    def problem(self, item: Item) -> str:
        for answer in item.answers:
            if not is_formula(answer):
                return f"{one_line(answer, 60)!r} is no formula"
        return ""

    def graded(self, text: str, item: Item) -> Graded:
        said = _answer(text)
        found = _number(said, item.language)
        plain = _written(said, found[0], item.language) if found else ""
        return compared(item.answers, said, plain)


GRADERS = Registry("grader", (Grader(), Exact(), Number(), Letter(), Math()))
