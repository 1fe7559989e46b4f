"""Makes `lm-eval-VERSION/` with the lm-eval that is installed:

    pip install lm-eval==0.4.13 transformers torch && python make_lm_eval.py

Version 0.4.13 runs `base` in two ranks too, as accelerate starts them (`two-ranks`)."""

import json
import re
import sys
import tempfile
import threading
from importlib.metadata import version
from pathlib import Path

import lm_eval
from lm_eval.api.model import LM
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager
from questions import SUMS, WRONG, answer, gold, options, question

HERE = Path(__file__).parent
SUMS_TASK = r"""
task: local_sums
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: generate_until
doc_to_text: "Question: {{question}}\nAnswer:"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\n"], do_sample: false}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
filter_list:
  - name: strict-match
    filter: [{function: regex, regex_pattern: "^(\\d+)$"}, {function: take_first}]
  - name: flexible-extract
    filter: [{function: regex, regex_pattern: "(\\d+)"}, {function: take_first}]
metadata: {version: 1.0}
"""
CHOICE_TASK = """
task: local_choices
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{options}}"
doc_to_target: gold
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
metadata: {version: 0.0}
"""


class Scripted(LM):
    def __init__(self, name, rank=0, ranks=1, shared=None):
        super().__init__()
        self.name, self._rank, self._world_size, self.shared = name, rank, ranks, shared

    def loglikelihood(self, requests):
        rows = []
        for request in requests:
            text, option = request.args
            rows.append(
                (-1.0 if option.strip() == answer(self.name, text) else -4.0, False)
            )
        return rows

    def loglikelihood_rolling(self, requests):
        raise NotImplementedError

    def generate_until(self, requests):
        texts = [answer(self.name, request.args[0]) for request in requests]
        # Every fourth answer needs the flexible filter.
        return [f"It is {t}" if int(t) % 4 == 0 else t for t in texts]

    def barrier(self):
        self.shared["barrier"].wait()

    def gather_object(self, value, dst=0):
        self.shared[self._rank] = value
        self.barrier()
        rows = [self.shared[rank] for rank in range(self._world_size)]
        self.barrier()
        return rows if self._rank == dst else None

    def all_gather(self, tensor):
        import torch

        self.shared[self._rank] = tensor
        self.barrier()
        rows = torch.stack([self.shared[rank] for rank in range(self._world_size)])
        self.barrier()
        return rows.flatten()


def tasks(folder):
    rows = [
        {
            "question": question(i),
            "answer": gold(i),
            "options": options(i),
            "gold": options(i).index(gold(i)),
        }
        for i in range(len(SUMS))
    ]
    data = folder / "sums.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in (("sums", SUMS_TASK), ("choices", CHOICE_TASK)):
        (folder / f"{name}.yaml").write_text(text.replace("FILE", str(data)))


def evaluate(folder, model, out, limit=None):
    tracker = EvaluationTracker(output_path=str(out))
    tracker.general_config_tracker.model_name_sanitized = model.name
    tracker.general_config_tracker.model_name = model.name
    results = lm_eval.simple_evaluate(
        model=model,
        tasks=["local_sums", "local_choices"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        limit=limit,
        log_samples=True,
        bootstrap_iters=0,
    )
    if results is None:
        return
    samples = results.pop("samples")
    # as `lm_eval` does
    results["config"] = results.get("config", {}) | {
        "model": "hf",
        "model_args": f"pretrained={model.name}",
    }
    tracker.save_results_aggregated(results=results, samples=samples)
    for task, rows in samples.items():
        tracker.save_results_samples(task_name=task, samples=rows)


def plain(out):
    """Leave out this machine's data."""
    for file in out.rglob("results_*.json"):
        document = json.loads(file.read_text())
        document["pretty_env_info"] = ""
        text = json.dumps(document, indent=2, ensure_ascii=False)
        file.write_text(re.sub(r"/tmp/[^\"]*/", "", text))


def main():
    out = HERE / f"lm-eval-{version('lm_eval')}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tasks(folder)
        for model in WRONG:
            evaluate(folder, Scripted(model), out / "one-rank")
        if "two" in sys.argv:
            shared = {"barrier": threading.Barrier(2)}
            ranks = [
                threading.Thread(
                    target=evaluate,
                    args=(folder, Scripted("base", rank, 2, shared), out / "two-ranks"),
                    kwargs={"limit": 11},
                )
                for rank in range(2)
            ]
            for each in ranks:
                each.start()
            for each in ranks:
                each.join()
    plain(out)


if __name__ == "__main__":
    main()
