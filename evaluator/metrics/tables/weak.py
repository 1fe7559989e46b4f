"""Table `weak`: which kinds of questions does a checkpoint lose most, compared with its base?

A single accuracy hides where a checkpoint is weak. EvalTree (Zeng et al., arXiv 2503.08893) finds such kinds with a
model; ours are rules. Every kind has, on its items that both checkpoints measured:

    drop       the base's accuracy minus the checkpoint's
    excess     that drop minus the drop on all other kinds of the same sort: above 0, the kind is hit harder
    mcnemar_p  whether the drop may be chance, exact; holm_p corrects it over all kinds of the checkpoint and probe

Intervals are over contexts. A kind with fewer than 20 items has none of these numbers, and a reason. If every kind is
that small, there is no table. Sorts that all items share (one language, no contexts) are left out.

The kinds, by sort:

    language           as the task spells it
    answer type        of the first gold answer: date, number, name or other (`evaluator.tasks.answer_types`)
    answer length      of the first gold answer, in words; in characters if the language has no space between words
    question word      `question_word`
    context length     thirds of a language's contexts, by characters
    answer position    where a gold answer first occurs in the context, both normalised as in grading

The rules are rough but the same for every checkpoint, so a kind's drop is a drop on these very items.

`QUESTION_WORDS` has the question words, by language code. The first of them in a question decides its kind. If two
begin at the same place, the longer one does ("how many" is not "how"). Inflected forms are listed. A language that is
not listed has no kinds of question word. Greek has the same word for "who" and "which": it is under "which".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from evaluator.core.text import code_of, normalise, split_tokens, without_spaces
from evaluator.metrics.columns import (
    COUNT,
    FEW,
    MCNEMAR,
    PERCENTAGE,
    POINTS,
    REASON,
    SUBJECT,
    TEXT,
    Row,
    columns_of,
    few,
)
from evaluator.metrics.drops import CORRECT, sides_of
from evaluator.metrics.figure import Dots, Figure, Series
from evaluator.metrics.inputs import ALL, SIDES, Comparison, Inputs
from evaluator.metrics.means import Mean
from evaluator.metrics.measures import apart, paired_difference
from evaluator.metrics.table import Holm, Table
from evaluator.store.outcomes import MEASURED
from evaluator.tasks.answer_types import answer_type

_STATUSES = ("excluded", "engine_error")
_SHOWN = 5  # kinds of a checkpoint and probe, on the page


def _rows(inputs: Inputs) -> Iterator[Row]:
    kinds: dict[str, pd.DataFrame] = {}
    for comparison in inputs.comparisons().values():
        task = comparison.subject.task
        if comparison.reason:
            continue
        if task not in kinds:
            kinds[task] = _kinds(inputs, task)
        sorted_items = comparison.outcomes.merge(kinds[task], on=["language", "item_id"], how="left")
        for probe in CORRECT:
            if comparison.tells_of(probe):
                yield from _Sorted(inputs, comparison, probe, sorted_items).rows()


def _kinds(inputs: Inputs, task: str) -> pd.DataFrame:
    """The kinds of a task's items, in columns `by <sort>`; only the language if the run has no items."""
    if inputs.items is None or not (inputs.items["task"] == task).any():
        return pd.DataFrame(columns=["language", "item_id"], dtype=object)
    found = kinds_of(inputs.items[inputs.items["task"] == task])
    named = found[[*KINDS[1:]]].rename(columns=_by)
    return named.assign(language=found["language"], item_id=found["item_id"])


def _by(name: str) -> str:
    return f"by {name}"


