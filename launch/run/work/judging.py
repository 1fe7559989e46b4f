"""Judges over a run's responses: each judge is a checkpoint whose claims the board
hands to one engine.

A judge decides control pairs too, whose answer is known. The same command resumes, and
repeats only claims on which the engine failed. A judge decides a response once, even if
several checkpoints gave it. The run stays locked meanwhile, as it does for its driver.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path

import ray

from evaluator.asking.template_checks import try_template
from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.info import CheckpointInfo, inspect_checkpoint
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.core.errors import EngineError, InputError
from evaluator.engine.config import EngineConfig, check_served
from evaluator.judging.matcher import Claim, JudgeConfig, posed, prompt_of
from evaluator.probes.planning import prompter_of
from evaluator.store.run_json import day_of
from evaluator.store.verdicts import Verdicts, control_pairs, responses
from launch.run.decide.assignments import Assignment, EngineSetup, origin_of, shards_of
from launch.run.decide.board import Board
from launch.run.decide.nodes import Placement
from launch.run.directory.rundir import set_verdicts_aside
from launch.run.events import Advanced, Event, Starting, Tell, Warned
from launch.run.state import Bus
from launch.run.work.cluster import Cluster, cluster
from launch.run.work.fleet import Fleet
from launch.run.work.workers import EngineWorker, turn
from launch.sweep.config import Resources
from launch.sweep.models import names_of, resolve_model
from launch.sweep.prepared_tasks import PreparedTask

_PROMPT_TOKENS = 2048  # room for long references; a response has some tens of tokens
# " yes" and " no" in the worst vocabulary, and room for a moved token boundary
_VERDICT_TOKENS = 8
_POLL_SECONDS = 0.2  # between two checks of the engine

CheckedJudge = tuple[CheckpointInfo, JudgeConfig]


def judge_run(
    run_dir: Path,
    judges: Sequence[str],
    probes: Sequence[str],
    *,
    everything: bool,
    engine: EngineConfig,
    tell: Tell,
    warn: Tell,
) -> dict[str, Verdicts]:
    """Judge, with every judge, the responses to some probes that it has not judged
    yet; the verdicts by its name. Without `everything`, responses that contain a gold
    answer are left out. The caller holds the run. Raises InputError, or ResurfaceError
    if the work fails."""
    day = day_of(run_dir)
    checked = []
    for name, path in names_of(judges, "--matcher").items():
        trust = engine.trust_remote_code
        info = inspect_checkpoint(resolve_model(path), name, trust_remote_code=trust)
        checked.append(_checked(info, engine, day))
    infos = [info for info, _ in checked]
    for info in infos:
        check_served(engine, info, here=not os.environ.get("RAY_ADDRESS"))
    with ExitStack() as stack:
        wanted = control_pairs()
        wanted |= responses(run_dir, probes, everything=everything)
        for info in infos:
            set_verdicts_aside(run_dir, info.name, warn)

        @cache
        # only if a claim has no verdict: else a run needs no Ray
        def machines() -> Cluster:
            return stack.enter_context(cluster(run_dir / "logs"))

        found = {}
        for judge in checked:
            info, _ = judge
            verdicts = Verdicts(run_dir, info.name, info.weights_digest, wanted)
            verdicts.clean()
            try:
                if verdicts.claims:
                    log = (run_dir / "logs" / f"matcher-{info.name}.log").absolute()
                    _judge(judge, verdicts, machines(), engine, log, tell, warn)
            finally:
                verdicts.close()
            found[info.name] = verdicts
        return found


def _checked(
    info: CheckpointInfo, engine: EngineConfig, day: date | None
) -> CheckedJudge:
    """Raises InputError for an unusable tokenizer, chat template or context length,
    before Ray starts."""
    tokenizer = load_tokenizer(info.path, trust_remote_code=engine.trust_remote_code)
    chat = bool(tokenizer.chat_template)
    if chat:
        try_template(tokenizer)
    positions = Checkpoint(info.path).positions(
        unknown=_PROMPT_TOKENS + _VERDICT_TOKENS, least=_VERDICT_TOKENS + 1
    )
    room = min(_PROMPT_TOKENS, positions - _VERDICT_TOKENS)
    config = JudgeConfig.of(chat=chat, prompt_tokens=room, day=day)
    shortest = Claim(question="x", answers=("x",), response="x")
    if prompt_of(posed([shortest])[0].item, prompter_of(tokenizer, config)) is None:
        raise InputError(
            f"{info.path / 'config.json'}: field 'max_position_embeddings' leaves a"
            f" prompt {room} tokens, in which not even a response of one letter can"
            " be judged"
        )
    # engines run in other directories
    return replace(info, path=info.path.absolute()), config


def _judge(
    judge: CheckedJudge,
    verdicts: Verdicts,
    machines: Cluster,
    engine: EngineConfig,
    log: Path,
    tell: Tell,
    warn: Tell,
) -> None:
    """Judge all claims with one engine. Raises InputError or EngineError if the judge
    is set aside, ResurfaceError if Ray fails."""
    info, config = judge
    resources, key = Resources(), config.task
    questions = posed(verdicts.claims)
    task = PreparedTask(name=key, key=key, config=config, questions=questions)
    judged = 0

    def told(event: Event, _: object) -> None:
        nonlocal judged
        match event:
            case Starting():
                tell(f"{info.name}: starting the engine")
            case Advanced():
                judged += event.items
                tell(f"{info.name}: {judged} of {len(questions)} responses")
            case Warned():
                warn(event.text)

    board = Board(Bus(told), resources.attempts, questions={key: questions})
    board.add(
        [
            Assignment(
                checkpoint=info,
                task=key,
                task_key=key,
                config=config,
                origin=origin_of(info, None),
                shards=shards_of(task, (), resources.shard_items),
            )
        ]
    )
    tokens = config.prompt_tokens + _VERDICT_TOKENS
    engine = engine.model_copy(update={"max_model_len": tokens})
    references = {key: ray.put(questions)}

    def worker(number: int, place: Placement) -> EngineWorker:
        return EngineWorker(
            number,
            EngineSetup(config=engine, log_path=log, place=place),
            board=board,
            store=verdicts,
            questions=references,
            resources=resources,
        )

    fleet = Fleet(
        machines.nodes(),
        board,
        worker,
        tensor_parallel=engine.tensor_parallel,
        wanted=1,
    )
    try:
        while fleet.working or not board.over:
            fleet.start()
            turn(fleet.workers, _POLL_SECONDS)
            machines.check()
            fleet.check(resources.placement_seconds)
        fleet.check(resources.placement_seconds)  # the engine may have failed meanwhile
    finally:
        for each in fleet.workers:
            each.close()
    for failure in board.failures:
        if failure.stage != "item":  # an item's verdict tells of its failure
            kind = InputError if failure.mendable else EngineError
            raise kind(
                f"matcher {info.name!r} failed: {failure.reason}; see {log}; the same"
                " command resumes"
            )
