"""Controls: of which checkpoints, what they ask, and what is refused."""

import json

import pytest
import yaml

from evaluator.core.config import validated
from evaluator.engine import processor
from evaluator.engine.config import EngineConfig, engine_under
from launch.sweep import preflight
from launch.sweep.config import SweepConfig
from launch.sweep.controls import ITEMS, with_controls
from launch.sweep.jobs import expand
from launch.sweep.preflight import prepare
from tests.support.models import save_tiny_model
from tests.support.quantised import LAYOUTS, with_quantisation
from tests.support.sweeps import RUN, gazetteer, refused

MAIN = {
    "models": {"dense": "bundled", "other": "there"},
    "prune": [{"method": "magnitude", "sparsity": 0.5}],
    "compress": [
        {"method": "rtn", "scheme": ["W8A8", "W8A16"]},
        {"checkpoint": "there.gguf", "label": "served", "base": "dense"},
    ],
    "only": ["dense"],
    "tasks": [gazetteer(probes=["greedy", "fidelity"])],
}

SERVED = {"dense": "bundled", "api": {"url": "http://localhost:1", "dialect": "vllm"}}


def jobs(more, *, on_gpus=False):
    config = validated(SweepConfig, MAIN | more, "s.yaml")
    plain = expand(config, RUN)
    return with_controls(plain, config, on_gpus=on_gpus)


def controls(more, *, on_gpus=False):
    return [job for job in jobs(more, on_gpus=on_gpus) if job.change]


def test_bases_are_evaluated_once_more():
    """Never a compressed one, never made, judged early or compared with another."""
    more = {"controls": ["repeat", "dtype:bfloat16"], "compress": []}
    every = jobs(more)
    assert [job.name for job in every][:3] == [
        "dense",
        "dense~repeat",
        "dense~dtype-bfloat16",
    ]
    dense, repeat = every[:2]
    assert (repeat.base, repeat.path, repeat.tasks) == (
        "dense",
        dense.path,
        dense.tasks,
    )
    assert repeat.is_variant
    assert not repeat.is_made
    assert repeat.most is None
    assert sum(job.change is not None for job in every) == 2


ALL = ["dense", "dense-magnitude-0.5", "dense-rtn-w8a8", "dense-rtn-w8a16", "served"]
ROUNDED = ["dense-rtn-w8a8", "served"]


@pytest.mark.parametrize(
    ("more", "on_gpus", "names"),
    [
        ({}, True, ALL),
        ({}, False, ALL),  # AMX has no kernel of W8A8 in float32
        ({"engine": {"dtype": "float32"}}, False, ROUNDED),
        ({"engine": {"dtype": "bfloat16"}}, False, ALL),
        ({"engine": {"deterministic": True}}, True, ROUNDED),
        ({"engine": {"kind": "torch"}}, True, ROUNDED),
        ({"models": SERVED, "only": ["api", "dense"], "compress": []}, False, ["api"]),
        ({"controls": "none"}, True, []),
    ],
)
def test_noise_is_measured_by_default(more, on_gpus, names, monkeypatch):
    """In every dtype but float32 on a CPU, of each checkpoint."""
    amx = ("avx2", "avx512f", "amx_tile", "amx_int8")
    monkeypatch.setattr(processor, "instruction_sets", lambda: amx)
    made = [job for job in controls(more, on_gpus=on_gpus) if job.change == "order"]
    assert [job.base.lower() for job in made] == names
    for job in made:
        assert job.most == ITEMS
        (task,) = job.tasks.values()  # without the distributions that it compares
        assert ("fidelity" in task.probes) == (job.base == "dense")


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({}, ["dense~engine-torch"]),
        (
            {"models": SERVED, "only": ["api", "dense"], "compress": []},
            ["dense~engine-torch"],
        ),
        ({"engine": {"kind": "torch"}}, []),
        ({"compress": []}, []),
        ({"controls": "none"}, []),
    ],
)
def test_base_of_a_served_model_is_read_by_another_engine(more, names):
    made = [job for job in controls(more) if job.change == "engine:torch"]
    assert [job.name for job in made] == names
    for job in made:
        assert (job.base, job.most) == ("dense", ITEMS)
        assert [task.probes for task in job.tasks.values()] == [("greedy",)]


@pytest.mark.parametrize(
    ("config", "engine", "count"),
    [
        ({}, {}, 1),
        ({"model_type": "mistral3"}, {}, 0),
        ({"model_type": "mine"}, {"trust_remote_code": True}, 0),
        (
            {"model_type": "mine", "auto_map": {"AutoModelForCausalLM": "m.M"}},
            {"trust_remote_code": True},
            1,
        ),
        ({}, {"tensor_parallel": 2}, 0),
        (LAYOUTS["w4a16"].config, {}, 0),
    ],
)
def test_other_engine_is_left_out_where_it_cannot_load(config, engine, count, tmp_path):
    """A control by default would else fail the run, at each of its calls."""
    save_tiny_model(tmp_path / "m")
    if config is LAYOUTS["w4a16"].config:
        with_quantisation(tmp_path / "m", config)
    else:
        file = tmp_path / "m" / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | config))
    models = SERVED | {"dense": str(tmp_path / "m")}
    more = {"models": models, "only": ["api", "dense"], "compress": [], "prune": []}
    made = [job.change for job in controls(more | {"engine": engine})]
    assert made.count("engine:torch") == count


