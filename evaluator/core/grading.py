"""Grading: compares a text with the gold answers by containment, exact match and token
F1. Pure.

    grade("<think>hm</think>\\n\\nThe Nile.", ("the Nile",), "english")
    -> {"contains": True, "exact_match": True, "token_f1": 1.0}

Both sides are brought to a normal form, and the best over the gold answers counts.
Thoughts are not part of an answer: spans between `<think>` and `</think>`, the tags of
other models, and all before an end without a beginning, which a chat template wrote into
the prompt. They are removed here, so callers pass the decoded text unchanged.

Rule `strict` compares normal forms of `evaluator.core.plain`. A text contains an answer
where it stands by itself:

- A digit at the answer's edge touches no digit and no sign of a number. 1863 is not in
  18636363, 5 not in -5 or 1.5, 1 not in 1/2 or 1:30, and 1914 not in 1914-1918, which
  says more. A date does contain its year.
- A number in Han characters is whole: neither 三 nor 十 is in 三十. So is a Roman numeral
  that ends an answer, and a number word: `seven` is not in `seventeen`.
- A number is not in another one: 5 is not in 5 million, 5k, 5 to 6 or minus 5, 1990 not
  in 1990s, `10 km` not in `10 km/h`, and `five` not in `fifty-five` or `five hundred`. It
  is in `5.0` and in `5 km`. `from 1914 to 1918` names both ends, as of a change.
- A word begins where the answer begins: `happy` is not in `unhappy`. Arabic, Hebrew and
  others write articles and prepositions there, so letters may stand before it.
- What a negation directly beside it denies is not the answer: `not true`, `不可能`,
  `東京ではなく`. Neither a negation nor a number word works beyond its clause.
- An answer of at most three letters touches no letter in scripts that separate words:
  `no` is not in `north`. A single letter has the answer's case: `A` is not in `a cat`,
  and `US` not in `tell us`.
  Longer answers may stand inside a word, which has its endings: in English a plural,
  a tense or a people's name. `India` is not in `Indiana`, and `GPT-4` not in `GPT-4o`.
- An answer may lack its leading article; of at most three letters, it must then be the
  whole text.

Rule `paper` is that of The Benchmark Illusion (arXiv 2606.17609): lower case, no
punctuation, and any containment.

`GRADERS` decide `contains` of a task's answers: by the strict rule, or by what a text
says last. They read a text without its thoughts, up to where a model that runs on poses
itself the next question (`Question:`, at which lm-eval stops).
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from itertools import product
from math import isclose
from string import ascii_uppercase
from typing import get_args

from evaluator.core.config import Registry
from evaluator.core.errors import one_line, unknown
from evaluator.core.formulas import compared, is_formula
from evaluator.core.plain import SIGNS, flat, forms, in_clauses, in_numbers, plain
from evaluator.core.records import Columns, Grading, Item
from evaluator.core.text import (
    ALONE,
    ARTICLES,
    DENIALS,
    NEGATIONS,
    ONES,
    ONLY,
    PARTS,
    POWERS_AFTER,
    POWERS_BEFORE,
    PREFIXING,
    TENS,
    UNSPACED,
    main_code,
    normalise,
    split_tokens,
)

_FEW = 3  # letters of an answer that stands alone
_WORDS = frozenset(("us", "it", "who"))  # and not `US`, `IT`, `WHO`
_THOUGHT = (
    r"(?!end)(?:\w+[:_])?(?:\w*think(?:ing)?|thoughts?|reason(?:ing)?|reflection|analysis|cot"
    r"|scratchpad|planning|monologue)\s*"
)
_BEGINS = (
    rf"[<◁]\|?{_THOUGHT}\|?[>▷]|\[think\]"
    r"|<\|(?:begin_of_thought|thought_start|start_thinking|inner_prefix)\|>"
    r"|<start_working_out>|<unused94>"
    r"|<\|channel\|?>\s*(?:analysis|commentary|thought)\b[^<]*?(?:<\|message\|>|\n)"
)
_ENDS = (
    rf"[<◁]\|?/{_THOUGHT}\|?[>▷]|\[/think\]"
    r"|<\|(?:end_of_thought|thought_end|end_thinking|inner_suffix)\|>"
    r"|<end_working_out>|<unused95>"
    r"|<\|channel\|>\s*final\s*<\|message\|>|<channel\|>"
)
_BRACKET = re.compile(r"[<\[◁]")
_MARKS = re.compile(f"(?P<begins>{_BEGINS})|{_ENDS}", re.IGNORECASE)
_UNSPACED = re.compile(f"[{UNSPACED}]")
_HANGUL = re.compile("[가-힣]")
# of English, where other letters make another word: `India` is not in `Indiana`
_ENDINGS = re.compile(r"(?:e?s|e?d|ing|ly|(?:i?a)?ns?|ese|ish)(?!\w)")
_VARIANT = re.compile(r"[a-rt-z](?!\w)")  # `GPT-4o`; `MP3s` are several
_NEGATING = frozenset("불비무미부반")
_HAN_NUMBERS = frozenset("〇零一二三四五六七八九十百千万萬亿億兆两兩")
_ROMAN = r"(?=[ivxlcdm])m{0,3}(?:cm|cd|d?c{0,3})(?:xc|xl|l?x{0,3})(?:ix|iv|v?i{0,3})"
# between the words of one number: `treinta y cinco`
_AND = "(?:and|et|y|e|și|og|och|und|en|και)"


def thinking_spans(text: str) -> list[tuple[int, int]]:
    """Where the thoughts of a text begin and end, with their tags.

    A thought within a thought is a part of it. An end without a beginning ends what
    stands before it. A thought without an end runs to the last end within it, or to
    the end of the text: the model ran out of tokens while it was still thinking.
    """
    spans: list[tuple[int, int]] = []
    if not _BRACKET.search(text):
        return spans
    depth = start = last = 0
    for mark in _MARKS.finditer(text):
        if mark["begins"]:
            if depth == 0:
                start = last = mark.start()
            depth += 1
            continue
        last, depth = mark.end(), depth - 1
        if depth < 0:
            spans, start, depth = [], 0, 0
        if depth == 0:
            spans.append((start, last))
    if depth:
        spans.append((start, last if last > start else len(text)))
    return spans


def strip_thinking(text: str) -> str:
    """The text without its thoughts."""
    for start, end in reversed(thinking_spans(text)):
        text = text[:start] + text[end:]
    return text


def gradable(answers: Iterable[str], language: str) -> tuple[str, ...]:
    """The answers with anything to compare: their normal form has a letter, a number
    or a symbol."""
    return tuple(answer for answer in answers if _is_gradable(answer, language))


@lru_cache(maxsize=65536)  # a pool is looked through for every item
def _is_gradable(answer: str, language: str) -> bool:
    kinds = map(unicodedata.category, plain(answer, language))
    return any(kind[0] in "LNS" for kind in kinds)


def grade(
    response: str, answers: Iterable[str], language: str, rule: str = "strict"
) -> Columns:
    """`contains`, `exact_match` and `token_f1` of a text by a rule, against those of
    the answers that are `gradable`.

    Token F1 is that of two multisets of tokens, in [0, 1], as in SQuAD (Rajpurkar et
    al., 2016). Raises InputError for an unknown rule."""
    if rule not in RULES:
        raise unknown("rule of grading", rule, RULES)
    return _GRADERS[rule](strip_thinking(response), tuple(answers), language)


def grades(response: str, answers: tuple[str, ...], language: str) -> Columns:
    """The columns of a record that grade its text: by the strict rule, and
    `contains_paper`."""
    paper = normalise(strip_thinking(response))
    golds = filter(None, map(normalise, answers))
    loose = any(gold in paper for gold in golds)
    return {**grade(response, answers, language), "contains_paper": loose}


def contains(
    response: str, answers: Iterable[str], language: str, rule: str = "strict"
) -> bool:
    """Whether a text contains one of the answers by a rule."""
    return bool(grade(response, answers, language, rule)["contains"])


def holds(normal: str, answers: tuple[str, ...], language: str) -> bool:
    """Whether a normal form of a text (`in_clauses`) contains one of the answers; a
    single letter in either case."""
    texts = forms(normal)
    return any(
        answer.is_in(text) for answer in _by_strict(answers, language) for text in texts
    )


def alike(one: str, other: str, language: str) -> bool:
    """Whether either text would be right if the other were the answer."""
    return contains(one, (other,), language) or contains(other, (one,), language)


@dataclass(frozen=True, slots=True)
class _Answer:
    """One form of a gold answer."""

    text: str
    bare: str  # without its article
    language: str  # its code
    letter: str  # of a single one, or of `US`: as it is written
    counts: Counter[str]  # how often `bare` has each token

    def is_in(self, text: str) -> bool:
        code = self.language
        whole = _stands(self.text, text, code, alone=_is_short(self.text))
        return whole or (
            not _is_short(self.bare) and _stands(self.bare, text, code, alone=False)
        )


@lru_cache(maxsize=1024)  # an item's answers are compared with every beam and sample
def _by_strict(answers: tuple[str, ...], language: str) -> tuple[_Answer, ...]:
    found = []
    for answer in gradable(answers, language):
        normal = plain(answer, language)
        single = len(normal) == 1 and normal.upper() != normal.lower()
        single |= normal in _WORDS and answer.isupper()
        letter = plain(answer, language, cased=True) if single else ""
        code, texts = main_code(language), forms(normal)
        bares = forms(_bare(normal, code))
        for text, bare in zip(texts, bares * (len(texts) // len(bares)), strict=True):
            counts = Counter(split_tokens(bare, language))
            found.append(_Answer(text, bare, code, letter, counts))
    return tuple(found)


def _strictly(response: str, answers: tuple[str, ...], language: str) -> Columns:
    wanted = _by_strict(answers, language)
    code, clauses = main_code(language), in_clauses(response, language)
    texts, bare = forms(clauses), forms(_bare(flat(clauses), code))
    exact = any(answer.bare in bare for answer in wanted)
    found = exact or any(
        answer.is_in(text) for answer in wanted if not answer.letter for text in texts
    )
    letters = [answer.letter for answer in wanted if answer.letter]
    if letters and not found:
        cased = forms(in_clauses(response, language, cased=True))
        found = any(
            _stands(letter, text, code, alone=True)
            for letter in letters
            for text in cased
        )
    counts = [answer.counts for answer in wanted]
    token_f1 = max(_token_f1(split_tokens(text, language), counts) for text in bare)
    return {"contains": found, "exact_match": exact, "token_f1": token_f1}


def _loosely(response: str, answers: tuple[str, ...], language: str) -> Columns:
    text, golds = normalise(response), list(filter(None, map(normalise, answers)))
    counts = [Counter(split_tokens(gold, language)) for gold in golds]
    return {
        "contains": any(gold in text for gold in golds),
        "exact_match": text in golds,
        "token_f1": _token_f1(split_tokens(text, language), counts),
    }


RULES: tuple[Grading, ...] = get_args(Grading)
_GRADERS = {"strict": _strictly, "paper": _loosely}


def _token_f1(produced: Sequence[str], wanted: Iterable[Counter[str]]) -> float:
    best, counts = 0.0, Counter(produced)
    for answer in wanted:
        if shared := (counts & answer).total():
            # 2PR / (P + R) with P = shared / produced and R = shared / wanted. It needs
            # no special case for P = R = 0.
            best = max(best, 2 * shared / (len(produced) + answer.total()))
    return best


def _bare(text: str, code: str) -> str:
    """A normal form without a leading article, of which something must remain."""
    found = _article(code).match(text)
    return text[found.end() :] if found else text


@cache
def _article(code: str) -> re.Pattern[str]:
    """In front of scripts without spaces, no blank is left."""
    articles = (re.escape(article.strip()) for article in ARTICLES.get(code, ()))
    joined = "|".join(sorted(articles, key=len, reverse=True)) or "(?!)"
    return re.compile(rf"(?:{joined})(?:(?<=') ?|(?<!') |(?=[{UNSPACED}]))(?=.)")


def _one_of(words: Iterable[str], code: str) -> str:
    """A pattern of words in normal form; of none, one that matches nothing."""
    longest = sorted({plain(word, code) for word in words}, key=len, reverse=True)
    return "|".join(map(re.escape, longest)) or "(?!)"


@cache
def _powers(code: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What makes another number, behind it and before it; English words in every
    language. A long word may have an ending."""
    parts = [
        r"s(?:(?<=0s)|(?<=\b\d\d\d\ds))\b",
        r"er(?<=0er)\b",
        "年代|년대|[πi](?!\\w)|割|分[之の]|点[0-9〇零一二三四五六七八九]",
        r"(?:es|tal(?:et|s)?|luvu\w*)\b|(?<=0)(?:[ех]|ті|тих|an|lar\w*|lı)\b| के दशक",
        r" and (?:a|\w+) (?:half|quarters?|thirds?)\b| to the power\b",
    ]
    for word in _one_of({*POWERS_AFTER["en"], *POWERS_AFTER.get(code, ())}, code).split(
        "|"
    ):
        spaced = _joins(word[0]) and not _HANGUL.match(word)
        ending = (r"\w{0,3}" if len(word) > 4 else "") + r"(?!\w)" if spaced else ""
        parts.append(f" ?{word}{ending}")
    before = _one_of(POWERS_BEFORE.get(code, ()), code)
    return re.compile("|".join(parts)), re.compile(
        rf"(?:(?<!\S)(?:{before}) |分[之の]|[0-9〇零一二三四五六七八九]点)\Z"
    )


