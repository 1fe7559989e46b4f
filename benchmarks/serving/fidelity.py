"""The divergence of a checkpoint from its base along texts, over the whole vocabulary: compared where the logits are,
against vLLM's `prompt_logprobs=-1`, which an evaluator turns into distributions in Python.

    resurface bench fidelity [--model DIR] [--task random:129] [--items 8] [--rounds 3]

Timed are the checkpoint's pass over the texts and the divergence at every position. The checkpoint is the model
pruned by magnitude to 0.5."""

import json
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.harness import Agreement, lacking, run_main
from benchmarks.serving import sides, workload
from pruning.config import PruneConfig
from pruning.run import prune

TOLERANCE = 1e-3  # nats, of the divergence at any position
_PIECE = 64  # tokens of one of our requests


def agree(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Agreement:
    """Whether both sides found the same divergence at every position of every text."""
    one, other = ours["kld"], theirs["kld"]
    lacks = lacking(one, other)
    if lacks or any(len(one[name]) != len(other[name]) for name in one):
        return Agreement(holds=False, how=lacks or "the sides have other positions")
    pairs = [pair for name in one for pair in zip(one[name], other[name], strict=True)]
    largest = max(abs(our - their) for our, their in pairs)
    mean = sum(our for our, _ in pairs) / len(pairs)
    how = f"{len(pairs)} divergences within {TOLERANCE:g} nats (largest difference {largest:.1e}, mean {mean:.2g} nats)"
    return Agreement(holds=largest <= TOLERANCE, how=how if largest <= TOLERANCE else f"not {how}")


class Ours(sides.Ours):
    """Resurface's engine: the base keeps its distributions, then the checkpoint is swapped in."""

    def __init__(self, work: Mapping[str, Any]) -> None:
        super().__init__(work)
        self._folder = tempfile.TemporaryDirectory()
        self._run(keep=True)
        self._model = Path(work["compressed"])

    def fidelity(self) -> dict[str, Any]:
        return {"kld": self._run(keep=False), "dtype": self._engine.dtype}

    def _run(self, *, keep: bool) -> dict[str, list[float]]:
        from evaluator.engine.base import FixedSource, Reference, Score

        requests: list[Score] = []
        for item in self._work["items"]:
            ids = tuple(item["prompt"])
            for first in reversed(range(1, len(ids), _PIECE)):
                requests.append(
                    Score(
                        request_id=f"{item['id']}/{first}",
                        prompt_ids=ids[:first],
                        continuation_ids=ids[first : first + _PIECE],
                        reference=Reference(path=f"{self._folder.name}/{len(requests)}.safetensors", keep=keep),
                    )
                )
        found: dict[str, dict[int, list[float]]] = {}
        for response in self._engine.run(FixedSource(requests)):
            if response.status != "ok":
                raise SystemExit(f"a request failed: {response.error}")
            name, _, place = response.request_id.rpartition("/")
            found.setdefault(name, {})[int(place)] = [each.kld for each in response.divergences]
        return {name: [kld for place in sorted(pieces) for kld in pieces[place]] for name, pieces in found.items()}


class Theirs(sides.Theirs):
    """`vllm.LLM` with the checkpoint; the base's distributions are transformers'."""

    def __init__(self, work: Mapping[str, Any]) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        base = AutoModelForCausalLM.from_pretrained(work["model"], dtype=torch.float32).eval()
        with torch.inference_mode():
            logits = [base(torch.tensor([item["prompt"]])).logits[0, :-1] for item in work["items"]]
        self._base = [each.log_softmax(-1).numpy() for each in logits]
        super().__init__({**work, "model": work["compressed"], "llm_args": {**work["llm_args"], "max_logprobs": -1}})

    def fidelity(self) -> dict[str, Any]:
        import numpy as np
        from vllm import SamplingParams

        out = self._llm.generate(
            [{"prompt_token_ids": item["prompt"]} for item in self._items],
            SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=-1, detokenize=False),
            use_tqdm=False,
        )
        found = {}
        for item, result, base in zip(self._items, out, self._base, strict=True):
            klds = []
            for row, p in zip(result.prompt_logprobs[1:], base, strict=True):
                q = np.empty(len(p), dtype=np.float32)
                for token, logprob in row.items():
                    q[token] = logprob.logprob
                klds.append(float((np.exp(p) * (p - q)).sum(dtype=np.float64)))
            found[item["id"]] = klds
        return {"kld": found}


def main() -> None:
    options = workload.parser(__doc__, task="random:129", items=8, rounds=3).parse_args()
    with ExitStack() as stack:
        path = stack.enter_context(workload.written(options))
        work = json.loads(path.read_text())
        work["compressed"] = f"{stack.enter_context(tempfile.TemporaryDirectory())}/pruned"
        prune(PruneConfig(source=work["model"], method="magnitude", sparsity=0.5), Path(work["compressed"]))
        path.write_text(json.dumps(work))
        names = "fidelity", "compared where the logits are", "LLM.generate(prompt_logprobs=-1)"
        workload.compare_sides(stack, options, path, names, "fidelity", lambda _: {}, agree=agree)


if __name__ == "__main__":
    run_main(main)
