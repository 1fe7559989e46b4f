"""GGUF files: what they state, and whether they are whole and the base's own."""

import json
import os
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.served import read_served
from evaluator.checkpoints.tokenizer import eos_ids_of, load_tokenizer
from evaluator.core.errors import EngineError, InputError
from evaluator.engine.config import EngineConfig
from evaluator.engine.endpoint import engine as engine_module
from evaluator.engine.endpoint import gguf as gguf_module
from evaluator.engine.endpoint import llama_process, prepare
from evaluator.engine.endpoint.engine import EndpointEngine
from evaluator.engine.endpoint.prepare import other_texts, prepare_gguf
from launch.sweep.models import check_gguf
from tests.support.served import BASE

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")


def is_computed(kind):
    """Whether the package computes weights of a kind."""
    try:
        gguf.quants.dequantize(np.zeros(gguf.GGML_QUANT_SIZES[kind][1], np.uint8), kind)
    except NotImplementedError:
        return False
    return kind.name != "F32"


@pytest.fixture(autouse=True)
def llama_is_here(monkeypatch):
    monkeypatch.setattr(prepare, "check_here", lambda: None)


def tokens_of_base():
    vocabulary = load_tokenizer(BASE).get_vocab()
    return sorted(vocabulary, key=vocabulary.get)


def write(file, tokens=None, architecture="llama", settings=(), factors=(), **more):
    """`settings`: keys of the architecture with values; `factors`: tensors of its
    rotary embedding."""
    writer = gguf.GGUFWriter(str(file), architecture)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    for name, value in ({"context_length": 777} | dict(settings)).items():
        name = name if "tokenizer" in name else f"{architecture}.{name}"
        kinds = {str: writer.add_string, float: writer.add_float32}
        kinds[list] = writer.add_array
        kinds.get(type(value), writer.add_uint32)(name, value)
    for name, values in dict(factors).items():
        writer.add_tensor(name, np.array(values, np.float32))
    if tokens is not None:
        writer.add_token_list(tokens)
    for name, value in more.items():
        writer.add_uint32(name.replace("_", "."), value)
    writer.add_tensor("token_embd.weight", np.ones((64, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_a_file_states_itself(tmp_path):
    file = write(tmp_path / "a.gguf", tokens_of_base())
    served = read_served(prepare_gguf(file, BASE))
    assert (served.file_type, served.parameters, served.context) == (
        "Q4_K_M",
        2048,
        777,
    )
    assert (served.method, served.digest) == ("gguf", served.sha256)
    assert served.size == file.stat().st_size


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tokens: [*tokens[:9], "other", *tokens[10:]], "1 tokens .* 9 is "),
        (lambda tokens: [tokens[1], tokens[0], *tokens[2:]], "2 tokens .* 0 is "),
        (lambda tokens: tokens[:100], "no token"),
    ],
)
def test_another_bases_tokens_are_named(tmp_path, change, words):
    """Without a tokenizer of its own that transformers can read."""
    file = write(tmp_path / "a.gguf", change(tokens_of_base()))
    header = gguf_module.read_header(file)
    assert re.search(words, gguf_module.other_tokens(header, load_tokenizer(BASE)))
    with pytest.raises(InputError, match="cannot read its tokenizer") as raised:
        prepare_gguf(file, BASE)
    assert "\n" not in str(raised.value)
    assert not list((tmp_path / "cache").rglob("*.json"))


# as the converter writes the bundled model
EQUAL = {
    "context_length": 4096,
    "block_count": 5,
    "nextn_predict_layers": 1,
    "embedding_length": 192,
    "feed_forward_length": [448] * 4,
    "attention.head_count": 6,
    # a layer without attention
    "attention.head_count_kv": [3, 0, 3, 3],
    "attention.key_length": 32,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.sliding_window": 0,
    "vocab_size": 3072,
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.chat_template": "{{ messages }}\n",
}
LLAMA3 = {
    "rope_theta": 10000.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {
    "rope_theta": 10000.0,
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
}
STATED_YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 1024,
}
# of LLAMA3, as the converter writes them
WAVES = [*[1.0] * 6, 1.7096461, 3.9065634, *[8.0] * 8]
FREQUENCIES = {"rope_freqs.weight": WAVES}
LONG = {"rope_factors_long.weight": [1.0], "rope_factors_short.weight": [1.0]}
LONGROPE = {
    "rope_theta": 10000.0,
    "rope_type": "longrope",
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
    "long_factor": [2.0] * 16,
    "short_factor": [1.0] * 16,
}
BOTH_LONG = {
    "rope_factors_long.weight": [2.0] * 16,
    "rope_factors_short.weight": [1.0] * 16,
}
# sqrt(1 + log 4 / log 1024)
STATED_LONG = {
    "rope.scaling.original_context_length": 1024,
    "rope.scaling.attn_factor": 1.0954451150103321,
}


