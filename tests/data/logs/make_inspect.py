"""Makes `inspect/`: pip install inspect-ai && python make_inspect.py

Two epochs. Run it outside a repository, of which inspect would log the address."""

from pathlib import Path

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes, match
from questions import SUMS, WRONG, answer, gold, question

HERE = Path(__file__).parent


def scripted(name):
    def reply(messages, *_):
        output = ModelOutput.from_content(
            "mockllm/model", answer(name, messages[-1].text)
        )
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        return output

    return get_model("mockllm/model", custom_outputs=reply, memoize=False)


def main():
    samples = [
        Sample(id=i + 1, input=question(i), target=gold(i)) for i in range(len(SUMS))
    ]
    task = Task(
        name="sums", dataset=samples, scorer=[match(numeric=True), includes()], epochs=2
    )
    for name in WRONG:
        eval(
            task,
            model=scripted(name),
            log_dir=str(HERE / "inspect" / name),
            log_format="eval",
            display="none",
            log_realtime=False,
            score_display=False,
        )


if __name__ == "__main__":
    main()
