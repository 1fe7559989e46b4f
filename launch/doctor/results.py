"""The results of the doctor's runs, and how far two of them are apart, as far as
`evaluator/engine/comparisons.py` does not say. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from evaluator.engine.beam import Hypothesis
from evaluator.engine.comparisons import Answers, DisagreementError, pairs

Beams = Mapping[str, tuple[Hypothesis, ...]]  # by prompt, best first


class NotHereError(Exception):
    """This machine has nothing to compare; the text gives the reason in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    dtype: str = ""  # of its computations
    # about the engine or device, in words
    facts: Mapping[str, str] = field(default_factory=dict)
    scoring: str = "forced"  # how its engine scores
    notes: tuple[str, ...] = ()  # from the engine
    # by stage: "dense", "pruned", ...
    answers: Mapping[str, Answers] = field(default_factory=dict)
    beams: Beams = field(default_factory=dict)
    # by comparison and matrix: what differs
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Results:
    """The result of every run, or the reason for its absence."""

    by_run: Mapping[str, RunResult | str]

    def of(self, run: str) -> RunResult:
        """Raises DisagreementError for a run without a result."""
        result = self.by_run.get(run, "it did not run")
        if isinstance(result, str):
            raise DisagreementError(f"{run}: {result}")
        return result

    def forced(self, run: str) -> RunResult:
        """The result of a run that scores by forcing tokens. Raises
        DisagreementError if its engine stopped forcing because the scores were
        wrong, NotHereError if the engine cannot force."""
        result = self.of(run)
        if result.scoring == "forced":
            return result
        why = "; ".join(result.notes) or "it scores by prompt log-probabilities"
        if result.facts.get("self-check") == "failed":
            raise DisagreementError(f"{run}: {why}")
        raise NotHereError(why)

    def answers(self, run: str, stage: str, kind: str = "") -> Answers:
        """A stage's answers to requests whose ids begin with `kind`. Raises
        DisagreementError if there are none."""
        found = {
            name: each
            for name, each in self.of(run).answers.get(stage, {}).items()
            if name.startswith(kind)
        }
        if not found:
            raise DisagreementError(f"{run}: no answer of stage {stage!r}")
        return found


def of_twin_ranks(answers: Answers) -> list[float]:
    """1 for each even rank, where tokens are twins of equal logits. Strict ranks are
    odd there; ties make them even."""
    distances = []
    for _, answer, _ in pairs(answers, answers):
        distances += [float(rank % 2 == 0) for rank in answer.ranks]
    return distances


def of_greedy(ours: Answers, theirs: Answers) -> list[float]:
    """Nats between the log-probabilities of each greedy token, up to the first token
    that differs.

    There, how much more likely the first side thinks its own token than the other's:
    nearly nothing where two tokens are as good as tied."""
    distances = []
    for name, one, other in pairs(ours, theirs):
        steps = min(len(one.token_ids), len(other.token_ids))
        for step in range(steps):
            token = other.token_ids[step]
            if one.token_ids[step] != token:
                # If the other token is not listed, the lead is at least the one over
                # the last listed token.
                listed = dict(
                    zip(one.top_ids[step], one.top_logprobs[step], strict=True)
                )
                behind = listed.get(token, one.top_logprobs[step][-1])
                distances.append(one.logprobs[step] - behind)
                break
            distances.append(abs(one.logprobs[step] - other.logprobs[step]))
        else:
            if len(one.token_ids) != len(other.token_ids):
                raise DisagreementError(
                    f"{name}: one side ended after {len(one.token_ids)} tokens, the"
                    " other did not"
                )
    return distances


def of_beams(ours: Beams, theirs: Beams) -> list[float]:
    """Nats per token between the scores of the beams of each prompt, best with best,
    second with second."""
    if not ours or ours.keys() != theirs.keys():
        raise DisagreementError("the sides searched from other prompts")
    distances = []
    for name, hypotheses in ours.items():
        if len(hypotheses) != len(theirs[name]) or not hypotheses:
            raise DisagreementError(
                f"{name}: {len(hypotheses)} beams on one side, {len(theirs[name])} on"
                " the other"
            )
        distances += [
            abs(one.score - other.score)
            for one, other in zip(hypotheses, theirs[name], strict=True)
        ]
    return distances


def of_beam_scores(ours: Beams, scored: Answers) -> list[float]:
    """Nats per token between each beam's score and that of the same tokens, scored
    as `NAME/NUMBER`."""
    distances = []
    for name, hypotheses in ours.items():
        for number, hypothesis in enumerate(hypotheses):
            answer = scored.get(f"{name}/{number}")
            if answer is None or answer.token_ids != hypothesis.token_ids:
                raise DisagreementError(f"{name}: beam {number} was not scored")
            distances.append(
                abs(hypothesis.logprob - sum(answer.logprobs))
                / len(hypothesis.token_ids)
            )
    if not distances:
        raise DisagreementError("no beam was found")
    return distances
