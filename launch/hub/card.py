"""The model card of a pruned checkpoint: from its manifest, and from a run that asked it questions. Pure.

What a card says comes from files that others may have written: it is quoted as code, where markdown has no meaning.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from evaluator.metrics.fates import FATES
from pruning.output.manifest import PruneManifest

CARD = "README.md"
Row = Mapping[str, Any]


def model_card(repository: str, manifest: PruneManifest, base: str | None, fates: Sequence[Row]) -> str:
    """README.md of a repository. `base`: the dense model's hub id, if it has one; `fates`: rows of the table fates."""
    front: dict[str, Any] = {"tags": ["pruned", _plain(manifest.method)], "library_name": "transformers"}
    if base is not None:
        front["base_model"] = base.partition("@")[0]
    calibration = manifest.calibration
    facts = {
        "method": manifest.method,
        "pattern": manifest.pattern,
        "requested sparsity": f"{manifest.sparsity:g}",
        "measured sparsity": f"{manifest.measured_sparsity:.6f} {_of_what(manifest)}",
        "ratio over layers": manifest.allocation,
        **({} if manifest.repair is None else {"repair": manifest.repair}),
        "calibration": "none" if calibration is None else f"{calibration.source}, {calibration.samples} passages",
        "seed": str(manifest.seed),
        "weights": manifest.dtype,
    }
    if base is not None:
        facts = {"dense model": base} | facts
    lines = [
        "---",
        yaml.safe_dump(front, sort_keys=False, allow_unicode=True).strip(),
        "---",
        "",
        f"# {_code(repository.partition('/')[2])}",
        "",
        f"A language model with {_done(manifest)}. An ordinary safetensors checkpoint: any server loads it.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {_code(value)} |" for name, value in facts.items()),
        "",
        "`prune_manifest.json` has every setting, every matrix and the digest of every file;"
        " `resurface prune --verify DIR` compares them.",
    ]
    return "\n".join([*lines, *_fates(fates)]) + "\n"


def _done(manifest: PruneManifest) -> str:
    return "weights set to zero" if manifest.removed is None else f"{manifest.removed.unit} taken out"


def _of_what(manifest: PruneManifest) -> str:
    if manifest.removed is None:
        return f"over {len(manifest.matrices)} matrices"
    return "of the weights in the layers' matrices"


def _fates(rows: Sequence[Row]) -> list[str]:
    """What became of the answers that the dense model knew, in the words of the report."""
    if not rows:
        return []
    lines = [
        "",
        "## What became of the answers that the dense model knew",
        "",
        "Known: answers that the dense model both wrote and picked from options. Of these, this model still writes and"
        " picks (kept), only picks (mc_only), only writes (produced_only) or does neither (lost).",
        "",
        "| task | language | known | " + " | ".join(FATES) + " |",
        "|---|---|---:|" + "---:|" * len(FATES),
    ]
    for row in rows:
        counts = [int(row[fate]) for fate in FATES]
        cells = [_code(row["task"]), _code(row["language"]), str(sum(counts)), *map(str, counts)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _code(value: object) -> str:
    """A text as code within a cell of a table: one line, without what ends the code or the cell, or is not seen."""
    seen = "".join(" " if unicodedata.category(each)[0] in "CZ" else each for each in str(value))
    text = " ".join(seen.split()).replace("`", "'").replace("|", "/")
    return f"`{text}`" if text else ""


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