@dataclass(frozen=True, eq=False)
class _Sorted:
    """One probe of a checkpoint and its base, on the items evaluated on both, with their kinds."""

    inputs: Inputs
    comparison: Comparison
    probe: str
    items: pd.DataFrame

    def rows(self) -> list[Row]:
        """By sort; within it, the largest drop first."""
        rows: list[Row] = []
        for name in KINDS:
            column = "language" if name == "language" else _by(name)
            if column in self.items and self.items[column].nunique() > 1:
                rows += sorted(self._of_sort(name, self.items[column]), key=_largest_first)
        return rows

    def _of_sort(self, name: str, kind_of: pd.Series) -> Iterator[Row]:
        sides = [self.items[f"{self.probe}_status_{side}"] for side in SIDES]
        excluded, failed = (np.logical_or.reduce([side == status for side in sides]) for status in _STATUSES)
        both = np.logical_and.reduce([side.isin(MEASURED) for side in sides])
        done = self.items[both]
        kinds = sorted(kind_of.dropna().unique())
        if done.empty:
            return
        dense, pruned = sides_of(done, CORRECT[self.probe])
        member_KI = np.stack([(kind_of[both] == kind).to_numpy() for kind in kinds])
        contexts = self.inputs.contexts_of(self.comparison.subject.task, done)
        for at, kind in enumerate(kinds):
            here = (kind_of == kind).to_numpy()
            mine = member_KI[at]
            row: Row = {**self.comparison.subject.row, "probe": self.probe, "by": name, "kind": kind}
            row |= {"n": int(mine.sum()), "excluded": int((excluded & here).sum())}
            row["engine_error"] = int((failed & ~excluded & here).sum())
            if few(row["n"]):
                yield row | {"reason": f"too few items: {row['n']} of the {FEW} that a kind needs"}
                continue
            rest = member_KI.any(axis=0) & ~mine
            row |= {"base_accuracy": float(dense[mine].mean()), "accuracy": float(pruned[mine].mean())}
            row |= paired_difference("drop", (dense[mine], pruned[mine]), contexts[mine])
            if rest.any():
                lost = (Mean((dense - pruned)[these], contexts[these], low=-1.0) for these in (mine, rest))
                row |= apart("excess", *lost)
            yield row


def _largest_first(row: Row) -> float:
    """Kinds with too few items come last."""
    return -float(row.get("drop", -np.inf))


def _weakest(frame: pd.DataFrame) -> pd.DataFrame:
    """The kinds with the largest drops, of each checkpoint and probe."""
    dropped = frame[frame["drop"] > 0]
    groups = dropped.groupby(["task", "checkpoint", "probe"], sort=False)
    return pd.concat([dropped.head(0), *(group.nlargest(_SHOWN, "drop") for _, group in groups)], ignore_index=True)


_PROBES = {"greedy": "open", "choice": "choice"}
_DRAWN = 16  # kinds


