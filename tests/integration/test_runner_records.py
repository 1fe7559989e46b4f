"""A whole `resurface eval` on the GPU's model runner gives the records that the
CPU's gives."""

import json

import pytest

from tests.support import v2
from tests.support.engines import needs_vllm
from tests.support.models import save_tiny_model
from tests.support.runs import assert_alike, records, resurface_apart

pytestmark = [
    *needs_vllm,
    pytest.mark.long,
    pytest.mark.skipif(v2.missing() is not None, reason=str(v2.missing())),
]

PROBES = "greedy,beam,sample,choice,hard_choice,rank,aligned_rank,fidelity"
# Prompts in chunks, and a cache for fewer requests than there are.
TIGHT = {
    "max_model_len": 768,
    "num_gpu_blocks_override": 26,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
}
SAMPLED = [
    "text",
    "token_ids",
    "contains",
    "exact_match",
    "token_f1",
    "status",
    "truncated",
]


def evaluate(out, checkpoints, *also, probes=PROBES, **more):
    questions = out.parent / "questions.jsonl"
    items = [
        {"id": str(n), "language": "english", "context": f"The town of {name} was founded in {1700 + n}.",
         "question": f"When was {name} founded?", "answers": [str(1700 + n)]}
        for n, name in enumerate(("Karo", "Belu"))
    ]  # fmt: skip
    questions.write_text("\n".join(map(json.dumps, items)), encoding="utf-8")
    asked = (
        "--base",
        checkpoints[0],
        "--task",
        f"jsonl:{questions}",
        "--probes",
        probes,
        "--formats",
        "open",
    )
    done = resurface_apart(
        "eval", *checkpoints, *asked, *also, "--out", out, OMP_NUM_THREADS="1", **more
    )
    assert done.returncode == 0, done.stderr
    return records(out)


def runners(run):
    return {
        each["setup"]["runner"]
        for each in json.loads((run / "run.json").read_text())["engine_stats"]
    }


def test_runners_agree_on_records(tmp_path):
    folder = tmp_path / "models"
    checkpoints = [
        save_tiny_model(folder / f"model-{seed}", "qwen3", seed) for seed in (0, 1)
    ]
    on_v1 = evaluate(tmp_path / "v1", checkpoints)
    on_v2 = evaluate(
        tmp_path / "v2", checkpoints, **v2.environment(), V2_ARGS=json.dumps(TIGHT)
    )
    assert [runners(tmp_path / name) for name in ("v1", "v2")] == [{"V1"}, {"V2"}]
    assert set(on_v1["probe"]) == {*PROBES.split(",")}
    drawn = on_v1["probe"] == "sample"  # V1 has our sampler, V2 has vLLM's
    assert (
        on_v1.loc[drawn, "token_ids"].map(tuple)
        != on_v2.loc[drawn, "token_ids"].map(tuple)
    ).any()
    for rows, others in ((~drawn, []), (drawn, SAMPLED)):
        assert_alike(
            *(frame[rows].assign(**dict.fromkeys(others)) for frame in (on_v1, on_v2))
        )
