"""Matcher models over a run's responses: one engine actor per matcher, verdicts written part by part.

The same call resumes: it asks again only where the engine failed. A response that was judged for one checkpoint is not
asked about for another. The run is locked meanwhile, as by the driver that made it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from evaluator.asking.template_trial import try_template
from evaluator.checkpoints.info import CheckpointInfo, inspect_checkpoint, read_positions
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.engine.base import Engine
from evaluator.engine.config import EngineConfig, build_engine, check_served
from evaluator.errors import EngineError, InputError, ResurfaceError, one_line
from evaluator.probes.matcher import Claim, Matcher, Verdict
from evaluator.store.records import RecordStore
from evaluator.store.verdicts import Answered, Part, Pending, VerdictStore, pending, responses
from launch.run.actors import enter_engine_process, start_actor
from launch.run.cluster import Cluster, cluster
from launch.run.lock import RunLock
from launch.run.nodes import place_engines
from launch.run.work import EngineSetup, Matched
from launch.sweep.models import names_of, resolve_model

_PROMPT_TOKENS = 2048  # room for long references; a response has some tens of tokens
_VERDICT_TOKENS = 8  # " yes" and " no" in the worst vocabulary, and what a boundary may move

Ask = Callable[[Sequence[Claim]], list[Verdict]]
Tell = Callable[[str], None]


class MatchActor:
    """Owns the engine of one matcher."""

    def __init__(self, setup: EngineSetup) -> None:
        enter_engine_process(setup)
        self._config = setup.config
        self._engine: Engine | None = None

    def load(self, checkpoint: Path) -> None:
        self._engine = build_engine(self._config)
        self._engine.load(checkpoint)

    def verdicts(self, checkpoint: Path, claims: Sequence[Claim], prompt_tokens: int) -> list[Verdict]:
        assert self._engine is not None, "load comes before verdicts"
        tokenizer = load_tokenizer(checkpoint, trust_remote_code=self._config.trust_remote_code)
        return Matcher(tokenizer, prompt_tokens=prompt_tokens).verdicts(self._engine, claims)


def match_run(
    run_dir: Path,
    matchers: Sequence[str],
    *,
    probes: Sequence[str],
    everything: bool,
    engine: EngineConfig,
    tell: Tell,
) -> list[Matched]:
    """Have every matcher judge what it has not judged yet.

    Raises InputError for what the user can mend, ResurfaceError when the work itself failed.
    """
    infos = [
        inspect_checkpoint(resolve_model(matcher), name, trust_remote_code=engine.trust_remote_code)
        for name, matcher in names_of(matchers, "--matcher").items()
    ]
    for info in infos:  # an unusable tokenizer, chat template or context length is reported before Ray starts
        tokenizer = load_tokenizer(info.path, trust_remote_code=engine.trust_remote_code)
        if tokenizer.chat_template:
            try_template(tokenizer)
        room = _prompt_tokens(info)
        asked, _ = Matcher(tokenizer, prompt_tokens=room).requests(
            Claim(question="x", answers=("x",), response="x"), "check"
        )
        if not asked:
            raise InputError(
                f"{info.path / 'config.json'}: field 'max_position_embeddings' leaves a prompt {room} tokens, in which "
                "not even a response of one letter can be judged"
            )
    check_served(engine, infos, here=not os.environ.get("RAY_ADDRESS"))
    lock = RunLock(run_dir)
    try:
        RecordStore(run_dir).clean()
        answered = responses(run_dir, probes, everything=everything)
        with contextlib.ExitStack() as stack:
            ray_of = _Lazily(stack, run_dir / "logs")
            return [_match(run_dir, info, answered, _MatcherEngine(info, engine, ray_of, tell), tell) for info in infos]
    finally:
        lock.release()


def match_parts(
    store: VerdictStore, answered: Mapping[Part, Sequence[Answered]], ask: Ask, tell: Tell
) -> tuple[int, list[Verdict]]:
    """Ask and write part after part; how many comparisons were asked, and all current verdicts.

    Raises InputError, before anything is asked, where the store holds verdicts of another matcher.
    """
    done = {part: store.read(part) for part in answered}
    elsewhere: dict[Claim, Verdict] = {}
    for part, records in answered.items():
        pending(records, done[part], elsewhere)
    asked = 0
    verdicts: list[Verdict] = []
    for part, records in answered.items():
        left: Pending = pending(records, done[part], elsewhere)
        judged = ask(left.claims) if left.claims else []
        elsewhere.update((claim, each) for claim, each in zip(left.claims, judged, strict=True) if not each.failed)
        complete = left.complete(judged)
        if complete != done[part]:
            store.write(part, complete)
        asked += len(left.claims)
        verdicts += complete.values()
        tell(f"{part[0]}, {part[1]}: {len(left.claims)} responses asked about, {len(complete)} in all")
    return asked, verdicts


class _Lazily:
    """Ray, started when the first response has to be judged: a run that is judged already needs none."""

    def __init__(self, stack: contextlib.ExitStack, log_dir: Path) -> None:
        self._stack = stack
        self._cluster: Cluster | None = None
        self.log_dir = log_dir

    def machines(self) -> Cluster:
        if self._cluster is None:
            self._cluster = self._stack.enter_context(cluster(self.log_dir))
        return self._cluster


class _MatcherEngine:
    """The engine of one matcher, started when the first response has to be judged."""

    def __init__(self, info: CheckpointInfo, config: EngineConfig, ray_of: _Lazily, tell: Tell) -> None:
        self._info = info
        self._prompt_tokens = _prompt_tokens(info)
        self._config = config.model_copy(update={"max_model_len": self._prompt_tokens + _VERDICT_TOKENS})
        self._ray_of = ray_of
        self._log = (ray_of.log_dir / f"matcher-{info.name}.log").absolute()
        self._tell = tell
        self._actor: Any = None

    def verdicts(self, claims: Sequence[Claim]) -> list[Verdict]:
        """A verdict on each comparison. Raises ResurfaceError when the engine or Ray fails."""
        machines = self._ray_of.machines()
        path = self._info.path.absolute()
        try:
            if self._actor is None:
                self._actor = self._start(machines)
                ray.get(self._actor.load.remote(path))
            verdicts: list[Verdict] = ray.get(self._actor.verdicts.remote(path, claims, self._prompt_tokens))
        except RayError as error:
            machines.check()
            raise self._failure(error) from error
        return verdicts

    def close(self) -> None:
        """Ending the process is what frees an engine's memory."""
        if self._actor is not None:
            with contextlib.suppress(RayError):
                ray.kill(self._actor)

    def _start(self, machines: Cluster) -> Any:
        (place,) = place_engines(machines.nodes(), self._config.tensor_parallel, 1, spare=0)
        needs = f", as soon as {place.gpus} of one node's GPUs are free" if place.gpus else ""
        self._tell(f"starting the engine{needs}")
        return start_actor(MatchActor, EngineSetup(config=self._config, log_path=self._log, place=place))

    def _failure(self, error: RayError) -> ResurfaceError:
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, ResurfaceError) and not isinstance(cause, EngineError):
            return cause
        return EngineError(
            f"matcher {self._info.name!r} failed: {one_line(cause)}; see {self._log}; "
            "the same command goes on from here"
        )


def _match(
    run_dir: Path,
    info: CheckpointInfo,
    answered: Mapping[Part, Sequence[Answered]],
    engine: _MatcherEngine,
    tell: Tell,
) -> Matched:
    try:
        store = VerdictStore(run_dir, info.name, info.weights_digest)
        asked, verdicts = match_parts(store, answered, engine.verdicts, lambda what: tell(f"{info.name}: {what}"))
    finally:
        engine.close()
    return Matched(
        matcher=info.name,
        asked=asked,
        verdicts=sum(verdict.verdict is not None for verdict in verdicts),
        yes=sum(bool(verdict.verdict) for verdict in verdicts),
        too_long=sum(verdict.status == "excluded" for verdict in verdicts),
        failed=sum(verdict.failed for verdict in verdicts),
    )


def _prompt_tokens(info: CheckpointInfo) -> int:
    positions = read_positions(info.path, unknown=_PROMPT_TOKENS + _VERDICT_TOKENS, least=_VERDICT_TOKENS + 1)
    return min(_PROMPT_TOKENS, positions - _VERDICT_TOKENS)
