"""The strict grader's normal form of a text: what is left of it when spelling, script
and layout do not matter. Pure.

    plain("The O'Brien “Café” cost ３,000.", "en") == "the o'brien café cost 3000"

- Characters: NFKC and case folding (Turkish and Azerbaijani: `I` is `ı`, `İ` is `i`;
  elsewhere both are `i`). Format characters go. So do the vowel marks of Arabic, Hebrew
  and Syriac, tatweel, and stress marks on Cyrillic. Accents of Latin and Greek and the
  vowel signs of India stay. Digits of every script are one.
- Numbers: thousands are joined, by the language's custom where a sign is ambiguous:
  `1.000` is 1 in English and 1000 in German. Seven signs stay where they belong to a
  number: ⋅ (decimal), − (minus or range), ⁄ (fraction), ∶ (time), ×, ^, ±. A usual
  unit or currency stands apart: `10km` is `10 km`. `1e3` is 1000, and `10**3` is 10^3.
- Punctuation goes. Inside a word it becomes `'`, a joint: `e-mail`, `O'Brien`
  (`forms`). Between digits it is a space.
- `5k` is `5 thousand`, `1.50` is 1.5, `minus 5` is −5, `5 to 6` a range, `1990's`
  `1990s`, and `km/h` a unit of its own. `3 × 10^8` and LaTeX's `3 \\cdot 10^{8}` are
  300000000, and `\\frac{1}{2}` is 1/2. A negation has no joint: `not_true` is one word.
- Spellings of one sound are one: Arabic kaf, yeh and alef, Russian `ё`, nasals before a
  consonant in Hindi, the place of a tone in Vietnamese.
- White space is single, and none stands beside a character of scripts that put no space
  between words.
"""

import re
import unicodedata
from decimal import Decimal
from fractions import Fraction
from functools import cache, lru_cache, partial

from evaluator.core.text import (
    BY_SPACE,
    UNSPACED,
    WITH_COMMA,
    is_punctuation,
    main_code,
)

