"""`resurface compress` takes every registered method, and refuses the options of the
other kind."""

import pytest

from evaluator.checkpoints.manifests import (
    PruneManifest,
    QuantiseManifest,
    read_manifest,
)
from tests.support.runs import typed


@pytest.mark.parametrize(
    ("words", "manifest", "method"),
    [
        ("--method magnitude --sparsity 0.5", PruneManifest, "magnitude"),
        ("--method rtn --scheme W8A16 --group-size 64", QuantiseManifest, "rtn"),
    ],
)
def test_compress_prunes_and_quantises(monkeypatch, tmp_path, words, manifest, method):
    out = tmp_path / "out"
    assert typed(monkeypatch, "compress", "bundled", *words.split(), "--out", out) == 0
    assert read_manifest(out, manifest).method == method


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--method rtnn --out x", "unknown method 'rtnn'; did you mean 'rtn'?"),
        ("--method rtn --out x", "Missing option '--scheme': one of W4A16"),
        ("--method recipe --out x", "Missing option '--recipe'"),
        ("--method rtn --scheme W8A16", "Missing option '--out'"),
        (
            "--method wanda --scheme W4A16 --out x",
            "--scheme W4A16: method wanda takes none",
        ),
        (
            "--method gptq --sparsity 0.5 --out x",
            "--sparsity 0.5: method gptq takes none",
        ),
        (
            "--method rtn --scheme W8A8 --calibration c4 --out x",
            "--calibration: method rtn needs no text",
        ),
        (
            "--method rtn --scheme W8A8 --samples 3 --out x",
            "--samples: method rtn needs no text",
        ),
        (
            "--method magnitude --sparsity 0.5 --samples 3 --out x",
            "--samples: method magnitude needs no text",
        ),
        (
            "--method wanda --experts 0.5 --out x",
            "--experts 0.5: method wanda takes none",
        ),
        (
            "--method reap --sparsity 0.5 --out x",
            "--sparsity 0.5: method reap takes none",
        ),
        ("--method reap --out x", "experts: method reap needs a share, as 0.25"),
        ("--method reap --experts 1 --out x", "experts: 1.0 is not a share"),
        (
            "--method reap --experts 0.5 --scheme W8A8 --out x",
            "scheme: 'W8A8' means nothing with reap",
        ),
        (
            "--method gptq --scheme W8A8 --experts 0.5 --out x",
            "experts: method gptq removes none",
        ),
        (
            "--method reap --experts 0.5 --calibration gazetteer --out x",
            "the model has no experts to remove",
        ),
        (
            "--method rtn --scheme W8A8 --ignore lm_head,re:( --out x",
            '--ignore: "re:(": no pattern: missing )',
        ),
        ("--method rtn --scheme W9 --out x", "unknown scheme of method rtn 'W9'"),
    ],
)
def test_compress_refuses(monkeypatch, tmp_path, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert typed(monkeypatch, "compress", "bundled", *words.split()) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("quantise bundled", "--method gptq"),
        ("prune bundled --method gptq --sparsity 0.5 --out x", "--method gptq --sche"),
        ("prune bundled --method reap --sparsity 0.5 --out x", "--method reap --expe"),
    ],
)
def test_other_commands_point_to_compress(monkeypatch, capsys, words, command):
    assert typed(monkeypatch, *words.split()) == 2
    assert f"resurface compress MODEL {command}" in capsys.readouterr().err
