"""The verdicts on runs as text for other programs: JSON, Markdown for a merge request,
JUnit's XML.

Answers, names and reasons may hold anything. Markdown shows them as code, without the
characters that could end it; XML has no control characters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd

from evaluator.core.errors import Json, json_text, one_line, printable
from evaluator.deciding.decision import OUTCOMES, Check, Verdict, worst_first
from evaluator.deciding.policy import Policy, spelled
from evaluator.deciding.verdict_text import excess
from evaluator.metrics.columns import worded
from evaluator.metrics.fates import fates_of
from evaluator.report.notebook import OpenRun

MARKS = {"beyond": "!", "undecided": "?"}
_STATES = "within", "undecided", "beyond"
_MOST = 10  # lost answers
_LONGEST = 2000  # characters of a text
_ANSWER = 200  # of an answer
# Characters that could end code or a table's cell, or start HTML or a mention.
_ALIKE = str.maketrans("`|<>@", "\u02cb\u00a6\u2039\u203a\uff20")
# The clearest loss first: neither said nor picked, then few words of the gold answer,
# where the base gave all of them.
_CLEAREST = {"recognised": True, "token_f1": True, "base_token_f1": False}
_SIDES = ("base", "checkpoint")
_ITEM = ["task", "language", "item_id"]


@dataclass(frozen=True)
class Judged:
    """A run or a candidate's log, its policy, and its verdicts under it."""

    run: OpenRun | Path
    policy: Policy
    verdicts: Sequence[Verdict]
    document: Json  # of RUN/gate.json

    @property
    def tolerances(self) -> str:
        return spelled(self.policy, self.document["not_in_this_run"])

    @property
    def path(self) -> Path:
        return self.run if isinstance(self.run, Path) else self.run.path


def worst_of(judged: Sequence[Judged]) -> str:
    outcomes = [each.document["verdict"] for each in judged]
    return str(max(outcomes, key=OUTCOMES.index))