@cache
def _number_words(code: str) -> tuple[re.Pattern[str], ...]:
    """Of numbers in words: whether a text ends in one, and what stands beside one that
    is a part of another: `twenty five`, `five hundred`."""
    tens = _one_of(TENS.get(code, ()), code)
    powers = _one_of(POWERS_AFTER.get(code, ()), code)
    words = f"{_one_of(ONES.get(code, ()), code)}|{tens}"
    parts = _one_of(PARTS.get(code, ()), code)
    return tuple(
        re.compile(pattern)
        for pattern in (
            rf"(?:^|.* )(?:{_ROMAN}|{words}|{parts}|[^\W\d])|.*⁄[^\W\d]+",
            rf"(?:{words}|{parts}|{powers})(?!\w)",
            rf"(?:^|.* )(?:{words}|{powers})",
            rf" (?:{words}|{parts}|{powers})(?!\w)",
            rf"(?<!\S)(?:(?:{words}|{powers})|(?:{tens}|{powers}) {_AND}) \Z",
        )
    )


@cache
def _denial(code: str) -> tuple[re.Pattern[str], ...]:
    """What stands before a word that is denied, in scripts without spaces directly,
    unless `alone` is behind it; what stands behind one, unless `only` is before it."""
    words, articles = _one_of(NEGATIONS.get(code, ()), code), ARTICLES.get(code, ())
    verbs = "ca|is|are|was|were|do|does|did|has|have|had|would|could|should"
    behind = _one_of(DENIALS.get(code, ()), code)
    return (
        re.compile(
            rf"(?:(?<!\S)(?:{words}|(?:{verbs})n[ ']?t|no longer) "
            rf"(?:be |have been )?(?:{'|'.join(articles)})?"
            r"|(?<!是)(?<!难道)不是?|不太|(?<!南)[无無]|(?<![南北东西中東])非|未|ไม่(?:ใช่)?)\Z"
        ),
        re.compile(rf" (?:{_one_of(ALONE.get(code, ()), code)})(?!\w)"),
        # `ではないか`, `değil mi`: a guess
        re.compile(rf" ?(?:{behind})(?!か|でしょう|가| m[iuıü]\b|[^\W{UNSPACED}])"),
        re.compile(rf"(?<!\S)(?:{_one_of(ONLY.get(code, ()), code)}) \Z"),
    )