SIGNS = frozenset("⋅−⁄∶×^+±♯√")  # of numbers, and of `C♯`
_TURKIC = frozenset(("tr", "az"))
_DEVANAGARI = frozenset(("hi", "mr", "ne", "mai", "bho"))
# Before NFKC, which would make an accent of an apostrophe, and lose how thousands,
# powers and fractions look.
_BEFORE = str.maketrans(
    dict.fromkeys("´`‘’‛ʹʻʼʽˈ′‵＇ꞌ᾽᾿῾՚׳ߴߵ", "'")
    | {
        "№": " no ",
        "™": " ",
        "º": "°",
        "⋅": ".",
        "٫": ".",
        "٬": "'",
        "،": ",",
        "İ": "i",
    }
)
_ODD = re.compile(f"[{''.join(map(chr, _BEFORE))}\u00a0\u2009\u202f⁻⁰¹²³⁴-⁹¼-¾⅐-⅞]")
_GROUPED = re.compile(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))")
_UNDERSCORED = re.compile(r"(?<!\d)(\d{1,3})_(?=\d{3}(?!\d))")
# Of LaTeX: what becomes a sign, what only arranges, and what a command says of a text.
_FRACTION = re.compile(
    r"(\d?)\\[dtc]?frac *(?:\{([^{}]*)\}|(\d)) *(?:\{([^{}]*)\}|(\d))"
)
_LATEX = tuple(
    (re.compile(pattern), sign)
    for pattern, sign in (
        # not `$5 and $6`, nor `$5 (US$)`
        (
            r"(?<![\w$])\$\$?(?=\S)(?!\d[\d.,]* [(a-zA-Z])([^$\n]*[^$\s])\$\$?(?!\w)",
            r"\1",
        ),
        (r"\{,\}|,\\!", ","),
        (r"\\(?:left|right|displaystyle|big\w*|limits)(?![a-z])", ""),
        (r"\\sqrt *(?:\[\d\])? *\{?", "√"),
        (r"\\pm(?![a-z])", "±"),
        (r"\^? *\{? *\\circ(?![a-z]) *\}?", "°"),
        (r"\\(?:times|cdot)(?![a-z])", "×"),
        (r"\\pi(?![a-z])", "π"),
        (r"\\[a-zA-Z]+\*? *\{|\\[,;:! ]|\\quad|\\(?=[%$])", " "),
    )
)
_BRACED = re.compile(r"\^(?:\{([-+]?\d+)\}|\(([-+]?\d+)\))")
_LISTED = re.compile(
    r"[(\[{]-?\d+(?:,-?\d{1,2}(?!\d))+[)\]}]"
)  # `(3,4)` has two numbers
_EQUALS = re.compile(r"(?<=[\w)]) ?= ?(?=[-\w(])")
_TIMES_TEN = re.compile(
    r"(?<=\d) ?[×x*·⋅∙] ?10 ?(?:\^|\*\*) ?([-−+]?\d\d?)(?!\d)", re.IGNORECASE
)
_NASAL = re.compile("ङ्(?=[क-घ])|ञ्(?=[च-झ])|ण्(?=[ट-ढ])|न्(?=[त-ध])|म्(?=[प-भ])")
# `hòa` and `hoà`, decomposed
_TONE = re.compile("(o(?=.[ae])|u(?=.y))([\u0300\u0301\u0303\u0309\u0323])(.)(?!\\w)")
_POWER = re.compile(r"(?<=\d)(?=[⁻⁰¹²³⁴-⁹])")
_MIXED = re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞])")
# Marks that readers leave out: Hebrew, Arabic with tatweel, Syriac; fillers and
# variation selectors of all scripts.
_DROPPED = re.compile(
    "[\u0591-\u05bd\u05bf\u05c1-\u05c2\u05c4-\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4"
    "\u06e7-\u06e8\u06ea-\u06ed\u0711\u0730-\u074a\u08d3-\u08ff\u034f\u115f-\u1160\u17b4-\u17b5\u180b-\u180f\u3164"
    "\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
_STRESS = re.compile("(?<=[\u0400-\u052f])[\u0300\u0301]+")
_APART = re.compile(f"(?<=[{UNSPACED}])[ ']+(?=\\S)|(?<=\\S)[ ']+(?=[{UNSPACED}])")
# a number that is more than its digits
_MARKED = re.compile(r"[-.,/:~'—+×][$€£¥₹₩]?\d|\d [-/:] \d|\d \d{3}")
_SPREAD = re.compile(r"(?<=\d) ([-/:]) (?=\d)")
_WRITTEN = re.compile(r"\d+(?:[.,']\d+)+")
# Groups of thousands, and the decimal sign: with a decimal comma, and with a point.
_CUSTOMS = tuple(
    (
        re.compile(
            rf"[1-9]\d{{0,2}}(?:{group}\d{{3}})+|[1-9]\d?(?:{group}\d\d)+{group}\d{{3}}"
        ),
        decimal,
    )
    for group, decimal in (("[.']", ","), ("[,']", "."))
)
_BY_SPACE = re.compile(r"(?<![\d.,/:-])[1-9]\d{0,2}(?: \d{3})+(?![\d/:]|[.,]\d{3})")
# `1 000 000` and `5 000`: in every language
_SURELY = re.compile(
    r"(?<![\d.,/:-])(?<!\d )[1-9]\d{0,2}(?= 0\d\d| \d{3} \d{3})(?: \d{3})+"
    r"(?! ?\d|[/:]|[.,]\d{3})"
)
_DAY_FIRST = re.compile(r"(?<!\d)(\d\d?([./-])\d\d?\2)(\d{4})(?!\d)")
_YEAR_FIRST = re.compile(r"(?<!\d)(\d{4})([./-]\d\d?[./-]\d\d?)(?!\d)")
# before and after `1.10`, which is no decimal there
_IN_A_DATE = re.compile(r"\.$|\d[/:,-]$|\bv$|\bversion $")  # or a version
_OF_A_DATE = re.compile(r"\.? ?\d{4}(?!\d)|[-/:.]\d")
_NOTHING = re.compile(r"(?<=^\d)[.,]00?$|(?<=\d\d)[.,]00?$")
_LEADING = re.compile(r"(?<![\w.,])\.(?=\d)")
_BETWEEN = re.compile(
    r"(?<=\d)(?:[-.,/:~—×]|\.\.\.?)(?=\d)|(?<=[\d$€£¥₹₩])[-~—](?=[$€£¥₹₩]?\d)"
)
_UNIT = re.compile(
    r"(?<=\d)(?=(?:[ap]m|bce?|ω|[kcmμ]?m[23]?|[km]?g|m?l|mph|ft|lbs?|[kmg]?hz|[kmgt]b|[km]?w)"
    rf"(?![^\W{UNSPACED}]))"
)
_CURRENCY = re.compile(
    r"(?<![^\W_])(usd|eur|gbp|jpy|cny|inr|chf|cad|aud|rs)(?=\d)", re.IGNORECASE
)
# `5k`, and `5M`, which is not `5 m`; of money also `5 M`
_SUFFIX = re.compile(
    r"(?<=\d)([kKMBT])(?!\w)|(?<![^\W\d_])([$€£¥₹₩] ?\d[\d.,]*) ?([kmbtKMBT])(?!\w)"
)
_SYMBOL = re.compile(r"(?<=[$€£¥₹₩])\s+(?=\d)")
_SUFFIXES = {"k": " thousand", "m": " million", "b": " billion", "t": " trillion"}
_DECADE = re.compile(
    r"(?<=\d0)[-':](?=(?:s|er|es|tal|tals|talet|luvu\w*)\b)"
    r"|(?<=\d\d\d0)[-'](?=(?:[ех]|ті|тих|an|lar\w*|lı)\b)"
)
_RATE = re.compile(
    r"(?<=\d)( ?[^\W\d_]{1,4}[23]?)(?:/| (?:per|pro|par|por) )(?=[^\W\d_])"
)
_MINUS = re.compile(
    r"(?<!\w)(?<!\d )(?:minus|negative|negativ[eo]?|negatif|moins|menos|meno|miinus|"
    r"mínusz|мінус|минус|μείον|eksi|âm|負の?|负|マイナス|마이너스|ลบ|سالب|ناقص|منفی|ऋण)"
    r" ?(?=[$€£¥₹₩]?\d)"
)
_NUMBERS = re.compile(r"\d[\d.,']*")
_NUMBER = r"[$€£¥₹₩]?\d[\d.,']*[$€£¥₹₩]?"
_PERCENT = re.compile(r"(?<=\d) ?%(?= ?(?:-|\w+) ?\d[\d.,]* ?%)")  # `5 % to 6 %`
# `5 to 6` is one value. `from 1914 to 1918` names both ends: of a time or a change.
_FROM = (
    *("from ", "von ", "de ", "du ", "des ", "desde ", "da ", "dal ", "del ", "van "),
    *("från ", "fra ", "od ", "с ", "від ", "từ ", "dari ", "kutoka "),
)
_UNTIL = (
    r"(?:(?<!\w)(?:(?:up )?to|through|thru|until|bis|à|a|tot|t/m|till|til|do|до|έωσ|đến|tới|sampai|"
    r"hingga|hadi|se|ila|până la|থেকে|الى|تا)(?!\w)|至|到|から|에서|부터|ถึง)"
)
_TO = re.compile(rf"(?<![\d.,'])({_NUMBER})年? ?{_UNTIL} ?(?={_NUMBER})")
# `5 km to 6 km`: the first unit
_UNIT_TWICE = re.compile(
    rf"(?<![\d.,'])({_NUMBER}) ?([^\W\d_{UNSPACED}]+)"
    rf"(?= ?(?:{_UNTIL}|-) ?{_NUMBER} ?\2(?!\w))"
)
_AND = re.compile(
    r"\b(?:between|zwischen|entre|tra|fra|tussen|mellan|mellem|mellom|между|між|między|mezi|"
    rf"giữa|antara|kati ya|بین)\b ({_NUMBER}) (?:and|und|et|y|e|en|och|og|и|і|i|a|và|dan|na|"
    rf"و) ?(?={_NUMBER})"
)
_NEGATED = re.compile(r"(?<![^\W_])(non|not|anti|un)[-_‐‑](?=[^\W_])")
_POWERED = re.compile(r"(?<=\d)\*\*(?=-?\d)")
_EXPONENT = re.compile(r"(?<=\d[eE])-(?=\d)")
# alone: no part of another number
_SCIENTIFIC = re.compile(
    r"(?<!\S)(?<!\d\s)([−±$€£¥₹]*)(\d+)(?:⋅(\d+))?[eE]([+−]?\d{1,2})(?!\s\d)"
    rf"(?![^\s{UNSPACED}])"
)
_ERROR = re.compile(r"[\s']*±[\s']*(?=\d)")
_NEGATIVE = re.compile(r"(?<!\w)-([$€£¥₹₩]?)(?=\d)")
_POSITIVE = re.compile(r"(?<!\w)\+(?=\d)")
_SIGN_OF = {
    "-": "−",
    "~": "−",
    "—": "−",
    ".": "⋅",
    ",": "⋅",
    "/": "⁄",
    ":": "∶",
    "×": "×",
    "..": "−",
    "...": "−",
}
_WHOLE = re.compile(r"(?<=\d)\s(?=\d{1,2}⁄\d{1,2}(?![\d⁄]))")
# Behind a sign that ends a clause, also in quotes or Markdown, or at a dash; not in
# `one million, two hundred thousand`.
_CLAUSE = re.compile(
    r"[-.,;:!?…।॥؟؛—。、](?:(?<=[.;:!?…।॥؟؛—])[^\w\s$€£¥₹₩(\[{«‹„“‘]*(?=\s)"
    r"|(?<=,)(?<!thousand,)(?<!illion,)(?=\s)|(?<=\s-)(?=\s)"
    rf"|(?<=[{UNSPACED}][,;:!?])|(?<=[。、]))"
)
# `J.K.` and `J. K.`
_INITIALS = re.compile(r"\b([^\W\d_])\.(?:(?=[^\W\d_]\b)| (?=[^\W\d_]\.))")
# Of a programming language, a note or a grade: `c#`, `c++`, `a+`. The number sign of
# `#5` is punctuation.
_SHARP = re.compile(r"(?<=[^\W\d_])#(?!\w)")


@cache
def _kept(char: str) -> str:
    """What is kept of a character after NFKC."""
    kind = unicodedata.category(char)
    # flags have tags
    if _DROPPED.match(char) or (
        kind == "Cf" and not "\U000e0020" <= char <= "\U000e007f"
    ):
        return ""
    if kind == "Nd":
        return str(unicodedata.decimal(char))
    if kind == "Pd" or char in "−˗":
        return "—" if char in "—―⸺⸻" else "-"
    return _OTHERS.get(char, "." if char > "\uffff" and is_punctuation(char) else char)


# and letters of one sound that Arabic and Russian spell in two ways
_OTHERS = {"⁄": "/", "∕": "/", "∶": ":", "°": " "} | dict(
    zip("كيأإٱё", "کیاااе", strict=True)
)


@cache
def _punctuation() -> re.Pattern[str]:
    """Runs of punctuation of 16 bits; `_kept` makes a point of any other."""
    signs = "".join(filter(is_punctuation, map(chr, range(2**16))))
    return re.compile(f"[{re.escape(signs)}]+")


@lru_cache(maxsize=65536)  # every answer is compared with others of its pool
def plain(text: str, language: str, *, cased: bool = False) -> str:
    """The normal form of an answer. `cased`: without case folding."""
    return flat(in_clauses(text, language, cased=cased))


def flat(clauses: str) -> str:
    """The normal form whose clauses `in_clauses` shows."""
    return _APART.sub("", clauses.replace("\n", " "))


@lru_cache(maxsize=1024)  # an item's few texts are compared with each other
def in_clauses(text: str, language: str, *, cased: bool = False) -> str:
    """The normal form with a line for each clause, so that a word's neighbours are
    those that it was written with: `It is not. Paris is.` does not deny Paris."""
    code = main_code(language)
    text = unicodedata.normalize("NFC", text)
    text = _without_latex(text)
    if code in _TURKIC and not cased:
        text = text.replace("I", "ı")
    if _ODD.search(text):
        text = _GROUPED.sub("", text.translate(_BEFORE))
        text = _MIXED.sub("+", _POWER.sub("^", text))
    text = unicodedata.normalize("NFKC", text)
    if has_digits := _NUMBERS.search(text):
        text = _UNDERSCORED.sub(r"\1", _SYMBOL.sub("", _SUFFIX.sub(_thousands, text)))
        text = _TIMES_TEN.sub(r"e\1", _BRACED.sub(r"^\1\2", text))
        text = _LISTED.sub(lambda found: found[0].replace(",", ", "), text)
        text = _EQUALS.sub(" = ", text)
    if not cased:
        text = unicodedata.normalize("NFKC", text.casefold())
    text = unicodedata.normalize("NFKC", "".join(map(_kept, text)))
    text = _in_one_spelling(text, code)
    if has_digits:
        if len(_NUMBERS.findall(text)) > 1:
            text = _AND.sub(r"\1-", _PERCENT.sub("", text))
            text = _TO.sub(_range, _UNIT_TWICE.sub(_without_unit, text))
        text = _DECADE.sub("", _RATE.sub(r"\1⁄", _MINUS.sub("-", text)))
        text = _EXPONENT.sub("−", _POWERED.sub("^", _CURRENCY.sub(r"\1 ", text)))
        text = _UNIT.sub(" ", _numbers(text, code) if _MARKED.search(text) else text)
    if "." in text[:-1]:
        text = _INITIALS.sub(r"\1", text)
    if "#" in text:
        text = _SHARP.sub("♯", text)
    text = _punctuation().sub(_joint, _CLAUSE.sub(r"\g<0>\n", text))
    lines = filter(None, (" ".join(line.split()) for line in text.splitlines()))
    text = _WHOLE.sub("+", "\n".join(lines))
    if has_digits:
        text = _SCIENTIFIC.sub(_expanded, _ERROR.sub(" ±", text).strip())
        if "=" in text:  # punctuation stood beside it
            text = _EQUALS.sub(" = ", _APART.sub("", text))
    return _APART.sub("", text)


def forms(normal: str) -> tuple[str, ...]:
    """The texts that a normal form stands for: with each joint closed, and open.
    `e'mail`: `email`, `e mail`. A range that names its ends is also one value."""
    if "'" in normal:
        return *forms(normal.replace("'", "")), *forms(normal.replace("'", " "))
    return (normal, normal.replace("∼", "−")) if "∼" in normal else (normal,)


def _numbers(text: str, code: str) -> str:
    text = _SURELY.sub(lambda found: _digits(found[0]), _SPREAD.sub(r"\1", text))
    if code in BY_SPACE:
        text = _BY_SPACE.sub(lambda found: _digits(found[0]), text)
    text = _YEAR_FIRST.sub(r"\1 \2", _DAY_FIRST.sub(r"\1 \3", text))
    text = _WRITTEN.sub(partial(_joined, comma=code in WITH_COMMA), text)
    text = _BETWEEN.sub(lambda found: _SIGN_OF[found[0]], _LEADING.sub("0.", text))
    return _POSITIVE.sub("", _NEGATIVE.sub(r"\1−", text))


def _joined(found: re.Match[str], comma: bool) -> str:
    """A number without thousands: grouped by the language's custom, or without doubt
    by the other one."""
    number = found[0]
    (own, decimal), (other, _) = customs = _CUSTOMS if comma else _CUSTOMS[::-1]
    for groups, mark in customs:
        whole, _, part = number.rpartition(mark)
        if groups.fullmatch(whole) and part.isdecimal():
            return _short(f"{_digits(whole)}.{part}")
    grouped = own.fullmatch(number) or (
        other.fullmatch(number) and number.count(decimal) > 1
    )
    if grouped:
        return _digits(number)
    before, after = found.string[: found.start()], found.string[found.end() :]
    if _IN_A_DATE.search(before) or _OF_A_DATE.match(after):
        return number
    whole, _, part = number.partition(decimal)
    # three digits might be thousands, but not of 0
    if part.isdecimal() and whole.isdecimal() and (len(part) != 3 or whole == "0"):
        return _short(f"{whole}.{part}")
    return _NOTHING.sub("", number)


def _short(number: str) -> str:
    """A decimal number without zeros at its end."""
    return number.rstrip("0").rstrip(".")


def _range(found: re.Match[str]) -> str:
    named = found.string[: found.start()].endswith(_FROM)
    return f"{found[1]}{'∼' if named else '-'}"


def _without_unit(found: re.Match[str]) -> str:
    named = found.string[: found.start()].endswith(_FROM)
    return found[0] if named else found[1]


def _thousands(found: re.Match[str]) -> str:
    return (found[2] or "") + _SUFFIXES[(found[1] or found[3]).lower()]


def _fraction(found: re.Match[str]) -> str:
    whole, *parts = found.groups("")
    above, below = "".join(parts[:2]), "".join(parts[2:])
    return f"{whole} {above}/{below}" if whole else f"{above}/{below}"


def _in_one_spelling(text: str, code: str) -> str:
    text = _STRESS.sub("", text)
    if code in _DEVANAGARI:
        text = _NASAL.sub("ं", text)
    elif code == "vi":
        text = _TONE.sub(r"\1\3\2", unicodedata.normalize("NFD", text))
        text = unicodedata.normalize("NFC", text)
    return _NEGATED.sub(r"\1", text) if "-" in text or "_" in text else text


def _without_latex(text: str) -> str:
    if not any(sign in text for sign in "\\{$"):
        return text
    text = _FRACTION.sub(_fraction, text)
    for pattern, sign in _LATEX:
        text = pattern.sub(sign, text)
    return text


def _expanded(found: re.Match[str]) -> str:
    """A number in scientific notation, written out."""
    signs, whole, part, exponent = found.groups("")
    value = Decimal(f"{whole}.{part}e{exponent.replace('−', '-')}")
    return signs + f"{value.normalize():f}".replace(".", "⋅")


def _digits(number: str) -> str:
    return re.sub(r"\D", "", number)


def _joint(found: re.Match[str]) -> str:
    """What a run of punctuation becomes."""
    text, start, end = found.string, found.start(), found.end()
    before, after = text[start - 1 : start], text[end : end + 1]
    if before.isspace() or after.isspace() or not (before and after):
        return ""
    return " " if before.isdecimal() and after.isdecimal() else "'"


_UNITS = dict(
    zip(
        "십十백百천千만万萬억億亿조兆",
        (1, 1, 2, 2, 3, 3, 4, 4, 4, 8, 8, 8, 12, 12),
        strict=True,
    )
)
_PART = f"\\d+(?:⋅\\d+)?[{''.join(_UNITS)}]+"
# two parts or more, or several units; no `5千克`
_COMPOUND = re.compile(
    rf"(?<![\d⋅])(?:{_PART}(?: ?{_PART})+\d*|{_PART}\d+|\d+[{''.join(_UNITS)}]{{2,}})(?![\d⋅克米瓦])"
)


# Behind a number, a calculation of it: `18 (13+5)`. `3(4+5)` multiplies.
_TERM = r"[$€£¥]?\d[\d.,]{0,30}%?"
_CALCULATION = re.compile(
    rf"(?<=[\d%$€£¥])[^\S\n]{{1,3}}[(（\[]=?\s?{_TERM}"
    rf"(?:\s?[-+−–*/×x·÷=]\s?{_TERM}){{1,30}}\s?[)）\]]"
)
# The exponent of `1e300`, which has no digits here, is a part of it as that of `1^300`
# is; so is what a letter joins: `2x+1`, `0x1f`.
_JOINED = re.compile(r"(?<=\d)[a-z](?=[+−^]?\d)")


def in_numbers(text: str, language: str) -> str:
    """The clauses with `percent` for its sign, with `1억2000만`, `3万5000` and `5천만` in
    digits, and without a number's calculation. What only begins with a number is a
    power."""
    normal = _CALCULATION.sub(" ", text).replace("%", " percent ")
    normal = _JOINED.sub("^", in_clauses(normal, language))
    return _COMPOUND.sub(_total, normal)


def _total(match: re.Match[str]) -> str:
    """The value of digits and units: those below 10,000 multiply what is before them,
    larger ones the sum since the last of these. Of more than 99 signs, a power."""
    if len(match[0]) > 99:
        return "1^1"
    total, section, number = Fraction(0), Fraction(0), Fraction(0)
    for digits, unit in re.findall(r"(\d[\d⋅]*)|(\w)", match[0]):
        power = _UNITS.get(unit, 0)
        if digits:
            number = Fraction(digits.replace("⋅", "."))
        elif power < 4:
            section, number = section + (number or 1) * 10**power, Fraction(0)
        else:
            total += (section + number) * 10**power
            section, number = Fraction(0), Fraction(0)
    value = total + section + number
    if value.denominator == 1:
        return str(int(value))
    return f"{float(value):f}".replace(".", "⋅")
