"""Long contexts in a run on vLLM and Ray, against transformers' own loop on the
prompts that their rule gives."""

import pytest

from evaluator.asking.prompts import Prompter
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.probes.config import EvalConfig
from evaluator.probes.planning import questions_of, tokenised
from evaluator.tasks import load_task
from launch.sweep.models import resolve_model
from tests.support.engines import greedy_tokens, needs_vllm
from tests.support.models import load_model
from tests.support.runs import finish, records

pytestmark = [pytest.mark.more, *needs_vllm]

LENGTH, ITEMS = 400, 6


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long") / "run"
    finish(
        "eval", "bundled", "--task", "gazetteer", "--languages", "english", "--items", ITEMS,
        "--context-tokens", f"0,{LENGTH}", "--probes", "greedy,choice", "--out", folder,
    )  # fmt: skip
    return folder


def test_long_contexts_equal_transformers(run):
    model = resolve_model("bundled")
    prompter = Prompter(
        load_tokenizer(model),
        chat=False,
        prompt_tokens=512 + LENGTH,
        one_shot_prompt_tokens=1024,
    )
    config = EvalConfig(
        task="gazetteer", items=ITEMS, probes=("greedy",), context_tokens=LENGTH
    )
    oracle = load_model(model)
    found = records(run)
    greedy = found[
        (found["probe"] == "greedy") & (found["context_tokens"] == LENGTH)
    ].set_index("item_id")
    assert len(greedy) == ITEMS
    for question in questions_of(load_task("gazetteer", ("english",)), config):
        plan = tokenised(question, prompter, config)
        prompt, row = plan.prompts["open"], greedy.loc[question.item.item_id]
        assert question.item.context in prompt.text
        assert 0.9 * LENGTH <= row["prompt_tokens"] == len(prompt.token_ids)
        said = tuple(row["token_ids"])
        assert said == greedy_tokens(oracle, prompt.token_ids, 32)[: len(said)]
        assert len(said) == 32 or said[-1] in prompter.eos_ids
        assert row["context_depth"] == plan.context_depth
