"""A checkpoint's tokenizer is the one in tokenizer.json, whatever class
tokenizer_config.json names."""

import json

import pytest
import sentencepiece
from tokenizers import Tokenizer

from evaluator.checkpoints.tokenizer import PROBE, eos_ids_of, load_tokenizer
from tests.support.models import EOS, save_tiny_model
from tests.support.sweeps import refused


@pytest.fixture
def checkpoint(tmp_path):
    return save_tiny_model(tmp_path / "model")


def say(checkpoint, **settings):
    (checkpoint / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": EOS} | settings)
    )


@pytest.mark.parametrize("kind", ["LlamaTokenizer", "GemmaTokenizer", "GPT2Tokenizer"])
def test_tokenizer_file_beats_named_class(checkpoint, kind):
    say(checkpoint, tokenizer_class=kind)
    tokenizer, stated = (
        load_tokenizer(checkpoint),
        Tokenizer.from_file(str(checkpoint / "tokenizer.json")),
    )
    for text in (PROBE, "a  b\n\tc ", "Karo was founded in 1714."):
        ids = stated.encode(text).ids
        assert tokenizer(text)["input_ids"] == ids
        assert tokenizer.backend_tokenizer.decode(ids) == stated.decode(ids) == text
    assert tokenizer.eos_token == EOS
    # none of the class's own special tokens
    assert len(tokenizer) == stated.get_vocab_size()


@pytest.mark.parametrize(
    ("named", "flags", "is_right"),
    [
        ("GemmaTokenizer", {"add_dummy_prefix": False}, True),
        ("LlamaTokenizer", {"add_dummy_prefix": True}, True),
        ("LlamaTokenizer", {"add_dummy_prefix": False}, False),
        ("GemmaTokenizer", {"add_dummy_prefix": True}, False),
        ("LlamaTokenizer", {"normalization_rule_name": "nmt_nfkc"}, False),
        ("LlamaTokenizer", {"remove_extra_whitespaces": True}, False),
    ],
)
def test_flags_of_sentencepiece_count(tmp_path, named, flags, is_right):
    """transformers 5 makes its own rules, by the class that is named."""
    usual = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*PROBE.split(), "When was Karo founded? Answer:"] * 30),
        model_prefix=str(tmp_path / "tokenizer"),
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
        model_type="bpe",
        vocab_size=420,
        **usual | flags,
    )
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    say(tmp_path, tokenizer_class=named)
    if is_right:
        assert load_tokenizer(tmp_path)("1701")["input_ids"]
    else:
        told = refused(load_tokenizer, tmp_path)
        assert "tokenizer.model: of '" in told
        assert "put a tokenizer.json beside it" in told


@pytest.mark.parametrize("value", ["</s>", [0, "1"], True])
def test_eos_must_be_an_id(checkpoint, value):
    (checkpoint / "generation_config.json").write_text(
        json.dumps({"eos_token_id": value})
    )
    assert "field 'eos_token_id' must be a token id" in refused(
        eos_ids_of, load_tokenizer(checkpoint)
    )


@pytest.mark.parametrize(
    ("generation", "config", "ids"),
    [(None, 7, {7}), (5, 7, {5}), ([5, 6], None, {5, 6})],
)
def test_eos_ids(checkpoint, generation, config, ids):
    """The tokenizer's own, and those of the generation config or else the config."""
    own = {load_tokenizer(checkpoint).eos_token_id}
    for name, value in (("generation_config", generation), ("config", config)):
        file = checkpoint / f"{name}.json"
        whole = json.loads(file.read_text()) | {"eos_token_id": value}
        file.write_text(json.dumps(whole))
    assert eos_ids_of(load_tokenizer(checkpoint)) == own | ids
