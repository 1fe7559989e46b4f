"""Uploads a pruned checkpoint: exactly the files that its manifest lists, the
manifest, and a model card."""

import re
import unicodedata
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from evaluator.checkpoints.files import digest_of_file
from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.checkpoints.manifests import PruneManifest, read_manifest
from evaluator.core.errors import Document, InputError, Json, one_line, rows_at
from evaluator.metrics.fates import FATES

_REPOSITORY = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}"
)
# The files that servers read. Those of an earlier upload are deleted, because servers
# would mix them with the new ones.
_READ = (
    "*.safetensors",
    "*.json",
    "*.jinja",
    "*.model",
    "*.tiktoken",
    "tokenizer*",
    "vocab*",
    "merges.txt",
)
_REASON = 300  # characters of the hub's error
CARD = "README.md"


def check_repository(name: str) -> None:
    """Raises InputError if no repository can have this name."""
    if not _REPOSITORY.fullmatch(name):
        raise InputError(f"--push: {name!r}: the name of a repository is ORG/NAME")


def open_repository(name: str, *, public: bool) -> None:
    """Make sure that the repository exists. Raises InputError if the hub refuses or
    it holds another model."""
    from huggingface_hub import HfApi

    try:
        HfApi().create_repo(name, private=not public, exist_ok=True)
        # an existing repository may belong to another user
        HfApi().auth_check(name, write=True)
        there = HfApi().list_repo_files(name)
    except Exception as error:  # without network, token or right, other libraries raise their own exceptions
        raise InputError(
            f"--push: {name!r}: the hub refuses: {_said(error)}"
        ) from error
    weights = [file for file in there if file.endswith(".safetensors")]
    if weights and PruneManifest.FILE not in there:
        raise InputError(
            f"--push: {name!r}: has {one_line(weights[0])} and no {PruneManifest.FILE}: a"
            " model that would be replaced; name another repository"
        )


def push(
    name: str,
    directory: Path,
    manifest: PruneManifest,
    *,
    base: str | None,
    fates: Sequence[Document],
) -> str:
    """Upload a checkpoint (`whole`) in one commit; returns its address. Raises
    InputError if that fails."""
    card = model_card(name, manifest, base, fates)
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    files = [
        *(each for each in manifest.files if each not in (CARD, PruneManifest.FILE)),
        PruneManifest.FILE,
    ]
    operations: list[Any] = [
        CommitOperationAdd(path_in_repo=each, path_or_fileobj=directory / each)
        for each in files
    ]
    operations.append(
        CommitOperationAdd(path_in_repo=CARD, path_or_fileobj=card.encode())
    )
    message = (
        f"{manifest.method}, {manifest.pattern}, sparsity"
        f" {manifest.measured_sparsity:.4f}"
    )
    try:
        there = HfApi().list_repo_files(name)
        outdated = {
            each
            for each in there
            if any(fnmatchcase(each, pattern) for pattern in _READ)
        }
        operations += [
            CommitOperationDelete(path_in_repo=each)
            for each in sorted(outdated - {*files})
        ]
        done = HfApi().create_commit(name, operations, commit_message=one_line(message))
    except Exception as error:
        raise InputError(
            f"--push: {name!r}: the upload failed: {_said(error)}; {directory} is"
            f" whole: `resurface prune --push {name} --out {directory}` tries again"
        ) from error
    return str(done.repo_url)


def whole(directory: Path) -> PruneManifest:
    """The manifest, after comparing every file with its digest. Raises InputError,
    for links too."""
    manifest = read_manifest(directory, PruneManifest)
    if manifest is None:
        raise InputError(
            f"--push: {str(directory)!r} is no pruned checkpoint: there is no"
            f" {PruneManifest.FILE}"
        )
    home = directory.resolve()
    for name in (PruneManifest.FILE, *manifest.files):
        file = directory / name
        if file.resolve() != home / name:
            raise InputError(
                f"--push: {file}: is a link, or in a folder that is one; prune again"
            )
        if not file.is_file():
            raise InputError(f"--push: {file}: is missing; prune again")
        if name in manifest.files and digest_of_file(file) != manifest.files[name]:
            raise InputError(
                f"--push: {file}: its sha256 is not the manifest's; prune again"
            )
    return manifest


def base_of(manifest: PruneManifest) -> str | None:
    """The hub id and revision of the model that was pruned, if it came from the
    hub's cache."""
    source = str(manifest.config.get("source"))
    cached = re.search(
        r"/models--([\w.-]+?)--([\w.-]+)/snapshots/([0-9a-f]{40})/?$", source
    )
    return None if cached is None else f"{cached[1]}/{cached[2]}@{cached[3]}"