def _follows(pattern: re.Pattern[str], text: str, start: int) -> bool:
    """Whether what stands at a place follows a pattern of at most forty letters."""
    return pattern.search(text, max(0, start - 40), start) is not None


def _is_denied(text: str, start: int, end: int, code: str) -> bool:
    before, alone, behind, only = _denial(code)
    if _follows(before, text, start):
        return not alone.match(text, end)
    return behind.match(text, end) is not None and not _follows(only, text, start)


@lru_cache(maxsize=4096)
def _is_short(text: str) -> bool:
    """A syllable of Hangul has at least two letters."""
    return sum(2 if _HANGUL.match(char) else 1 for char in text if char != " ") <= _FEW


@lru_cache(maxsize=4096)
def _ends_in_number(text: str, code: str) -> bool:
    """Whether the last word is a number whose name begins others, a single letter or
    a rate: `world war i` is not in `world war ii`, and `m⁄s` not in `m⁄s2`."""
    return _number_words(code)[0].fullmatch(text) is not None


def _stands(answer: str, text: str, code: str, *, alone: bool) -> bool:
    """Whether the answer stands by itself somewhere in the text, both in normal form,
    the text `in_clauses`. `code`: of their language."""
    places = _places(answer)
    found = places.search(text)
    while found:
        start, end = found.span()
        before, after = text[start - 1 : start], text[end : end + 1]
        glued = alone and answer[0].isdecimal() and before.islower()  # `5` in `h5n1`
        inside = _begins_inside(answer[0], before, code)
        # particles follow a noun directly
        last = (alone or _ends_in_number(answer, code)) and not _HANGUL.match(after)
        if not (
            glued
            or inside
            or _touch(answer[0], before, alone)
            or _touch(answer[-1], after, last)
            or _goes_on(answer, text, end, code)
            or _is_multiplied(answer, text, start, end, code)
            or _is_denied(text, start, end, code)
        ):
            return True
        found = places.search(text, start + 1)
    return False


