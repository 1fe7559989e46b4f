"""Policies: which tolerances count, which file they come from, and what each tier
makes of a verdict."""

from itertools import product

import pandas as pd
import pytest
import yaml

from evaluator.core.config import validated
from evaluator.deciding.policy import Policy, absent, need_known, policy_for, spelled
from evaluator.deciding.verdict_text import document, notice, summary, usable, why
from evaluator.deciding.verdicts import judge
from evaluator.metrics import Inputs
from tests.support.records import Seen
from tests.support.sweeps import refused
from tests.support.tables import outcomes

POLICY = {
    "default": {"max_drop": 2, "max_mc_only": 5},
    "tasks": {"gsm8k": {"max_drop": 1}, "mmlu": {"max_drop": 3, "tier": "advisory"}},
    "required": ["gsm8k"],
}


def judged_items(count, lost):
    """The outcomes of a base that is always right, and of int4, which lost some."""
    own = side_of("int4", {"lost": lost, "right": count - lost}, base="dense")
    return pd.concat([side_of("dense", {"right": count}), own], ignore_index=True)


@pytest.fixture
def files(tmp_path):
    def written(name, content):
        path = tmp_path / name
        text = content if isinstance(content, str) else yaml.safe_dump(content)
        path.write_text(text)
        return path

    return written


def test_tasks_differ_from_default(tmp_path, files):
    policy = policy_for(tmp_path, {}, files("p.yaml", POLICY), max_drop=4, max_lost=3)
    drops = [policy.of(name).max_drop for name in ("gsm8k", "mmlu", "other")]
    assert drops == [1, 3, 4]
    assert policy.of("gsm8k").max_lost == 3
    stored = files("gate.yaml", policy.document)
    assert policy_for(tmp_path, {}) == policy_for(tmp_path, {}, stored) == policy
    assert Policy(required=("a",)).document == {"required": ["a"]}
    told = spelled(policy)
    assert told.startswith(
        "max_drop 4, max_drop_language 5, max_mc_only 5, max_lost 3; "
    )
    assert "; mmlu (advisory): max_drop 3, " in told
    assert told.endswith("; required: gsm8k")


@pytest.mark.parametrize(
    "stated", [{"groups": {"t=a": {"max_drop": 3}}}, {"t=a": {"max_drop": 3}}]
)
def test_group_is_judged_by_what_is_stated(tmp_path, files, stated):
    policy = policy_for(tmp_path, {}, files("p.yaml", stated))
    assert policy.document["groups"] == {"t=a": {"max_drop": 3.0}}
    assert spelled(policy).endswith("; t=a: max_drop 3")


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        ({"groups": {"t=a": {}}}, "groups.t=a: {}: a tolerance is needed, as max_drop: 3"),
        ({"t=a": {"max_drop": None}}, "a tolerance is needed"),
        ({"t=a": {"max_drop_language": 3}}, "max_drop_language: a group is not divided into languages"),
        ({"t=a": {"languages": True, "max_drop": 1}}, "languages: a group is not divided"),
        ({"t=a": {"max_dorp": 3}}, "groups.t=a.max_dorp: unknown key 'max_dorp'; did you mean 'max_drop'?"),
        ({"tasks": {"t=a": {"max_drop": 3}}}, "tasks.t=a: a group belongs in `groups`"),
    ],
)  # fmt: skip
def test_group_that_judges_nothing_is_refused(tmp_path, files, stated, told):
    told_whole = refused(policy_for, tmp_path, {}, files("p.yaml", stated))
    assert told in told_whole
    assert "known: languages" not in told_whole
    assert ", max_drop_language" not in told_whole