def table_of(verdicts: Sequence[Verdict]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row per checkpoint and task: each criterion over all items,
    then the worst language or group. The second cell is the verdict; the worst come first."""
    verdicts = worst_first(verdicts)
    pooled = [
        {
            check.criterion.heading: _shown(check)
            for check in each.checks
            if check.pooled
        }
        for each in verdicts
    ]
    names: dict[str, None] = {}
    for shown in pooled:
        names |= dict.fromkeys(name for name, value in shown.items() if value)
    several = len({verdict.subject for verdict in verdicts}) > 1
    rows = []
    for verdict, values in zip(verdicts, pooled, strict=True):
        name = verdict.checkpoint + (f" ({verdict.subject})" if several else "")
        numbers = [values.get(each, "") for each in names]
        rows.append([name, verdict.outcome, *numbers, _worst(verdict)])
    return ["checkpoint", "verdict", *names, "worst"], rows


def _shown(check: Check) -> str:
    """A value, with a mark unless it is within its tolerance; empty if there is
    none."""
    if check.value is None:
        return ""
    shown = check.criterion.kind.shown(check.value, unit=False)
    if check.excess is not None:
        shown = f"+{check.criterion.kind.shown(check.excess, unit=False)}"
    return shown + ("~" if check.noisy else MARKS.get(check.state, ""))


def _worst(verdict: Verdict) -> str:
    """The language or group that decides: the worst state, then the furthest beyond
    its tolerance."""
    apart = [each for each in verdict.checks if not each.pooled and _shown(each)]
    if not apart:
        return ""
    worst = max(apart, key=lambda check: (_STATES.index(check.state), excess(check)))
    heading = worst.criterion.heading
    named = "" if heading == "said" else f" ({heading})"
    return f"{worst.language} {_shown(worst)}{named}"


def _json(judged: Sequence[Judged]) -> str:
    """What gate.json holds; of several runs, the worst verdict and each one's."""
    if len(judged) == 1:
        return json_text(judged[0].document, indent=2)
    runs = {str(each.path): each.document for each in judged}
    every = {"schema_version": 1, "verdict": worst_of(judged), "runs": runs}
    return json_text(every, indent=2)


def _markdown(judged: Sequence[Judged]) -> str:
    parts = [f"## Gate: {worst_of(judged)}"]
    for each in judged:
        parts += [section(each), *_lost(each)]
    return "\n\n".join(parts)


def section(judged: Judged) -> str:
    """The verdicts of a run as Markdown, without any question or answer."""
    document, (headings, rows) = judged.document, table_of(judged.verdicts)
    for row, reasons in zip(rows, document["checkpoints"], strict=True):
        row.append(reasons["why"])
    parts = [
        f"{code(judged.path)}: {document['summary']}",
        grid([*headings, "why"], rows),
    ]
    for each in document["not_judged"]:
        what = f"{code(each['checkpoint'])} {code(each['task'])}"
        parts.append(f"Not judged: {what}: {code(each['why'])}")
    parts += [f"Note: {code(note)}" for note in document.get("notes", ())]
    parts.append(f"Tolerances: {code(judged.tolerances)}")
    return "\n\n".join(parts)


def _lost(judged: Judged) -> list[str]:
    lost = lost_answers(judged.run) if isinstance(judged.run, OpenRun) else []
    if not lost:
        return []
    passed = judged.document["verdict"] == "PASS"
    within = ", fewer than the tolerances permit" if passed else ""
    return [f"### The clearest lost answers{within}", grid(LOST, lost)]


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" | ".join(headings), " | ".join(["---"] * len(headings))]
    lines += [" | ".join(map(code, row)) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def code(text: object) -> str:
    plain = _plain(text).translate(_ALIKE)
    return f"`{plain}`" if plain else ""


def _plain(text: object) -> str:
    return printable(one_line(str(text), _LONGEST))


def lost_answers(run: OpenRun) -> list[list[str]]:
    """The clearest open answers that a base says and its checkpoint does not, each
    question once: the columns LOST."""
    parts = [pd.DataFrame(columns=[*_ITEM, *_SIDES, "fate", *_CLEAREST])]
    for subject in run.inputs.compared:
        items = run.inputs.of(subject)
        gone = items.take((items["base_produced"] == 1) & (items["produced"] == 0))
        columns = {name: gone[name] for name in ("language", "item_id", *_CLEAREST)}
        lost = pd.DataFrame(columns | {"fate": fates_of(gone)}).assign(
            task=subject.task, checkpoint=subject.checkpoint, base=subject.base
        )
        parts.append(_clearest(lost))
    rows = []
    for row in _clearest(pd.concat(parts)).to_dict("records"):
        records = run.item(*(row[name] for name in ("task", "item_id", "language")))
        said = records[(records["probe"] == "greedy") & (records["format"] == "open")]
        answers = said.sort_values("seed").groupby("checkpoint")["text"].first()
        unknown = {"question": "", "answers": []}
        item, *_ = records.attrs.get("items") or [unknown]
        rows.append(
            [
                *(row["checkpoint"], row["item_id"], worded(row["fate"])),
                item["question"],
                " / ".join(item["answers"]),
                *(one_line(answers[row[side]], _ANSWER) for side in _SIDES),
            ]
        )
    return rows


LOST = ("checkpoint", "item", "fate", "question", "gold", "base's answer", "its answer")


def _clearest(lost: pd.DataFrame) -> pd.DataFrame:
    ordered = lost.sort_values(
        [*_CLEAREST, *_ITEM], ascending=[*_CLEAREST.values(), True, True, True]
    )
    return ordered.drop_duplicates(_ITEM).head(_MOST)


def _junit(judged: Sequence[Judged]) -> str:
    """A test case for each checkpoint and task: BLOCK fails, all but PASS is
    skipped."""
    suites = ElementTree.Element("testsuites")
    for each in judged:
        suite = _element(suites, "testsuite", name=each.path)
        rows = [*each.document["checkpoints"], *each.document["not_judged"]]
        if names := each.document["not_in_this_run"]:
            row = {"task": "policy", "checkpoint": "policy", "why": ", ".join(names)}
            rows.append(row | {"verdict": "not in this run"})
        for row in rows:
            outcome = row.get("verdict", "not judged")
            case = _element(
                suite,
                "testcase",
                classname=f"{row['task']} {row.get('measure', '')}".rstrip(),
                name=row["checkpoint"],
            )
            if outcome != "PASS":
                tag = "failure" if outcome == "BLOCK" else "skipped"
                _element(case, tag, type=outcome, message=f"{outcome}: {row['why']}")
        for name, path in _COUNTED.items():
            suite.set(name, str(len(suite.findall(path))))
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)


_COUNTED = {"tests": "*", "failures": "*/failure", "skipped": "*/skipped"}


def _element(
    parent: ElementTree.Element, tag: str, **attributes: object
) -> ElementTree.Element:
    written = {name: _plain(value) for name, value in attributes.items()}
    return ElementTree.SubElement(parent, tag, written)


FORMATS: Mapping[str, Callable[[Sequence[Judged]], str]] = {
    "json": _json,
    "markdown": _markdown,
    "junit": _junit,
}
