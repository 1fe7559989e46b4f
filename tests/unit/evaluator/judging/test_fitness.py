"""A good judge, one that says yes and one that says no, on a fake engine: what
control pairs and the report tell."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.core.files import parquet_bytes
from evaluator.core.text import normalise
from evaluator.engine.base import Request, Response
from evaluator.metrics.tables.judges import judges
from evaluator.metrics.tables.matching import PANEL
from evaluator.report import Report, page, write_report
from evaluator.store.records import to_table
from evaluator.store.verdicts import (
    Verdicts,
    control_pairs,
    read_controls,
    responses,
    write_fit_only,
)
from launch.sweep.models import BUNDLED_MODEL
from tests.support.fake import FakeEngine
from tests.support.judging import judged as judged_claims
from tests.support.synthetic import write_run

_QUOTED = re.compile(
    r'Reference answer: ("(?:[^"\\]|\\.)*")\nResponse: ("(?:[^"\\]|\\.)*")'
)
_PER_LANGUAGE = 12


def plain(text: str) -> list[str]:
    """The same for every form that a paraphrase has."""
    return sorted(re.sub(r"^the ", "", normalise(text)).replace(" ", ""))


JUDGES: dict[str, Callable[[str, str], bool]] = {
    "good": lambda reference, response: plain(reference) == plain(response),
    "no-sayer": lambda reference, response: False,
    "yes-sayer": lambda reference, response: True,
}


def engine_of(judge: Callable[[str, str], bool]) -> FakeEngine:
    tokenizer = load_tokenizer(BUNDLED_MODEL)

    def answer(request: Request) -> Response:
        found = _QUOTED.search(tokenizer.decode(request.prompt_ids))
        says_yes = judge(*map(json.loads, found.groups()))
        return Response(
            request_id=request.request_id,
            logprobs=(
                -1.0 if says_yes == request.request_id.endswith("/yes") else -3.0,
            ),
        )

    return FakeEngine(answer)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(
        tmp_path_factory.mktemp("run"),
        12,
        ("dense", "wanda-0.6"),
        languages=("english", "russian"),
    )
    wanted = control_pairs(run, _PER_LANGUAGE)
    wanted |= responses(run, ["greedy"], everything=False)
    tokenizer = load_tokenizer(BUNDLED_MODEL)
    for name, judge in JUDGES.items():
        verdicts = Verdicts(run, name, name, wanted)
        records = judged_claims(verdicts.claims, engine_of(judge), tokenizer, 1024)
        verdicts.append(name, "claims", "0", parquet_bytes(to_table(records)))
    return run


def test_controls_tell_unfit_judges(judged, monkeypatch):
    found = judges(read_controls(judged), "gazetteer", "all")
    fitness = {
        name: (each.sensitivity, each.specificity) for name, each in found.items()
    }
    assert fitness == {
        "good": (1.0, 1.0),
        "yes-sayer": (1.0, 0.0),
        "no-sayer": (0.0, 1.0),
    }
    monkeypatch.setattr(page, "draw_each", lambda *_: [])  # figures take half the time
    report = write_report(judged)
    table = pd.read_csv(report.tables["judges"])
    pooled = table[table["language"] == "all"].set_index("checkpoint")
    assert pooled["unfit"].isna().to_dict() == {
        "good": True,
        "no-sayer": False,
        "yes-sayer": False,
    }
    assert set(table["language"]) == {"all", "english", "russian"}
    rows = _of_dense(report)
    assert rows.loc["good", "corrected"] == pytest.approx(rows.loc["good", "accuracy"])
    assert rows.loc[["no-sayer", "yes-sayer"], "corrected"].isna().all()
    assert 'id="judges"' in report.page.read_text(encoding="utf-8")
    # Who is unfit can be kept out of the panel.
    assert PANEL in rows.index
    write_fit_only(judged, True)
    # one fit judge is no panel
    assert PANEL not in _of_dense(write_report(judged)).index
    write_fit_only(judged, False)


def _of_dense(report: Report) -> pd.DataFrame:
    matching = pd.read_csv(report.tables["matching"])
    rows = matching[matching["against"].isna() & (matching["language"] == "all")]
    return rows[rows["checkpoint"] == "dense"].set_index("grader")
