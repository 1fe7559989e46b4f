"""The real `resurface doctor`, on whatever this machine is."""

import json

import pytest

from launch.commands.doctor import CONTROLS, PROBES
from tests.support.engines import needs_vllm
from tests.support.runs import finish

pytestmark = [*needs_vllm, pytest.mark.more]


def test_card_of_this_machine(tmp_path):
    card = tmp_path / "card.md"
    document = json.loads(finish("doctor", "--json", "--out", card).stdout)
    assert document["passed"]
    assert len(document["checks"]) == len(CONTROLS) * (len(PROBES) + 1)
    assert all(check["n"] for check in document["checks"])
    assert card.read_text().startswith(f"# doctor: {document['verdict']}\n")
    assert any((tmp_path / "card.logs").iterdir())
