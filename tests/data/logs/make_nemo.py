"""Makes `nemo/`: pip install nemo-evaluator==0.3.0 && python make_nemo.py"""

import asyncio
from pathlib import Path

from nemo_evaluator.engine.artifacts import write_all
from nemo_evaluator.engine.eval_loop import run_evaluation
from nemo_evaluator.environments.base import EvalEnvironment, SeedResult, VerifyResult
from nemo_evaluator.solvers.base import SolveResult
from questions import SUMS, WRONG, answer, gold, question

HERE = Path(__file__).parent


class Sums(EvalEnvironment):
    name = "local_sums"

    def __init__(self):
        super().__init__()
        self.dataset = [{"question": question(i)} for i in range(len(SUMS))]

    async def seed(self, idx):
        return SeedResult(prompt=question(idx), expected_answer=gold(idx))

    async def verify(self, response, expected, sandbox=None, **metadata):
        return VerifyResult(
            reward=float(response == expected), extracted_answer=response
        )


class Scripted:
    def __init__(self, name):
        self.name = name

    async def solve(self, task):
        return SolveResult(response=answer(self.name, task.prompt))

    async def close(self):
        pass


def main():
    for name in WRONG:
        settings = {
            "benchmark": "local_sums",
            "model": name,
            "temperature": 0.0,
            "repeats": 2,
        }
        bundle = asyncio.run(
            run_evaluation(Sums(), Scripted(name), n_repeats=2, config=settings)
        )
        folder = HERE / "nemo" / name / "local_sums"
        write_all(bundle, folder)
        for other in ("trajectories.jsonl", "runtime_stats.json"):
            (folder / other).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
