"""The policy of a gate: tolerances for all tasks and for single ones, and the tasks
and groups that a run must have.

    default: {max_drop: 2, max_mc_only: 5}
    tasks:
      gsm8k: {max_drop: 1}                   # the rest as in `default`
      mmlu: {max_drop: 3, tier: advisory}    # never BLOCK, only WARN
    groups:
      team=billing: {max_drop: 3}            # judged in this group, if it is stated here
    required: [gsm8k]                        # a checkpoint without its records is BLOCK
    lower_is_better: [wer]                   # of a log that does not say so

`gate:` of a sweep file holds a policy, or tolerances alone, which are its default.
RUN/gate.yaml holds the last policy that judged the run."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationError, model_validator

from evaluator.core.config import Frozen, validated
from evaluator.core.document import read_document
from evaluator.core.errors import (
    Document,
    InputError,
    Json,
    mapping_at,
    nearest,
    unknown,
)
from evaluator.core.records import is_group
from evaluator.deciding.thresholds import GroupTolerances, Thresholds, Tolerances

Tier = Literal["critical", "advisory"]
_OF_100 = (
    *("max_drop", "max_drop_language", "max_sample_drop"),
    *("max_mc_only", "max_lost", "max_flips"),
)
_USUAL = "max_drop", "max_mc_only", "max_lost"  # max_drop_language may contradict


class TaskPolicy(Tolerances):
    """The tolerances of one task that differ from the default ones."""

    tier: Tier = "critical"


class Policy(Frozen):
    """Raises ValueError where a task's tolerances contradict each other."""

    default: Thresholds = Thresholds()
    tasks: dict[str, TaskPolicy] = Field(default_factory=dict)
    groups: dict[str, GroupTolerances] = Field(default_factory=dict)
    required: tuple[str, ...] = ()
    # metrics of other programs' logs that do not state it themselves
    lower_is_better: tuple[str, ...] = ()
    higher_is_better: tuple[str, ...] = ()

    def of(self, task: str) -> Thresholds:
        if task not in self.tasks:
            return self.default
        differing = self.tasks[task].model_dump(exclude={"tier"})
        return Thresholds.model_validate(self.default.model_dump() | differing)

    def is_advisory(self, task: str) -> bool:
        return task in self.tasks and self.tasks[task].tier == "advisory"

    @property
    def document(self) -> Json:
        """What RUN/gate.yaml holds: only what was set."""
        return self.model_dump(mode="json", exclude_unset=True)

    @property
    def repeated(self) -> Json:
        """The same with the usual tolerances written out, which a later version may
        have changed."""
        usual = {name: Thresholds.model_fields[name].default for name in _USUAL}
        return {**self.document, "default": usual | self.document.get("default", {})}

    @model_validator(mode="before")
    @classmethod
    def _gathered(cls, given: Any) -> Any:
        """A group may also stand beside `groups`, but no tolerance beside `default`."""
        if not isinstance(given, Mapping):
            return given
        for name in given:
            if name in Thresholds.model_fields:
                raise ValueError(f"{name}: put it under `default`")
        beside = {name: each for name, each in given.items() if is_group(str(name))}
        inside = given.get("groups") or {}
        if not beside or not isinstance(inside, Mapping):
            return given
        rest = {name: each for name, each in given.items() if name not in beside}
        return {**rest, "groups": {**inside, **beside}}

    @model_validator(mode="after")
    def _agree(self) -> "Policy":
        for task in self.tasks:
            if is_group(task):
                raise ValueError(f"tasks.{task}: a group belongs in `groups`")
            try:
                self.of(task)
            except ValidationError as error:
                why = error.errors()[0]["msg"].removeprefix("Value error, ")
                raise ValueError(f"tasks.{task}: {why}") from error
        return self


def _form(stated: Any) -> str:
    """The name of the model of a stated policy."""
    if isinstance(stated, Policy):
        return "Policy"
    if not isinstance(stated, Mapping):
        return "Thresholds"
    nested = any(isinstance(value, Mapping | list) for value in stated.values())
    return "Policy" if nested or stated.keys() & Policy.model_fields else "Thresholds"


# what `gate:` of a sweep file holds
Stated = Annotated[
    Annotated[Thresholds, Tag("Thresholds")] | Annotated[Policy, Tag("Policy")],
    Discriminator(_form),
]