def test_named_controls_are_added():
    """`order` by name asks every item again, of each noisy checkpoint."""
    plain = {"engine": {"dtype": "float32"}, "only": ["dense"]}
    torch = ("dense~engine-torch", ITEMS)
    made = controls({"controls": ["batch", "order"], **plain})
    assert [(job.name.lower(), job.most) for job in made] == [
        ("dense~batch", None),
        ("dense~order", None),
        torch,
        ("dense-rtn-w8a8~order", None),
        ("served~order", None),
    ]
    made = controls({"controls": ["batch"], **plain}, on_gpus=True)
    found = {job.name.lower(): job.most for job in made}
    orders = {f"{name}~order": ITEMS for name in ALL}
    assert found == {"dense~batch": None, **dict([torch]), **orders}


def test_tasks_without_other_probes_have_no_control(tmp_path):
    text = tmp_path / "book.txt"
    text.write_text("Karo lies on the Belu.")
    tasks = [{"task": f"text:{text}", "probes": ["text_fidelity"]}]
    made = controls({"tasks": tasks}, on_gpus=True)
    assert [job.base for job in made] == ["dense"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["ordr"], "'ordr'; did you mean 'order'?"),
        (["none", "order"], "none goes with no other control"),
        (["order", "order"], "must name each one once"),
        (["dtype:"], "unknown control 'dtype:'"),
        (7, "controls: 7"),
    ],
)
def test_senseless_controls_are_refused(given, told):
    assert told in refused(validated, SweepConfig, MAIN | {"controls": given}, "s.yaml")


def test_control_needs_its_base(tmp_path):
    save_tiny_model(tmp_path / "w4")
    with_quantisation(tmp_path / "w4", LAYOUTS["w4a16"].config)
    document = {"models": {"w4": str(tmp_path / "w4")}, "tasks": MAIN["tasks"]}
    config = validated(SweepConfig, document | {"controls": "repeat"}, "s.yaml")
    told = refused(with_controls, expand(config, RUN), config, on_gpus=False)
    assert "'w4' is compressed" in told
    assert told.endswith("(base: in a sweep file)")


def test_engine_takes_the_change():
    usual = EngineConfig(max_num_seqs=3)
    assert engine_under(None, usual) is usual
    assert engine_under("order", usual) is usual
    assert engine_under("batch", usual).max_num_seqs == 1
    assert engine_under("batch", EngineConfig()).max_num_seqs == 16
    assert engine_under("batch", EngineConfig(max_num_seqs=1)).max_num_seqs == 2
    assert engine_under("dtype:bfloat16", usual).dtype == "bfloat16"
    slow = EngineConfig(scoring="prompt_logprobs")
    assert engine_under("engine:torch", slow).kind == "torch"
    for change, told in (
        ("engine:vllm", "is the run's own; use repeat"),
        ("engine:vlm", "did you mean 'vllm'?"),
        ("dtype:float8", "dtype"),
    ):
        place = f"controls: {change}: "
        assert refused(engine_under, change, usual).startswith(place)
        assert told in refused(engine_under, change, usual)
    single = EngineConfig(kind="torch")  # its `auto` is float32
    assert "use repeat" in refused(engine_under, "dtype:float32", single)


def plan(tmp_path, more):
    text = f"""
        models: {{m: {tmp_path}/m}}
        tasks: [{{task: gazetteer, items: 40, probes: [greedy],
                  languages: [english, korean]}}]
    """
    document = yaml.safe_load(text) | {"engine": {"kind": "torch"}} | more
    return prepare(validated(SweepConfig, document, "s.yaml"), tmp_path / "run")


def asked(prepared, name):
    (task,) = prepared.asked[name]
    return [question.item.item_id for question in task.questions]


def test_order_asks_the_same_items(tmp_path, monkeypatch):
    """A control of all items, the cheap one of some of each language; neither is in
    the identity of the run."""
    save_tiny_model(tmp_path / "m")
    plain = plan(tmp_path, {"controls": "none"})
    both = plan(tmp_path, {"controls": ["repeat", "order"]})
    assert both.identity == plain.identity
    every = asked(both, "m")
    assert asked(both, "m~repeat") == every
    assert (
        asked(both, "m~order")
        != every
        == sorted(asked(both, "m~order"), key=every.index)
    )
    monkeypatch.setattr(preflight, "count_gpus", lambda: 1)
    monkeypatch.setattr(preflight, "with_controls", cheap)
    some = asked(plan(tmp_path, {}), "m~order")
    assert len(some) == ITEMS == len({*some} & {*every})
    assert sum(name.startswith("english") for name in some) == ITEMS // 2


def test_controls_of_made_checkpoints_are_prepared(tmp_path, monkeypatch):
    """On a GPU, a checkpoint that the run is still to make has one too."""
    save_tiny_model(tmp_path / "m")
    monkeypatch.setattr(preflight, "count_gpus", lambda: 1)
    monkeypatch.setattr(preflight, "with_controls", cheap)
    task = gazetteer(items=4, probes=["greedy", "rank", "aligned_rank"])
    made = {"prune": [{"method": "magnitude", "sparsity": 0.5}], "tasks": [task]}
    prepared = plan(tmp_path, made)
    assert {job.name: job.base for job in prepared.jobs if job.change} == {
        "m~order": "m",
        "magnitude-0.5~order": "magnitude-0.5",
    }
    probes = {
        job.name: job.tasks["gazetteer"].probes for job in prepared.jobs if job.change
    }
    # after the answer of its own base, an aligned rank would be another
    assert probes == {
        "m~order": ("greedy", "rank", "aligned_rank"),
        "magnitude-0.5~order": ("greedy", "rank"),
    }


def cheap(every, config, *, on_gpus):
    """The control of a base on a GPU, on an engine that runs here."""
    assert on_gpus
    batching = config.model_copy(update={"engine": EngineConfig()})
    return with_controls(every, batching, on_gpus=True)