@lru_cache(maxsize=4096)
def _places(answer: str) -> re.Pattern[str]:
    """An answer in a text, also over the ends of clauses."""
    between = r"\n?" if _UNSPACED.search(answer) else ""
    chars = (r"\s" if char == " " else re.escape(char) for char in answer)
    return re.compile(between.join(chars))


def _begins_inside(first: str, before: str, code: str) -> bool:
    """Whether an answer begins within a word."""
    if _HANGUL.match(before):  # compounds are written together; these negate
        return before in _NEGATING and bool(_HANGUL.match(first))
    is_word = before.isalpha() or unicodedata.category(before or " ")[0] == "M"
    return is_word and _joins(first) and _joins(before) and code not in PREFIXING


def _goes_on(answer: str, text: str, end: int, code: str) -> bool:
    """Whether letters behind an answer make another name or another English word."""
    if answer[-1].isdecimal():
        return not answer.isdecimal() and bool(
            re.search(r"[^\W\d]", answer) and _VARIANT.match(text, end)
        )
    after = text[end : end + 1]
    is_word = answer[-1].isalpha() and after.isascii() and after.isalpha()
    return code == "en" and is_word and not _ENDINGS.match(text, end)


def _is_multiplied(answer: str, text: str, start: int, end: int, code: str) -> bool:
    """Whether a number in the answer's place is a part of `5 million`, `1990s` or
    `twenty five`."""
    after, before = _powers(code)
    if _is_digit(answer[-1]) and after.match(text, end):
        return True
    if _is_digit(answer[0]) and _follows(before, text, start):
        return True
    _, first, last, behind, ahead = _number_words(code)
    if last.fullmatch(answer) and (behind.match(text, end) or after.match(text, end)):
        return True
    return first.match(answer) is not None and _follows(ahead, text, start)


def _is_digit(char: str) -> bool:
    return char.isdecimal() or char in _HAN_NUMBERS


def _touch(edge: str, beside: str, alone: bool) -> bool:
    """Whether what stands beside an answer's edge makes it part of something else."""
    if beside in ("", " ", "\n"):
        return False
    if beside in SIGNS:
        return alone or beside == "⁄" or not edge.isalpha()
    if _is_digit(edge) or edge in SIGNS:
        return _is_digit(beside)
    return alone and _joins(edge) and _joins(beside)


def _joins(char: str) -> bool:
    """Whether a character is of a word of a script that separates words."""
    return (
        char.isalnum() or unicodedata.category(char)[0] == "M"
    ) and not _UNSPACED.match(char)


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
    numbers, (after, before) = list(_NUMBER.finditer(normal)), _powers(code)
    for number in numbers[:1] if len(parts) > 1 else numbers[-1:]:
        start, end = number.span()
        power = after.match(normal, end)
        behind = power[0] if power else ""
        tens = _TENS.match(f"{code} {behind.strip()}")
        if (
            not (tens and _VALUE.fullmatch(number[0]))
            or after.match(normal, end + len(behind))
            or _follows(before, normal, start)
            or _is_denied(normal, start, end, code)
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