@pytest.mark.parametrize(
    "case",
    [
        ({}, {}, {}),
        ({}, {"rope.freq_base": 10000.0, "rope.scaling.type": "none"}, {}),
        (
            {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
            {},
            {},
            "rope.freq_base: rope_theta 500000.0 against 10000.0, as it states none",
        ),
        (
            {},
            {"rope.freq_base": 1e6},
            {},
            "rope.freq_base: rope_theta 10000.0 against 1000000.0",
        ),
        ({"rope_parameters": YARN}, STATED_YARN, {}),
        (
            {"rope_parameters": YARN},
            {},
            {},
            "rope.scaling.type: rope_type 'yarn' against 'default'",
        ),
        ({}, STATED_YARN, {}, "rope.scaling.type: rope_type 'default' against 'yarn'"),
        (
            {"rope_parameters": YARN},
            STATED_YARN | {"rope.scaling.factor": 2.0},
            {},
            "rope.scaling.factor: factor 4.0 against 2.0",
            "rope.scaling.attn_factor: attention_factor 1.13863 against 1.06931",
        ),
        (
            {
                "rope_parameters": YARN
                | {"beta_fast": 32, "attention_factor": 1.1386294}
            },
            STATED_YARN | {"rope.scaling.yarn_beta_slow": 1.0},
            {},
        ),
        (
            {"rope_parameters": YARN | {"beta_fast": 16, "beta_slow": 2}},
            STATED_YARN,
            {},
            "yarn_beta_fast: beta_fast 16 against 32.0",
            "yarn_beta_slow: beta_slow 2 against 1.0",
        ),
        (
            {"rope_parameters": YARN},
            STATED_YARN | {"rope.scaling.yarn_beta_fast": 16.0},
            {},
            "yarn_beta_fast: beta_fast 32.0 against 16.0",
        ),
        (
            {"rope_parameters": YARN},
            STATED_YARN | {"rope.scaling.yarn_ext_factor": 0.5},
            {},
            "yarn_ext_factor: extrapolation_factor 1.0 against 0.5",
        ),
        (
            {"rope_parameters": YARN | {"attention_factor": 1.5}},
            STATED_YARN | {"rope.scaling.yarn_attn_factor": 1.5},
            {},
            "attn_factor: attention_factor 1.5 against 1.13863",
        ),
        ({"rope_parameters": LONGROPE}, STATED_LONG, BOTH_LONG),
        (
            {"rope_parameters": LONGROPE},
            {**STATED_LONG, "rope.scaling.attn_factor": 1.0},
            BOTH_LONG | {"rope_factors_short.weight": [1.0, 1.5] * 8},
            "rope.scaling.attn_factor: attention_factor 1.09545 against 1.0",
            "rope_factors_short: short_factor[1] 1.0 against 1.5",
        ),
        (
            {"rope_parameters": LLAMA3 | {"high_freq_factor": 2.0}},
            {},
            FREQUENCIES,
            "rope_freqs: factors[6] 1.0 against 1.70965",
        ),
        (
            {"rope_parameters": LLAMA3},
            {},
            {"rope_freqs.weight": WAVES[:15]},
            "rope_freqs: factors[15] 8.0 against None",
        ),
        (
            {
                "rope_parameters": {
                    "rope_theta": 1e4,
                    "rope_type": "default",
                    "partial_rotary_factor": 0.5,
                }
            },
            {"rope.dimension_count": 32},
            {},
            "rope.dimension_count: rotary_dim 16 against 32",
        ),
        (
            {"rope_parameters": YARN},
            STATED_YARN | {"rope.scaling.original_context_length": 4096},
            {},
            "rope.scaling.original_context_length: original_max_position_embeddings"
            " 1024 against 4096",
        ),
        (
            {},
            {"rope.scale_linear": 2.0},
            {},
            "rope.scaling.type: rope_type 'default' against 'linear'",
        ),
        ({"rope_parameters": LLAMA3}, {}, FREQUENCIES),
        (
            {"rope_parameters": LLAMA3 | {"factor": 32.0}},
            {},
            FREQUENCIES,
            "rope.scaling.factor: factor 32.0 against 8.0",
            "rope_freqs: factors[6] 1.85033 against 1.70965",
        ),
        (
            {"rope_parameters": LLAMA3},
            {},
            {},
            "rope.scaling.type: rope_type 'llama3' against 'default'",
        ),
        ({}, {}, LONG, "rope.scaling.type: rope_type 'default' against 'longrope'"),
        (
            {},
            {"attention.layer_norm_rms_epsilon": 1e-5},
            {},
            "attention.layer_norm_rms_epsilon: rms_norm_eps 1e-06 against 1e-05",
        ),
        (
            {},
            {"attention.head_count": 3},
            {},
            "attention.head_count: num_attention_heads 6 against 3",
        ),
        (
            {},
            {"attention.head_count_kv": [3, 1, 3, 3]},
            {},
            "attention.head_count_kv: num_key_value_heads 3 against [3, 1, 3, 3]",
        ),
        ({}, {"block_count": 4}, {}, "block_count: num_hidden_layers 4 against 3"),
        (
            {},
            {"embedding_length": 96},
            {},
            "embedding_length: hidden_size 192 against 96",
        ),
        (
            {},
            {"feed_forward_length": 96},
            {},
            "feed_forward_length: intermediate_size 448 against 96",
        ),
        (
            {"use_sliding_window": True, "sliding_window": 1024},
            {"attention.sliding_window": 512},
            {},
            "attention.sliding_window: sliding_window 1024 against 512",
        ),
        (
            {},
            {"context_length": 1024},
            {},
            "context_length: max_position_embeddings 4096 against 1024",
        ),
        ({}, {"vocab_size": 9}, {}, "vocab_size: vocab_size 3072 against 9"),
        (
            {},
            {"tokenizer.chat_template": "{{ message }}"},
            {},
            "chat_template: from character 10 's }}' against ' }}'",
        ),
        (
            {},
            {"tokenizer.ggml.eos_token_id": 7},
            {},
            f"eos_token_id: ['<|endoftext|>'] against {tokens_of_base()[7:8]}",
        ),
        ({}, {"embedding_length": "many"}, {}, "hidden_size 192 against 'many'"),
    ],
)
def test_other_settings_are_named(tmp_path, case):
    """As of a directory; the same settings in other words are no difference."""
    config, settings, factors, *lines = case
    base = tmp_path / "base"
    shutil.copytree(BASE, base)
    stored = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(stored | config))
    (base / "chat_template.jinja").write_text("{{ messages }}")
    settings = EQUAL | settings
    file = write(tmp_path / "a.gguf", tokens_of_base(), "qwen3", settings, factors)
    differences = read_served(prepare_gguf(file, base)).differences
    assert len(differences) == len(lines)
    assert all(map(str.endswith, differences, lines))


