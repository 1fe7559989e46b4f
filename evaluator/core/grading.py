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
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import get_args

from evaluator.core.errors import unknown
from evaluator.core.plain import SIGNS, flat, forms, in_clauses, plain
from evaluator.core.records import Columns, Grading
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
_OPEN = str.maketrans("∼", "−", " '\n")
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


@lru_cache(maxsize=65536)  # a pool is looked through for every item
def gradable(answers: tuple[str, ...], language: str) -> tuple[str, ...]:
    """The answers with anything to compare: their normal form has a letter, a number
    or a symbol."""

    def compares(answer: str) -> bool:
        kinds = map(unicodedata.category, plain(answer, language))
        return any(kind[0] in "LNS" for kind in kinds)

    return tuple(filter(compares, answers))


def grade(
    response: str, answers: Iterable[str], language: str, rule: str = "strict"
) -> Columns:
    """`contains`, `exact_match` and `token_f1` of a text by a rule, against those of
    the answers that are `gradable`.

    Token F1 is that of two multisets of tokens, in [0, 1], as in SQuAD (Rajpurkar et
    al., 2016). Raises InputError for an unknown rule."""
    if rule not in RULES:
        raise unknown("rule of grading", rule, RULES)
    return _COLUMNS[rule](strip_thinking(response), tuple(answers), language)


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
    for text, answer in ((one, other), (other, one)):
        within, sought = _squeezed(text, language)[0], _squeezed(answer, language)[1]
        # most are told apart by this; `A` and `US` are sought as they are written
        cased = len(sought) == 1 or sought in _WORDS
        if (cased or sought in within) and contains(text, (answer,), language):
            return True
    return False


@lru_cache(maxsize=65536)  # a pool's answers are compared with each other
def _squeezed(text: str, language: str) -> tuple[str, str]:
    """A text's normal form, and that of an answer without its article, without all that
    `forms` and `_places` leave open: a text that contains an answer has it here too."""
    said = plain(strip_thinking(text), language)
    bare = _bare(plain(text, language), main_code(language))
    return said.translate(_OPEN), bare.translate(_OPEN)


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
_COLUMNS = {"strict": _strictly, "paper": _loosely}


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
def powers(code: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
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


def follows(pattern: re.Pattern[str], text: str, start: int) -> bool:
    """Whether what stands at a place follows a pattern of at most forty letters."""
    return pattern.search(text, max(0, start - 40), start) is not None


def is_denied(text: str, start: int, end: int, code: str) -> bool:
    before, alone, behind, only = _denial(code)
    if follows(before, text, start):
        return not alone.match(text, end)
    return behind.match(text, end) is not None and not follows(only, text, start)


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
            or is_denied(text, start, end, code)
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
    after, before = powers(code)
    if _is_digit(answer[-1]) and after.match(text, end):
        return True
    if _is_digit(answer[0]) and follows(before, text, start):
        return True
    _, first, last, behind, ahead = _number_words(code)
    if last.fullmatch(answer) and (behind.match(text, end) or after.match(text, end)):
        return True
    return first.match(answer) is not None and follows(ahead, text, start)


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