def fates_of(directory: Path, run: Path) -> Sequence[Document]:
    """This checkpoint's rows of a run's `fates`, found by its weights. Raises
    InputError if there are none."""
    import pandas as pd

    from evaluator.metrics.columns import rows_of
    from evaluator.store.reading import read_run

    info = inspect_checkpoint(directory)
    alike = [
        row
        for row in rows_at(read_run(run), "checkpoints")
        if row.get("weights_digest") == info.weights_digest
        and row.get("architecture") in (None, info.architecture)
    ]
    names = [row["name"] for row in alike if isinstance(row.get("name"), str)]
    if not names:
        raise InputError(
            f"--run: {run}: has no finished checkpoint with the weights and config.json"
            f" of {directory}"
        )
    table = run / "tables" / "fates.csv"
    try:
        frame = pd.read_csv(table, keep_default_na=False, dtype=str)
    except (OSError, ValueError) as error:
        raise InputError(
            f"--run: {table}: cannot be read: {one_line(error)}"
        ) from error
    if missing := {"checkpoint", "task", "language", *FATES} - {*frame}:
        raise InputError(f"--run: {table}: has no column {sorted(missing)[0]!r}")
    found = [
        row
        for row in rows_of(frame)
        if row["checkpoint"] in names and any(row[fate] for fate in FATES)
    ]
    if not found:
        raise InputError(f"--run: {table}: says nothing of {names[0]!r}")
    return [
        row | {fate: _count(row[fate], fate, table) for fate in FATES} for row in found
    ]


def _count(value: str, column: str, table: Path) -> int:
    digits = value.removesuffix(".0")  # pandas writes this in a column with empty cells
    if not re.fullmatch("[0-9]{1,12}", digits):
        raise InputError(
            f"--run: {table}: column {column!r}: {one_line(repr(value), 60)} is no"
            " count"
        )
    return int(digits)


def _said(error: Exception) -> str:
    """The error of the hub's library. For a failed file, the reason is in the
    error's cause."""
    cause = error.__cause__ if isinstance(error, RuntimeError) else None
    text = str(error) if cause is None else f"{error} {cause}"
    return one_line(
        re.sub(r"\s*For more information check: \S+", "", text) or error, _REASON
    )


def model_card(
    repository: str,
    manifest: PruneManifest,
    base: str | None,
    fates: Sequence[Document],
) -> str:
    """README.md of a repository. `base`: the dense model's hub id, if any; `fates`:
    rows of the table `fates`."""
    method = re.sub(r"[^A-Za-z0-9_.-]+", "-", manifest.method)
    front: Json = {"tags": ["pruned", method], "library_name": "transformers"}
    if base is not None:
        front["base_model"] = base.partition("@")[0]
    calibration, done, of = (
        manifest.calibration,
        "weights set to zero",
        f"over {len(manifest.matrices)} matrices",
    )
    if manifest.removed is not None:
        done, of = (
            f"{manifest.removed.unit} taken out",
            "of the weights in the layers' matrices",
        )
    facts = {
        "method": manifest.method,
        "pattern": manifest.pattern,
        "requested sparsity": f"{manifest.sparsity:g}",
        "measured sparsity": f"{manifest.measured_sparsity:.6f} {of}",
        "ratio over layers": manifest.allocation,
        "calibration": (
            "none"
            if calibration is None
            else f"{calibration.source}, {calibration.samples} passages"
        ),
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
        (
            f"A language model with {done}. An ordinary safetensors checkpoint: any"
            " server loads it."
        ),
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {_code(value)} |" for name, value in facts.items()),
        "",
        (
            "`prune_manifest.json` has every setting, every matrix and the digest of"
            " every file; `resurface prune --verify DIR` compares them."
        ),
    ]
    return "\n".join([*lines, *_fates(fates)]) + "\n"


def _fates(rows: Sequence[Document]) -> list[str]:
    """The section on the dense model's known answers, in the words of the report."""
    if not rows:
        return []
    lines = [
        "",
        "## What became of the answers that the dense model knew",
        "",
        (
            "Known: answers that the dense model both wrote and picked from options. Of"
            " these, this model still writes and picks (kept), only picks (mc_only),"
            " only writes (produced_only) or does neither (lost)."
        ),
        "",
        "| task | language | known | " + " | ".join(FATES) + " |",
        "|---|---|---:|" + "---:|" * len(FATES),
    ]
    for row in rows:
        counts = [int(row[fate]) for fate in FATES]
        cells = [
            _code(row["task"]),
            _code(row["language"]),
            str(sum(counts)),
            *map(str, counts),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _code(value: object) -> str:
    """Format a text as code in a table cell: one line, without backticks, bars and
    invisible characters."""
    seen = "".join(
        " " if unicodedata.category(each)[0] in "CZ" else each for each in str(value)
    )
    text = " ".join(seen.split()).replace("`", "'").replace("|", "/")
    return f"`{text}`" if text else ""