@pytest.fixture
def qwen(tmp_path):
    """A file with a tokenizer of its own: each byte a token, and two merges."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokens = [*bytes_to_unicode().values(), "Ġt", "Ġth", "<|endoftext|>"]
    writer = gguf.GGUFWriter(str(tmp_path / "own.gguf"), "qwen2")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 1) + [3])
    writer.add_token_merges(["Ġ t", "Ġt h"])
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_eot_token_id(len(tokens) - 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return tmp_path / "own.gguf"


def test_other_tokens_pose_the_questions(qwen, monkeypatch):
    """The file's own tokenizer, if llama.cpp's makes the same of a text."""
    stated = gguf_module.own_tokenizer(qwen)
    monkeypatch.setattr(prepare, "llama_tokens", lambda file, texts: [(1, 2, 3)])
    with pytest.raises(InputError, match="cannot be read exactly"):
        prepare_gguf(qwen, BASE)
    monkeypatch.setattr(
        prepare,
        "llama_tokens",
        lambda file, texts: [tuple(stated(text)["input_ids"]) for text in texts],
    )
    folder = prepare_gguf(qwen, BASE)
    own = load_tokenizer(folder)
    assert own("to the")["input_ids"] == stated("to the")["input_ids"]
    assert own("to the")["input_ids"] != load_tokenizer(BASE)("to the")["input_ids"]
    assert eos_ids_of(own) == {257, 258}
    assert Checkpoint(folder).vocabulary == 259
    assert "tokens are not the base's" in read_served(folder).other_tokens
    monkeypatch.setattr(gguf_module, "own_tokenizer", None)  # it is known now
    assert prepare_gguf(qwen, BASE) == folder


def test_other_tokens_of_texts_are_counted(tmp_path, monkeypatch):
    """The file's own tokenizer may make other ones than the base's."""
    base = load_tokenizer(BASE)
    folder = prepare_gguf(write(tmp_path / "a.gguf", tokens_of_base()), BASE)
    texts, asked = ["Who was it?", "1969", "Ada"], []

    def stated(file, texts):
        asked.append(file)
        return [
            tuple(base(text)["input_ids"])[: 9 - 8 * ("9" in text)] for text in texts
        ]

    monkeypatch.setattr(prepare, "llama_tokens", stated)
    assert "of 1 of 3 questions and answers, first of '1969'" in other_texts(
        folder, texts
    )
    assert other_texts(folder, ["Ada"]) == ""
    assert asked == [tmp_path / "a.gguf"] * 2


def broken(tmp_path):
    whole = write(tmp_path / "whole.gguf", tokens_of_base()).read_bytes()
    other = bytearray(whole)
    other[16:24] = b"\xff" * 8  # how many fields there are
    later = bytearray(whole)
    later[200:260] = b"\xff" * 60
    return {
        "empty": b"",
        "no magic": b"nothing" + whole[7:],
        "half": whole[: len(whole) // 2],
        "without the last byte": whole[:-1],
        "header alone": whole[:24],
        "too many fields": bytes(other),
        "overwritten": bytes(later),
        "safetensors": b"\x08\0\0\0\0\0\0\0{}      ",
    }


ALIEN = {"empty", "no magic", "safetensors"}


def test_broken_files_are_refused(tmp_path):
    for name, content in broken(tmp_path).items():
        file = tmp_path / "broken.gguf"
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"broken\.gguf") as raised:
            prepare_gguf(file, BASE)
        words = "no GGUF file" if name in ALIEN else "damaged or cut off"
        assert words in str(raised.value), name
        assert "numpy" not in str(raised.value)


KINDS = [*filter(is_computed, gguf.GGML_QUANT_SIZES)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_weights_that_are_not_finite_are_refused(tmp_path, kind):
    """Each place of a block where a float16 of NaN makes a weight NaN, and no other."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    for place in range(size - 1):
        content = np.zeros((2, size), np.uint8)
        nan = 0x7FC0 if kind.name == "BF16" else 0x7E00
        content[1, place : place + 2] = np.array([nan], np.uint16).view(np.uint8)
        with np.errstate(all="ignore"):
            finite = np.isfinite(gguf.quants.dequantize(content, kind)).all()
        tensor = SimpleNamespace(tensor_type=kind, data=content, name="blk.0.ffn_up")
        if finite:
            gguf_module._check_finite(tmp_path, [tensor])
            continue
        with pytest.raises(InputError, match=r"tensor blk\.0\.ffn_up: has numbers"):
            gguf_module._check_finite(tmp_path, [tensor])


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, np.finfo(np.float32).max])
def test_a_file_that_is_not_finite_is_refused(tmp_path, number):
    """Before any engine starts, also by a dry run."""
    factors = {"blk.0.ffn_norm.weight": [1.0, number]}
    file = write(tmp_path / "a.gguf", tokens_of_base(), factors=factors)
    if number == np.finfo(np.float32).max:
        check_gguf(str(file))
        assert prepare_gguf(file, BASE).is_dir()
        return
    for check in (lambda: check_gguf(str(file)), lambda: prepare_gguf(file, BASE)):
        with pytest.raises(
            InputError, match=r"a\.gguf: tensor blk\.0\.ffn_norm"
        ) as raised:
            check()
        assert "\n" not in str(raised.value)
    assert not list((tmp_path / "cache").rglob("*.json"))


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"tokens": None}, "no tokens"),
        ({"tokens": ["a"], "split_count": 3}, "several parts"),
    ],
)
def test_unusable_files_are_refused(tmp_path, written, words):
    with pytest.raises(InputError, match=words):
        prepare_gguf(write(tmp_path / "a.gguf", **written), BASE)


