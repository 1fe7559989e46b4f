"""Turn a training run into the checkpoint that is bundled: bfloat16 safetensors, configuration, tokenizer.

python -m benchmarks.reference_model.export --run build/reference --out launch/reference_model
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import GenerationConfig

from benchmarks.reference_model.lessons import EOS, PAD, build_model, load_or_train_tokenizer

# Written by hand: the class name that this release of transformers would write is unknown to earlier ones.
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": EOS,
    "pad_token": PAD,
    "model_max_length": 4096,
    "clean_up_tokenization_spaces": False,
}


def export(run: Path, out: Path) -> int:
    """Write the checkpoint of `run` to `out`; returns its number of parameters (tied ones counted once)."""
    tokenizer = load_or_train_tokenizer(run / "tokenizer")
    model = build_model(tokenizer, seed=0)
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    model.load_state_dict(state["model"])
    model = model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG, indent=2) + "\n", encoding="utf-8")
    (out / "model.safetensors").chmod(0o644)
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="folder that train.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder of the bundled checkpoint")
    options = parser.parse_args()
    parameters = export(options.run, options.out)
    print(json.dumps({"parameters": parameters, "bytes": sum(f.stat().st_size for f in options.out.iterdir())}))


if __name__ == "__main__":
    main()
