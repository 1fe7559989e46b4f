"""The words that questions ask with, by the language's code: what table `weak` sorts questions by.

A question is of the kind whose word stands first in it, the longer one where two begin at one place ("how many" is not
"how"). Inflected forms are listed. A language that is not here has no kinds of question word. Greek asks for persons
and for one of several with one word: it stands under "which".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from evaluator.core.text import code_of, normalise, without_spaces

NONE = "none of the known"
# Of each language, kind -> words, in the form that `normalise` gives a text.
QUESTION_WORDS: Mapping[str, Mapping[str, str]] = {
    "ar": {
        "who": "من", "what": "ما, ماذا, ماهي, ماهو", "when": "متى", "where": "أين", "which": "أي, أية, بأي, لأي",
        "why": "لماذا, لم", "how many": "كم, بكم", "how": "كيف",
    },
    "bn": {
        "who": "কে, কার, কাকে, কারা", "what": "কী, কি", "when": "কখন, কবে", "where": "কোথায়, কোথা", "which": "কোন, কোনটি",
        "why": "কেন", "how many": "কত, কতটি, কতজন, কয়টি", "how": "কিভাবে, কীভাবে, কেমন",
    },
    "de": {
        "who": "wer, wen, wem, wessen", "what": "was", "when": "wann", "where": "wo, wohin, woher",
        "which": "welche, welcher, welches, welchen, welchem", "why": "warum, weshalb, wieso",
        "how many": "wie viel, wie viele, wie vielen, wieviel, wieviele", "how": "wie",
    },
    "el": {
        "what": "τι", "when": "πότε", "where": "πού", "which": "ποιος, ποια, ποιο, ποιον, ποιοι, ποιες, ποιους, ποιων",
        "why": "γιατί", "how many": "πόσο, πόσα, πόσοι, πόσες, πόσων, πόσους", "how": "πώς",
    },
    "en": {
        "who": "who, whom, whose", "what": "what, whats", "when": "when", "where": "where", "which": "which",
        "why": "why", "how many": "how many, how much", "how": "how",
    },
    "es": {
        "who": "quién, quiénes", "what": "qué", "when": "cuándo", "where": "dónde, adónde", "which": "cuál, cuáles",
        "why": "por qué", "how many": "cuánto, cuánta, cuántos, cuántas", "how": "cómo",
    },
    "fi": {
        "who": "kuka, kenen, ketkä, ketä, keneltä, kenelle", "what": "mikä, mitä, minkä, mitkä",
        "when": "milloin, koska",
        "where": "missä, mistä, mihin, minne", "which": "kumpi, kumman", "why": "miksi",
        "how many": "kuinka monta, kuinka paljon, kuinka moni, montako, paljonko", "how": "miten, kuinka",
    },
    "hi": {
        "who": "कौन, किसने, किसे, किसका, किसकी, किसके", "what": "क्या", "when": "कब", "where": "कहाँ, कहां",
        "which": "किस, कौन सा, कौन सी, कौन से, किन", "why": "क्यों", "how many": "कितने, कितना, कितनी", "how": "कैसे",
    },
    "id": {
        "who": "siapa, siapakah", "what": "apa, apakah", "when": "kapan, kapankah, bilamana",
        "where": "di mana, dimana, dimanakah, dari mana, ke mana, kemana", "which": "mana, manakah",
        "why": "mengapa, kenapa", "how many": "berapa, berapakah", "how": "bagaimana, bagaimanakah",
    },
    "ja": {
        "who": "誰, だれ", "what": "何, なに, なん", "when": "いつ, 何年, 何月, 何日", "where": "どこ",
        "which": "どの, どちら, どれ, どんな", "why": "なぜ, どうして",
        "how many": "いくつ, いくら, 何人, 何個, 何回, どれくらい",
        "how": "どのように, どう",
    },
    "ko": {
        "who": "누구, 누가", "what": "무엇, 무슨, 뭐", "when": "언제", "where": "어디", "which": "어느, 어떤",
        "why": "왜", "how many": "몇, 얼마", "how": "어떻게",
    },
    "ro": {
        "who": "cine, cui", "what": "ce", "when": "când", "where": "unde", "which": "care, cărui, cărei",
        "why": "de ce", "how many": "cât, câtă, câți, câte, câţi", "how": "cum",
    },
    "ru": {
        "who": "кто, кого, кому, кем, чей, чья", "what": "что, чего, чему, чем", "when": "когда",
        "where": "где, куда, откуда",
        "which": "какой, какая, какое, какие, каком, какую, каких, какого, каким, который",
        "why": "почему, зачем", "how many": "сколько, скольких", "how": "как",
    },
    "sw": {
        "who": "nani", "what": "nini", "when": "lini", "where": "wapi",
        "which": "gani, ipi, yupi, upi, lipi, kipi, zipi, yapi", "why": "kwa nini, kwanini",
        "how many": "ngapi, wangapi, mangapi, vingapi, kiasi gani", "how": "vipi, jinsi gani",
    },
    "te": {
        "who": "ఎవరు, ఎవరి, ఎవరిని", "what": "ఏమిటి, ఏంటి, ఏది, ఏమి", "when": "ఎప్పుడు", "where": "ఎక్కడ", "which": "ఏ",
        "why": "ఎందుకు", "how many": "ఎన్ని, ఎంత, ఎంతమంది", "how": "ఎలా",
    },
    "th": {
        "who": "ใคร", "what": "อะไร", "when": "เมื่อไร, เมื่อไหร่, เมื่อใด", "where": "ที่ไหน, ที่ใด", "which": "ใด, ไหน",
        "why": "ทำไม, เพราะเหตุใด", "how many": "เท่าไร, เท่าไหร่, เท่าใด, กี่", "how": "อย่างไร, ยังไง",
    },
    "tr": {
        "who": "kim, kimin, kimi, kime, kimdir, kimler", "what": "ne, nedir, neyi, neye, nelerdir", "when": "ne zaman",
        "where": "nerede, nereye, nereden, nerededir, neresi", "which": "hangi, hangisi, hangisidir, hangileri",
        "why": "neden, niçin, niye", "how many": "kaç, kaçtır, kaçta, ne kadar, ne kadardır", "how": "nasıl",
    },
    "vi": {
        "who": "ai", "what": "gì", "when": "khi nào, bao giờ", "where": "ở đâu, đâu", "which": "nào",
        "why": "tại sao, vì sao",
        "how many": "bao nhiêu, mấy", "how": "như thế nào, thế nào",
    },
    "zh": {
        "who": "谁, 誰", "what": "什么, 什麼, 何", "when": "什么时候, 何时, 哪年, 哪一年, 什么时间",
        "where": "哪里, 哪儿, 何处, 哪裡",
        "which": "哪, 哪个, 哪些, 哪位, 哪一个", "why": "为什么, 为何, 為什麼", "how many": "多少, 几, 幾",
        "how": "如何, 怎么, 怎样, 怎麼",
    },
}  # fmt: skip
_STEMS = frozenset(("ko",))  # particles follow the word without a space


@lru_cache(maxsize=64)
def _patterns(code: str) -> tuple[tuple[str, str], ...]:
    """What to look for in a padded question, and the kind that it stands for."""
    before = "" if without_spaces(code) else " "
    after = "" if without_spaces(code) or code in _STEMS else " "
    kinds = QUESTION_WORDS.get(code, {})
    return tuple(
        (f"{before}{normalise(word)}{after}", kind) for kind, words in kinds.items() for word in words.split(",")
    )


def question_word(question: str, language: str) -> str | None:
    """What kind of word a question asks with; None for a language whose words are not known."""
    code = code_of(language)
    patterns = _patterns(code)
    if not patterns:
        return None
    padded = f" {normalise(question)} "
    found = [(padded.find(pattern), -len(pattern), kind) for pattern, kind in patterns if pattern in padded]
    return min(found)[2] if found else NONE