def test_last_policy_counts(tmp_path, files):
    """Without a file RUN/gate.yaml, else the sweep's. Options change its default, and
    keep its tasks and groups."""
    run = {"config": {"gate": {"max_drop": 3, "max_lost": 1, "max_drop_language": 3}}}
    assert policy_for(tmp_path, {}) == Policy()
    assert policy_for(tmp_path, run).default.max_drop == 3
    files("gate.yaml", {"max_drop": 5})
    assert policy_for(tmp_path, run).default.max_drop == 5
    given = policy_for(tmp_path, run, max_flips=7).default
    assert (given.max_drop, given.max_lost, given.max_flips) == (5, 2, 7)
    assert policy_for(tmp_path, {"config": {"gate": POLICY}}).default.max_drop == 5
    last = files("gate.yaml", POLICY | {"t=a": {"max_drop": 6}})
    given = policy_for(tmp_path, run, max_drop=12, languages=False)
    assert (given.default.max_drop, given.of("gsm8k").max_drop) == (12, 1)
    assert given.document["groups"] == {"t=a": {"max_drop": 6.0}}
    last.unlink()
    given = policy_for(tmp_path, run, max_flips=7, languages=False).default
    assert (given.max_drop, given.max_lost, given.max_flips) == (3, 1, 7)
    assert policy_for(tmp_path, {"config": {"gate": POLICY}}, max_drop=4).required


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("defualt: {max_drop: 2}", "defualt: unknown key 'defualt'; did you mean 'default'?"),
        ("default: {max_dorp: 2}", "default.max_dorp: unknown key 'max_dorp'; did you mean 'max_drop'?"),
        ("max_dorp: 2", "p.yaml: max_dorp: unknown key 'max_dorp'; did you mean 'max_drop'?"),
        ("tasks: {a: {teir: advisory}}", "tasks.a.teir: unknown key 'teir'; did you mean 'tier'?"),
        ("tasks: {a: {tier: advisery}}", "tasks.a.tier: unknown value 'advisery'; did you mean 'advisory'?"),
        ("tasks: {a: {max_drop: 101}}", "tasks.a.max_drop: 101: "),
        ("tasks: {a: {max_drop: yes}}", "tasks.a.max_drop: true: "),
        ("tasks: {a: {max_drop: 1}, a: {}}", "key 'a' appears here twice"),
        ("default: {max_drop_language: 3}\ntasks: {a: {max_drop: 4}}", "tasks.a: max_drop_language: 3 contradicts"),
        ("tasks: {a: {max_drop: null, max_mc_only: null, max_lost: null}}", "tasks.a: every threshold is null"),
        ("required: a", "required: \"a\": a list is needed"),
        ("max_drop: 1\nrequired: [a]", "p.yaml: max_drop: put it under `default`"),
        ("[]", "p.yaml: (top level): []: a mapping is needed: {name: value}"),
        ("", "p.yaml: (top level): null: "),
        ("default: {min_recovery: 0.95}", "default.min_recovery: 0.95: is 0.95 %, or 95% if it is a share: write 95"),
        ("min_recovery: 0.5", "min_recovery: 0.5: is 0.5 %"),
        ("min_recovery: 1", "min_recovery: 1: is 1 %, or 100% if it is a share"),
        ("max_drop: 020", "020 would be the number 16"),
        ("max_drop: 1:30", "1:30 would be the number 90"),
        ("max_drop: 1_0.5", "1_0.5 would be the number 10.5"),
        ("max_drop: 0x10", "0x10 would be the number 16"),
        ("!!python/name:os.system", "not valid YAML"),
    ],
)  # fmt: skip
def test_bad_policy_is_one_line(tmp_path, files, text, told):
    message = refused(policy_for, tmp_path, {}, files("p.yaml", text))
    assert told in message
    assert "\n" not in message


def test_misspelled_task_is_refused(tmp_path):
    policy = validated(Policy, POLICY, "p.yaml")
    assert not absent(policy, ["gsm8k", "mmlu"])
    assert absent(policy, ["mmlu"]) == ["gsm8k"]
    need_known(policy, ["mmlu"], "p.yaml")
    told = refused(need_known, policy, ["gsm8k_de", "mmlu"], "p.yaml")
    assert told.startswith(
        "p.yaml: unknown task of `tasks` 'gsm8k'; did you mean 'gsm8k_de'?"
    )
    need_known(Policy(required=("later",)), [], "p.yaml")
    (tmp_path / "q.yaml").touch()
    told = refused(policy_for, tmp_path, {}, tmp_path / "p.yaml")
    assert "p.yaml: cannot read the policy: No such file or directory" in told
    assert told.endswith(f"; did you mean {str(tmp_path / 'q.yaml')!r}?")


def test_group_that_a_run_lacks_is_named():
    """As a task is: only a misspelled one is refused."""
    policy = Policy(groups={"team=tax": {"max_drop": 3}})
    need_known(policy, ["team=hr", "team=billing"], "p.yaml")
    assert absent(policy, ["team=hr"]) == ["team=tax"]
    assert spelled(policy, ["team=tax"]).endswith("; not in this run: team=tax")
    for near in ("team=taxes", "teem=tax"):
        told = refused(need_known, policy, [near], "p.yaml")
        assert told.startswith("p.yaml: unknown group of `groups` 'team=tax'")


