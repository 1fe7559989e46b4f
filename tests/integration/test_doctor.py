"""The real `resurface doctor`, on whatever this machine is."""

from __future__ import annotations

import json

from tests.support.engines import needs_vllm
from tests.support.runs import resurface

pytestmark = needs_vllm


def test_this_machine_passes_and_the_card_says_what_was_measured(tmp_path):
    card = tmp_path / "card.md"
    done = resurface("doctor", "--json", "--out", card)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["passed"]
    assert {"served", "by_prompt", "transformers", "pruning"} <= set(document["seconds"])
    measured = {row["check"]: row for row in document["checks"] if row["status"] == "pass"}
    assert {"scores", "ranks, ties", "greedy", "beams", "samples", "swap", "swap back", "two runs", "masks"} <= set(
        measured
    )
    assert all(row["compared"] > 0 for row in measured.values())
    text = card.read_text(encoding="utf-8")
    assert f"# doctor: {document['verdict']}" in text
    for name in measured:
        assert f"| {name} | pass |" in text