def as_policy(stated: Thresholds | Policy) -> Policy:
    return stated if isinstance(stated, Policy) else Policy(default=stated)


def policy_for(
    run_dir: Path, run: Document, file: Path | None = None, **given: object
) -> Policy:
    """The policy in a file, else the last one that judged the run, else the one that
    run.json states; with `given` tolerances over its default ones. Raises InputError
    naming file, field and value."""
    last = run_dir / "gate.yaml"
    if file is None and last.is_file():
        file = last
    if file is not None:
        return policy_of(file, given)
    stated = mapping_at(run, "config").get("gate")
    place = f"{run_dir / 'run.json'}: config.gate"
    return _policy({} if stated is None else stated, place, given)


def policy_of(file: Path | None, given: Document) -> Policy:
    """The policy in a file, or the usual one, with `given` tolerances over its default
    ones. Raises InputError naming file, field and value."""
    if file is None:
        return _policy({}, "resurface gate", given)
    return _policy(read_document(file, "the policy"), str(file), given)


def _policy(stated: Any, place: str, given: Document) -> Policy:
    """A stated policy, with `given` tolerances over its default ones."""
    if given:
        place += " with the given tolerances"
    if _form(stated) == "Thresholds":
        return Policy(default=validated(Thresholds, _over(stated, given), place))
    default = stated.get("default", {})
    return validated(Policy, {**stated, "default": _over(default, given)}, place)


def _over(stated: Any, given: Document) -> Any:
    if not given or not isinstance(stated, Mapping):
        return stated
    merged = dict(stated)
    if given.get("languages") is False:  # a stated tolerance would contradict it
        merged.pop("max_drop_language", None)
    return {**merged, **given}


def need_known(policy: Policy, known: Collection[str], place: str) -> None:
    """Raises InputError for a misspelled task of `tasks` or group of `groups`. `known`:
    tasks and groups."""
    # a twin may be named too
    unnamed = sorted({*known}.difference(policy.tasks, policy.groups))
    for name in absent(policy, known):
        key = name.partition("=")[0] + "="  # groups of one key are not alike
        near = [each for each in unnamed if is_group(each) == is_group(name)]
        values = [each.removeprefix(key) for each in near]
        if nearest(name.removeprefix(key), values):
            what = "group of `groups`" if is_group(name) else "task of `tasks`"
            raise InputError(f"{place}: {unknown(what, name, near)}")


def absent(policy: Policy, known: Collection[str]) -> list[str]:
    """The tasks of `tasks` and the groups of `groups` that are not there. A company's
    policy may have more than a run, and a required task blocks."""
    return [name for name in (*policy.tasks, *policy.groups) if name not in known]


def small(policy: Policy) -> str:
    """Names the tolerances of 100 that may be meant as shares of 1; empty for none."""
    told = {}
    for own in (policy.default, *policy.tasks.values(), *policy.groups.values()):
        for name, value in own:
            if name in _OF_100 and 0 < (value or 0) < 0.1:
                told[
                    f"{name} is {value:g} of 100: {100 * value:g} if meant as a share"
                ] = 0
    return "; ".join(told)


def spelled(policy: Policy, lacking: Sequence[str] = ()) -> str:
    """The tolerances that are judged: "max_drop 2, max_mc_only 5; gsm8k: ..."; then
    the names that the run is `lacking`."""
    parts = [_spelled(policy.default)]
    for name in policy.tasks:
        tier = " (advisory)" if policy.is_advisory(name) else ""
        parts.append(f"{name}{tier}: {_spelled(policy.of(name))}")
    parts += [f"{name}: {_spelled(each)}" for name, each in policy.groups.items()]
    if policy.required:
        parts.append(f"required: {', '.join(policy.required)}")
    if lacking:
        parts.append(f"not in this run: {', '.join(lacking)}")
    return "; ".join(parts)


def _spelled(thresholds: Tolerances) -> str:
    stated = dict(thresholds)
    stated["max_drop_language"] = thresholds.drop_language
    if not stated.pop("languages"):
        del stated["max_drop_language"]
    parts = [f"{name} {value:g}" for name, value in stated.items() if value is not None]
    return ", ".join(parts)