def _worst_kinds(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per checkpoint and kind."""
    worst = frame[frame["drop"].notna()].nlargest(_DRAWN, "drop")
    return worst.assign(checkpoint=worst["checkpoint"] + ": " + worst["by"] + ", " + worst["kind"], language=ALL)


TABLE = Table(
    name="weak",
    title="Which kinds of questions does it lose?",
    reading=(
        "Items by rule: language, type and length of the answer, question word, length of the context, and position "
        "of the answer in it. Drop is the base's accuracy minus the checkpoint's on the items of a kind. Excess is "
        "this drop minus the drop on the other kinds of the same sort; it shows where the checkpoint has become "
        "weak. The p values test whether a kind dropped at all. The page shows the largest drops of each "
        "checkpoint; the CSV has all kinds, and names those with too few items."
    ),
    needs="the probe greedy or choice on a checkpoint and its base",
    columns=(
        *SUBJECT,
        *columns_of(TEXT, "probe", "by", "kind"),
        *columns_of(COUNT, "n", "excluded", "engine_error"),
        *columns_of(PERCENTAGE, "base_accuracy", "accuracy"),
        *columns_of(POINTS, "drop", "excess", interval=True),
        *MCNEMAR,
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        tuple(
            Dots(
                title,
                tuple(Series(column, probe, label, {"probe": probe}) for probe, label in _PROBES.items()),
                "points",
                legend=4 * (column == "drop"),
            )
            for column, title in (("drop", "Drop from the base"), ("excess", "More than the other kinds"))
        ),
        rows=_worst_kinds,
    ),
    corrections=(Holm(("task", "checkpoint", "probe")),),
    any_of="drop",
    silent=True,
    page=_weakest,
)


KINDS = ("language", "answer type", "answer length", "question word", "context length", "answer position")
_THIRDS = ("shortest third", "middle third", "longest third")
_PLACES = ("first third", "middle third", "last third")
_NOWHERE = "not in the context"


def kinds_of(items: pd.DataFrame) -> pd.DataFrame:
    """One row per item of a task: language, id, and a column per sort in KINDS with the item's kind or None. `items`
    has the columns of `evaluator.core.records.Item`."""
    columns: dict[str, Sequence[str | None]] = {"language": items["language"].tolist()}
    answers = [str(each[0]) if len(each) else "" for each in items["answers"]]
    languages, questions, contexts = (items[name].tolist() for name in ("language", "question", "context"))
    columns["answer type"] = [answer_type(*each) if each[0] else None for each in zip(answers, languages, strict=True)]
    columns["answer length"] = [answer_length(*each) for each in zip(answers, languages, strict=True)]
    columns["question word"] = [question_word(*each) for each in zip(questions, languages, strict=True)]
    columns["context length"] = _context_lengths(contexts, languages)
    columns["answer position"] = [answer_position(*each) for each in zip(contexts, items["answers"], strict=True)]
    return pd.DataFrame(columns, index=items.index, dtype=object).assign(item_id=items["item_id"])


def answer_length(answer: str, language: str) -> str | None:
    """The length in words, or in characters for languages without spaces between words; None for punctuation alone."""
    units = len(split_tokens(normalise(answer), language))
    if not units:
        return None
    if without_spaces(language):
        return _bucket(units, {3: "1 to 3 characters", 8: "4 to 8 characters"}, "9 or more characters")
    return _bucket(units, {1: "1 word", 3: "2 to 3 words"}, "4 or more words")


def answer_position(context: str, answers: Sequence[str]) -> str | None:
    """Where the first of the gold answers begins; None without a context."""
    whole = normalise(context)
    if not whole:
        return None
    found = [whole.find(answer) for answer in map(normalise, answers) if answer and answer in whole]
    return _PLACES[min(2, 3 * min(found) // len(whole))] if found else _NOWHERE


def _context_lengths(contexts: Sequence[str], languages: Sequence[str]) -> list[str | None]:
    lengths = np.array([len(context) for context in contexts], dtype=np.float64)
    spoken = np.asarray(languages, dtype=object)
    found: list[str | None] = [None] * len(contexts)
    for language in sorted(set(languages)):
        here = np.flatnonzero((spoken == language) & (lengths > 0))
        if not len(here) or lengths[here].min() == lengths[here].max():
            continue
        ends = np.quantile(lengths[here], [1 / 3, 2 / 3])
        for place in here:
            found[place] = _THIRDS[int(np.searchsorted(ends, lengths[place]))]
    return found


def _bucket(value: int, upper: Mapping[int, str], rest: str) -> str:
    return next((name for end, name in upper.items() if value <= end), rest)


NONE = "none of the known"
# Language -> kind -> words, in the form that `normalise` gives a text.
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
    """The patterns to find in a padded question, each with its kind."""
    before = "" if without_spaces(code) else " "
    after = "" if without_spaces(code) or code in _STEMS else " "
    kinds = QUESTION_WORDS.get(code, {})
    return tuple(
        (f"{before}{normalise(word)}{after}", kind) for kind, words in kinds.items() for word in words.split(",")
    )


def question_word(question: str, language: str) -> str | None:
    """The kind of a question by its question word; None for a language without listed words."""
    code = code_of(language)
    patterns = _patterns(code)
    if not patterns:
        return None
    padded = f" {normalise(question)} "
    found = [(padded.find(pattern), -len(pattern), kind) for pattern, kind in patterns if pattern in padded]
    return min(found)[2] if found else NONE
