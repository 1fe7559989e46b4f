"""A checkpoint with everything beside its weights that a loader could take in their
place, or run."""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file


def lay_traps(checkpoint: Path, marker: Path) -> Path:
    """Trap a tiny checkpoint: `marker` appears if code that it names is run, or a
    pickle is read; and other weights lie in the layout of Mistral's own files."""
    code = (
        f"from pathlib import Path\nPath({str(marker)!r}).touch()\nModel = Config ="
        " None\n"
    )
    (checkpoint / "evil.py").write_text(code, encoding="utf-8")
    model = {
        "AutoConfig": "evil.Config",
        "AutoModel": "evil.Model",
        "AutoModelForCausalLM": "evil.Model",
    }
    tokenizer = {"AutoTokenizer": ["evil.Model", "evil.Model"]}
    for name, auto_map in (
        ("config.json", model),
        ("tokenizer_config.json", tokenizer),
    ):
        file = checkpoint / name
        file.write_text(
            json.dumps(json.loads(file.read_text()) | {"auto_map": auto_map}),
            encoding="utf-8",
        )
    torch.save({}, checkpoint / "pytorch_model.bin")
    with safe_open(checkpoint / "model.safetensors", "pt") as weights:
        names = list(weights.keys())
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "model.safetensors")}
    (checkpoint / "model.safetensors.index.json").write_text(
        json.dumps(index), encoding="utf-8"
    )
    save_file(
        {"tok_embeddings.weight": torch.zeros(8, 8)},
        checkpoint / "consolidated.safetensors",
    )
    (checkpoint / "params.json").write_text(
        json.dumps({"dim": 8, "n_layers": 1, "vocab_size": 8}), encoding="utf-8"
    )
    return checkpoint