def test_name_beside_its_twin_is_no_misspelling():
    """A policy of several runs may name both."""
    own = {"max_drop": 3}
    policy = Policy(
        tasks={"gazetteer": own, "gazetteer-de": own},
        groups={"team=billing": own, "team=billing-eu": own},
    )
    need_known(policy, ["gazetteer", "team=billing"], "p.yaml")
    told = refused(need_known, policy, ["gazetteer", "gazeteer-de"], "p.yaml")
    assert "'gazetteer-de'; did you mean 'gazeteer-de'?" in told


def test_tiers_and_required_tasks():
    """Which verdict it is stands in `test_every_combination_has_one_verdict`."""
    policy = Policy(tasks={"t": {"tier": "advisory"}}, required=("t", "absent"))
    softened, missing = verdicts = judge(Inputs(judged_items(400, 200)), policy)
    assert why(softened).startswith("advisory: drop of said answers 50.0")
    assert usable(softened) == "not usable"
    assert (missing.task, missing.outcome) == ("absent", "BLOCK")
    assert summary(verdicts) == "1 of 2 blocked, 1 warned (advisory)"
    told = document(verdicts, policy)
    line = "int4 on absent: required, and not measured (the policy requires this task: it has no"
    assert line in told["words"]
    assert "BLOCK int4" in notice(verdicts)
    assert told["policy"] == policy.document


KINDS = {
    "right": Seen(greedy=True, choice=True),
    "lost": Seen(greedy=False, choice=False),
    "excluded": Seen(greedy=True, choice=True, status="excluded"),
    "engine_error": Seen(greedy=True, choice=True, status="engine_error"),
}


def side_of(checkpoint, counts, **more):
    """A checkpoint's answers: so many of each kind, in this order."""
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    seen = {f"english/{n:03}": KINDS[kind] for n, kind in enumerate(kinds)}
    return outcomes(checkpoint, seen, **more)


def expected_of(tier, counts, required, lacking):
    """By the rules of docs/gate.md, in plain words. Of 400 items a loss of 12 is
    undecided and one of 200 is sure; so is a failure of 200."""
    verdict = "PASS"
    if counts["lost"] == 12 or counts["engine_error"] > 0:
        verdict = "WARN"  # an item without an answer may be a loss
    if counts["lost"] == 200:
        verdict = "BLOCK"
    if verdict == "BLOCK" and tier == "advisory":
        verdict = "WARN"
    if required and lacking:
        return verdict, "BLOCK"
    return verdict, verdict


@pytest.mark.parametrize("lost", [0, 12, 200])
@pytest.mark.parametrize("trouble", ["excluded", "engine_error", None])
def test_every_combination_has_one_verdict(lost, trouble):
    """Excluded items are excluded of both sides, and no loss."""
    own = {"right": 400 - lost, "lost": lost, "excluded": 0, "engine_error": 0}
    base = {"right": 400}
    if trouble:
        own[trouble] = 40
        base["excluded" if trouble == "excluded" else "right"] = 40
    if trouble == "engine_error":
        base = {"right": 440}
    sides = side_of("dense", base), side_of("int4", own, base="dense")
    inputs = Inputs(pd.concat(sides, ignore_index=True))
    tiers = (None, "critical", "advisory")
    asked = ((False, True), (True, False), (True, True))
    for tier, (required, lacking) in product(tiers, asked):
        tasks = {"t": {"tier": tier}} if tier else {}
        name = "there" if lacking else "t"
        policy = Policy(tasks=tasks, required=(name,) if required else ())
        verdicts = judge(inputs, policy)
        found = verdicts[0].outcome, document(verdicts, policy)["verdict"]
        assert found == expected_of(tier, own, required, lacking)


def test_base_without_records_is_unmet():
    frame = judged_items(40, 0)
    alone = Inputs(frame[frame["checkpoint"] == "int4"])
    for required, outcome in (((), "WARN"), (("t",), "BLOCK")):
        (found,) = judge(alone, Policy(required=required))
        assert found.outcome == outcome
        assert ("requires this task: base 'dense' has no" in why(found)) == bool(
            required
        )


def test_failed_checkpoint_is_unmet():
    """It has no record at all: only run.json names it and its base."""
    bases = {"dense": None, "int4": "dense", "fp8": "dense"}
    run = {"identity": {"bases": bases}}
    verdicts = judge(Inputs(judged_items(40, 0), run=run), Policy(required=("t",)))
    assert [each.checkpoint for each in verdicts if each.unmet] == ["fp8"]
