"""Matcher models over a run's responses: one engine actor per matcher, which writes
verdicts part by part.

A matcher judges control pairs first. Their answer is known, so they show whether the
matcher is fit to judge. The same command resumes, and repeats only comparisons on which
the engine failed. A matcher judges a response once, even if several checkpoints gave
it. The run stays locked meanwhile, as it does for its driver.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import date
from functools import cache, partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from evaluator.asking.template_checks import try_template
from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.info import CheckpointInfo, inspect_checkpoint
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.core.errors import EngineError, InputError, ResurfaceError, one_line
from evaluator.core.lease import Lease
from evaluator.engine.base import Engine
from evaluator.engine.config import EngineConfig, build_engine, check_served
from evaluator.judging.controls import Control, controls_of
from evaluator.judging.matcher import Claim, Match, Matcher
from evaluator.store import verdicts as stored
from evaluator.store.reading import day_of
from evaluator.store.records import RecordStore
from launch.run.decide.assignments import EngineSetup
from launch.run.decide.nodes import place_engines
from launch.run.directory.rundir import set_verdicts_aside
from launch.run.work.actors import enter_engine_process, start_actor
from launch.run.work.cluster import Cluster, cluster
from launch.sweep.models import names_of, resolve_model

_PROMPT_TOKENS = 2048  # room for long references; a response has some tens of tokens
# " yes" and " no" in the worst vocabulary, and room for a moved token boundary
_VERDICT_TOKENS = 8

Ask = Callable[[Sequence[Claim]], list[Match]]
Tell = Callable[[str], None]


class MatchActor:
    def __init__(self, setup: EngineSetup) -> None:
        enter_engine_process(setup)
        self._config = setup.config
        self._engine: Engine | None = None

    def verdicts(
        self,
        checkpoint: Path,
        claims: Sequence[Claim],
        prompt_tokens: int,
        day: date | None,
    ) -> list[Match]:
        if self._engine is None:
            self._engine = build_engine(self._config)
            self._engine.load(checkpoint)
        tokenizer = load_tokenizer(
            checkpoint, trust_remote_code=self._config.trust_remote_code
        )
        return Matcher(tokenizer, prompt_tokens=prompt_tokens, date=day).verdicts(
            self._engine, claims
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    matcher: str
    asked: int  # distinct pairs of an item and a response
    verdicts: int  # current ones, over all checkpoints
    yes: int
    too_long: int  # responses that do not fit the matcher's prompt
    failed: int  # responses on which the engine failed: the same command repeats them


@dataclass(frozen=True, kw_only=True)
class MatchRequest:
    """The comparisons of a call: `controls` control pairs for each language, then
    the responses to some probes.

    Without `everything`, responses that contain a gold answer are left out.
    `fit_only` affects only the report: unfit matchers have no vote."""

    probes: Sequence[str]
    everything: bool
    controls: int
    fit_only: bool


def match_run(
    run_dir: Path,
    matchers: Sequence[str],
    request: MatchRequest,
    *,
    engine: EngineConfig,
    tell: Tell,
    warn: Tell,
) -> list[Matched]:
    """Judge, with every matcher, what it has not judged yet. Raises InputError, or
    ResurfaceError if the work fails."""
    infos = [
        inspect_checkpoint(
            resolve_model(matcher), name, trust_remote_code=engine.trust_remote_code
        )
        for name, matcher in names_of(matchers, "--matcher").items()
    ]
    # an unusable tokenizer, chat template or context length is reported before Ray
    # starts
    for info in infos:
        tokenizer = load_tokenizer(
            info.path, trust_remote_code=engine.trust_remote_code
        )
        if tokenizer.chat_template:
            try_template(tokenizer)
        room = _prompt_tokens(info)
        scores, _ = Matcher(tokenizer, prompt_tokens=room).requests(
            Claim(question="x", answers=("x",), response="x"), "check"
        )
        if not scores:
            raise InputError(
                f"{info.path / 'config.json'}: field 'max_position_embeddings' leaves a"
                f" prompt {room} tokens, in which not even a response of one letter can"
                " be judged"
            )
    check_served(engine, infos, here=not os.environ.get("RAY_ADDRESS"))
    with ExitStack() as stack:
        stack.callback(Lease(run_dir).release)
        RecordStore(run_dir).clean()
        answered = stored.responses(
            run_dir, request.probes, everything=request.everything
        )
        controls = controls_by_task(run_dir, request.controls)
        for info in infos:
            set_verdicts_aside(run_dir, info.name, warn)
        stored.write_fit_only(run_dir, request.fit_only)
        logs, found = run_dir / "logs", []

        @cache
        # only if a response has no verdict: else a run needs no Ray
        def machines() -> Cluster:
            return stack.enter_context(cluster(logs))

        for info in infos:
            with ExitStack() as over:
                ask = _judge(info, engine, machines, run_dir, tell, over)
                tell_of = partial(lambda name, what: tell(f"{name}: {what}"), info.name)
                found.append(_match(run_dir, info, ask, answered, controls, tell_of))
        return found


def controls_by_task(run_dir: Path, per_language: int) -> dict[str, list[Control]]:
    """The control pairs of each task of a run. None for a task without gradable
    answers."""
    tasks = [path.stem for path in sorted((run_dir / "items").glob("*.parquet"))]
    made = {
        task: controls_of(stored.read_questions(run_dir, task), per_language)
        for task in tasks
    }
    return {task: controls for task, controls in made.items() if controls}


def match_controls(
    store: stored.ControlStore,
    controls: Mapping[str, Sequence[Control]],
    ask: Ask,
    tell: Tell,
) -> int:
    """Request and write the missing verdicts, task by task; returns the number of
    requested pairs."""
    asked = 0
    for task, pairs in controls.items():
        verdicts = store.read((task,))
        left = [
            each
            for each in pairs
            if (key := stored.control_key(each)) not in verdicts or verdicts[key].failed
        ]
        if left:
            judged = ask([each.claim for each in left])
            store.write(
                (task,),
                verdicts
                | {
                    stored.control_key(each): verdict
                    for each, verdict in zip(left, judged, strict=True)
                },
            )
        asked += len(left)
        tell(f"{task}: {len(left)} control pairs asked about, {len(pairs)} in all")
    return asked


def match_parts(
    store: stored.VerdictStore,
    answered: Mapping[stored.Part, Sequence[stored.Answered]],
    ask: Ask,
    tell: Tell,
) -> tuple[int, list[Match]]:
    """Write verdicts part by part; returns the number requested and all. Raises
    InputError for another matcher's."""
    done = {part: store.read(part) for part in answered}
    elsewhere: dict[Claim, Match] = {}
    for part, records in answered.items():
        stored.pending(records, done[part], elsewhere)
    asked = 0
    verdicts: list[Match] = []
    for part, records in answered.items():
        left = stored.pending(records, done[part], elsewhere)
        judged = ask(left.claims) if left.claims else []
        elsewhere.update(
            (claim, each)
            for claim, each in zip(left.claims, judged, strict=True)
            if not each.failed
        )
        complete = left.complete(judged)
        if complete != done[part]:
            store.write(part, complete)
        asked += len(left.claims)
        verdicts += complete.values()
        tell(
            f"{part[0]}, {part[1]}: {len(left.claims)} responses asked about,"
            f" {len(complete)} in all"
        )
    return asked, verdicts


