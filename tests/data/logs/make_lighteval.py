"""Makes `lighteval/`:

pip install lighteval==0.13.0 torch && python make_lighteval.py"""

import json
import sys
import tempfile
from pathlib import Path

import huggingface_hub

sys.path.insert(0, str(Path(__file__).parent))
# Its registry asks the hub at import, for judges that no task here needs.
huggingface_hub.HfApi.list_models = lambda self, **_: ["a judge"]

from lighteval.logging.evaluation_tracker import EvaluationTracker  # noqa: E402
from lighteval.metrics.metrics import Metrics  # noqa: E402
from lighteval.models.dummy.dummy_model import DummyModel, DummyModelConfig  # noqa: E402
from lighteval.models.model_output import ModelResponse  # noqa: E402
from lighteval.pipeline import ParallelismManager, Pipeline, PipelineParameters  # noqa: E402
from lighteval.tasks.lighteval_task import LightevalTaskConfig  # noqa: E402
from lighteval.tasks.requests import Doc  # noqa: E402
from questions import SUMS, WRONG, answer, gold, options, question  # noqa: E402

HERE = Path(__file__).parent


class Scripted(DummyModel):
    def greedy_until(self, docs):
        return [
            ModelResponse(
                input=doc.query, text=[answer(self.config.model_name, doc.query)]
            )
            for doc in docs
        ]

    def loglikelihood(self, docs):
        responses = []
        for doc in docs:
            said = answer(self.config.model_name, doc.query)
            scores = [-1.0 if each.strip() == said else -4.0 for each in doc.choices]
            responses.append(
                ModelResponse(
                    logprobs=scores, argmax_logits_eq_gold=[False] * len(scores)
                )
            )
        return responses


def open_question(row, task_name=None):
    return Doc(query=row["question"], choices=[row["answer"]], gold_index=0)


def choice_question(row, task_name=None):
    choices = [f" {each}" for each in row["options"]]
    return Doc(query=row["question"], choices=choices, gold_index=row["gold"])


def config(folder, name, function, metrics):
    return LightevalTaskConfig(
        name=name,
        prompt_function=function,
        hf_repo=str(folder),
        hf_subset="default",
        hf_avail_splits=["test"],
        evaluation_splits=["test"],
        generation_size=8,
        metrics=metrics,
        stop_sequence=["\n"],
    )


FOLDER = Path(tempfile.mkdtemp())
TASKS_TABLE = [
    config(
        FOLDER, "local_sums", open_question, [Metrics.exact_match, Metrics.f1_score]
    ),
    config(FOLDER, "local_choices", choice_question, [Metrics.loglikelihood_acc]),
]


def main():
    rows = []
    for i in range(len(SUMS)):
        choices = options(i)
        rows.append(
            {
                "question": question(i),
                "answer": gold(i),
                "options": choices,
                "gold": choices.index(gold(i)),
            }
        )
    (FOLDER / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in WRONG:
        tracker = EvaluationTracker(
            output_dir=str(HERE / "lighteval"), save_details=True
        )
        pipeline = Pipeline(
            tasks="local_sums|0,local_choices|0",
            pipeline_parameters=PipelineParameters(
                launcher_type=ParallelismManager.CUSTOM,
                custom_tasks_directory=sys.modules[__name__],
            ),
            evaluation_tracker=tracker,
            model=Scripted(DummyModelConfig(model_name=name)),
        )
        pipeline.evaluate()
        pipeline.save_and_push_results()
    for file in (HERE / "lighteval").glob("results/**/*.json"):
        file.write_text(file.read_text().replace(f"{FOLDER}", "data"))


if __name__ == "__main__":
    main()