def test_missing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(llama_process, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"pip install 'resurface\[gguf\]'"):
        llama_process.check_here()
    monkeypatch.setattr(gguf_module, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'resurface\[gguf\]'"):
        gguf_module.read_header(tmp_path / "a.gguf")


def test_a_replaced_file_is_refused(tmp_path):
    """Between the preparation and the load."""
    file = write(tmp_path / "a.gguf", tokens_of_base())
    folder = prepare_gguf(file, BASE)
    os.utime(file, (1, 1))
    engine = EndpointEngine(EngineConfig(kind="endpoint"))
    with pytest.raises(InputError, match="was replaced"):
        engine.load(folder)
    assert read_served(prepare_gguf(file, BASE)).modified_ns == 10**9
    file.unlink()
    with pytest.raises(InputError, match=r"a\.gguf"):
        engine.load(folder)
    engine.close()


def test_a_changed_base_is_read_again(tmp_path):
    base = tmp_path / "base"
    shutil.copytree(BASE, base)
    file = write(tmp_path / "a.gguf", tokens_of_base())
    first = prepare_gguf(file, base)
    (base / "chat_template.jinja").write_text("{{ messages }}")
    (base / "old.jinja").write_text("")
    assert prepare_gguf(file, base) == first
    assert (first / "chat_template.jinja").read_text() == "{{ messages }}"
    (base / "old.jinja").unlink()
    assert not (prepare_gguf(file, base) / "old.jinja").exists()


def test_a_copy_with_the_old_time_is_read_again(tmp_path):
    file = write(tmp_path / "a.gguf", tokens_of_base())
    before, time = read_served(prepare_gguf(file, BASE)), file.stat().st_mtime_ns
    other = write(tmp_path / "b.gguf", tokens_of_base(), llama_seed=1)
    write(tmp_path / "c.gguf", tokens_of_base(), llama_seed=2)
    shutil.move(tmp_path / "c.gguf", file)
    os.utime(file, ns=(time, time))
    os.utime(other, ns=(time, time))
    first = read_served(prepare_gguf(other, BASE))
    shutil.move(file, other)
    assert other.stat().st_size == first.size
    found = read_served(prepare_gguf(other, BASE))
    assert len({before.digest, first.digest, found.digest}) == 3


def test_added_tokens_may_have_blanks(tmp_path):
    """As llama.cpp's converter writes them."""
    tokenizer = load_tokenizer(BASE)
    tokenizer.add_tokens(["\u2581\u2581", "x\u2581y"])
    tokens = [*tokens_of_base(), "  ", "x y"]
    header = gguf_module.read_header(write(tmp_path / "a.gguf", tokens))
    assert gguf_module.other_tokens(header, tokenizer) == ""


@pytest.mark.parametrize("most", [None, 3])
def test_one_request_at_a_time(tmp_path, monkeypatch, most):
    """Unless `max_num_seqs` permits more."""
    started = []

    def start(*arguments):
        started.append(arguments)
        raise EngineError("enough")

    monkeypatch.setattr(engine_module, "LlamaProcess", start)
    engine = EndpointEngine(EngineConfig(kind="endpoint", max_num_seqs=most))
    with pytest.raises(EngineError, match="enough"):
        engine.load(prepare_gguf(write(tmp_path / "a.gguf", tokens_of_base()), BASE))
    engine.close()
    assert [arguments[-1] for arguments in started] == [most or 1]


@pytest.mark.parametrize("stated", [[0, 40], [40], [0, 3000]])
def test_ends_of_the_base_end_answers_too(qwen, tmp_path, monkeypatch, stated):
    """Those of its generation_config.json that the file's own tokenizer has."""
    base = tmp_path / "base"
    shutil.copytree(BASE, base)
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": stated}))
    own = gguf_module.own_tokenizer(qwen)
    monkeypatch.setattr(
        prepare,
        "llama_tokens",
        lambda file, texts: [tuple(own(text)["input_ids"]) for text in texts],
    )
    names = load_tokenizer(base).convert_ids_to_tokens(stated)
    shared = {own.get_vocab()[name] for name in names if name in own.get_vocab()}
    ends = eos_ids_of(load_tokenizer(prepare_gguf(qwen, base)))
    assert ends == shared | {257, 258}
    assert bool(shared - {257, 258}) == (40 in stated)
