"""lm-eval on the rows of tests/golden/suite: `python -m tests.support.harness` writes what
it measures, with the bundled model in float32.

lm-eval reads, words, encodes and counts; only the log-likelihoods are made here, since its
own model class needs accelerate."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from tests.support.served import BASE as REFERENCE

ROWS = Path(__file__).resolve().parents[1] / "golden" / "suite"
MEASURED = ROWS / "lm_eval.json"
FILES = {
    "boolq": "super_glue/boolq/default.yaml",
    "rte": "glue/rte/default.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "winogrande": "winogrande/default.yaml",
    "arc_easy": "arc/arc_easy.yaml",
    "arc_challenge": "arc/arc_challenge.yaml",
    "openbookqa": "openbookqa/openbookqa.yaml",
}


def model() -> Any:
    from lm_eval.api.model import TemplateLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    class Bundled(TemplateLM):  # type: ignore[misc]
        tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
        network = AutoModelForCausalLM.from_pretrained(REFERENCE, dtype=torch.float32)
        eot_token_id = tokenizer.eos_token_id

        def tok_encode(self, string: str, **_: Any) -> Any:
            return self.tokenizer.encode(string)

        @torch.inference_mode()
        def _loglikelihood_tokens(self, requests: Any, **_: Any) -> Any:
            found = []
            for _, before, after in requests:
                ids = torch.tensor([before + after])
                logits = self.network(ids[:, :-1]).logits[0, -len(after) :]
                logprobs = torch.log_softmax(logits, -1)
                own = logprobs[range(len(after)), after]
                greedy = logits.argmax(-1).tolist() == after
                found.append((float(own.sum()), greedy))
            return found

        def loglikelihood_rolling(self, requests: Any, **_: Any) -> Any:
            raise NotImplementedError

        def generate_until(self, requests: Any, **_: Any) -> Any:
            raise NotImplementedError

    return Bundled()


def measure(folder: Path) -> dict[str, dict[str, Any]]:
    """By task, for each row: `acc`, `acc_norm` where it has one, and the log-likelihood
    of each option in nats."""
    import lm_eval
    from lm_eval.evaluator import evaluate
    from lm_eval.tasks import TaskManager

    theirs = Path(lm_eval.__file__).parent / "tasks"
    for name, file in FILES.items():
        file_of = {"validation": str(ROWS / name / "validation.jsonl")}
        data = {"data_files": file_of, "cache_dir": str(folder / "cache")}
        lines = [
            f"include: {theirs / file}",
            f"task: our_{name}",
            f"dataset_path: json\ndataset_name: null\ndataset_kwargs: {json.dumps(data)}",
            "training_split: null\nvalidation_split: validation\ntest_split: null",
            "fewshot_split: null",
        ]
        (folder / f"{name}.yaml").write_text("\n".join(lines))
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    tasks = manager.load([f"our_{name}" for name in FILES])
    results = evaluate(lm=model(), task_dict=tasks, log_samples=True)
    found = {}
    for name in FILES:
        rows = results["samples"][f"our_{name}"]
        rows = sorted(rows, key=lambda row: row["doc_id"])
        found[name] = {
            metric: [row[metric] for row in rows]
            for metric in ("acc", "acc_norm")
            if metric in rows[0]
        }
        found[name]["logprobs"] = [
            [round(nats, 4) for nats, _ in row["filtered_resps"]] for row in rows
        ]
    return found


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        lines = (
            f"{json.dumps(name)}: {json.dumps(rows)}"
            for name, rows in measure(Path(folder)).items()
        )
        MEASURED.write_text("{" + ",\n ".join(lines) + "}\n")