def _judge(
    info: CheckpointInfo,
    config: EngineConfig,
    machines: Callable[[], Cluster],
    run_dir: Path,
    tell: Tell,
    over: ExitStack,
) -> Ask:
    """Judges with the engine of one matcher: it starts for the first response
    without a verdict, and ends with `over`.

    Raises ResurfaceError if the engine or Ray fails."""
    room, path, day = _prompt_tokens(info), info.path.absolute(), day_of(run_dir)
    log = (run_dir / "logs" / f"matcher-{info.name}.log").absolute()

    @cache
    def actor() -> Any:
        setting = config.model_copy(update={"max_model_len": room + _VERDICT_TOKENS})
        (place,) = place_engines(machines().nodes(), config.tensor_parallel, 1, spare=0)
        needs = (
            f", as soon as {place.gpus} of one node's GPUs are free"
            if place.gpus
            else ""
        )
        tell(f"starting the engine{needs}")
        started = start_actor(
            MatchActor, EngineSetup(config=setting, log_path=log, place=place)
        )
        over.callback(_kill, started)
        return started

    def verdicts(claims: Sequence[Claim]) -> list[Match]:
        try:
            found: list[Match] = ray.get(
                actor().verdicts.remote(path, claims, room, day)
            )
        except RayError as error:
            machines().check()
            cause = error.cause if isinstance(error, RayTaskError) else error
            if isinstance(cause, ResurfaceError) and not isinstance(cause, EngineError):
                raise cause from error
            raise EngineError(
                f"matcher {info.name!r} failed: {one_line(cause)}; see {log}; the same"
                " command resumes"
            ) from error
        return found

    return verdicts


def _kill(actor: Any) -> None:
    """End an engine's process: it frees its memory only then."""
    with suppress(RayError):
        ray.kill(actor)


def _match(
    run_dir: Path,
    info: CheckpointInfo,
    ask: Ask,
    answered: Mapping[stored.Part, Sequence[stored.Answered]],
    controls: Mapping[str, Sequence[Control]],
    tell: Tell,
) -> Matched:
    store = stored.VerdictStore(run_dir, info.name, info.weights_digest)
    # find verdicts of another matcher with that name before the first request
    for part in answered:
        store.read(part)
    match_controls(
        stored.ControlStore(run_dir, info.name, info.weights_digest),
        controls,
        ask,
        tell,
    )
    asked, verdicts = match_parts(store, answered, ask, tell)
    return Matched(
        matcher=info.name,
        asked=asked,
        verdicts=sum(verdict.verdict is not None for verdict in verdicts),
        yes=sum(bool(verdict.verdict) for verdict in verdicts),
        too_long=sum(verdict.status == "excluded" for verdict in verdicts),
        failed=sum(verdict.failed for verdict in verdicts),
    )


def _prompt_tokens(info: CheckpointInfo) -> int:
    positions = Checkpoint(info.path).positions(
        unknown=_PROMPT_TOKENS + _VERDICT_TOKENS, least=_VERDICT_TOKENS + 1
    )
    return min(_PROMPT_TOKENS, positions - _VERDICT_TOKENS)
