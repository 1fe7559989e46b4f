"""A checkpoint's weights, architecture and compression, established before an engine
starts.

`inspect_checkpoint` reads every byte of the weights once, in bounded memory, for their
digest, unless this run wrote them (`WRITTEN`). It refuses missing or truncated files,
NaN weights, half-written directories and code from the hub.
"""

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.checkpoints.files import (
    FileStates,
    changed_file,
    check_files,
    check_no_code,
    file_states,
    is_inside,
)
from evaluator.checkpoints.fit import check_fit
from evaluator.checkpoints.quantisation import (
    COMPRESSED_TENSORS,
    QUANTISE_MANIFEST,
    Quantisation,
    described,
    online_scheme,
    read_quantisation,
)
from evaluator.checkpoints.shapes import check_shapes, expert_field, text_model
from evaluator.checkpoints.tensors import Tensor, count_weights, identity, read_tensors
from evaluator.core.errors import (
    InputError,
    field,
    mapping_at,
    of_kind,
    parse,
    read_bytes,
)

MANIFEST = "prune_manifest.json"
# one sequence of the usual length; methods are published with 128 of them
FEW_TOKENS = 2048

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Keys of config.json about a checkpoint's origin or use, not its computation. They
# include the two dtypes, because the tensors' own dtypes are compared.
INCIDENTAL = frozenset(
    {
        "_name_or_path",
        "name_or_path",
        "transformers_version",
        "use_cache",
        "dtype",
        "torch_dtype",
    }
)

# Digests of the weights that this run has written, by absolute path, with the files'
# states then: they spare a read.
WRITTEN: dict[Path, tuple[FileStates, str]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """One checkpoint directory. `method` to `requested_sparsity` are columns of its
    records, None for a dense one."""

    name: str
    path: Path
    # SHA-256 (hex) over name, dtype, shape and bytes of every tensor; sharding does not
    # change it
    weights_digest: str
    architecture: str  # checkpoints with equal keys can be swapped into one engine
    tensors: int  # how many
    bytes: int  # of all tensors
    dtype: str  # "bfloat16": the configuration's, or else that of most weights
    # of pruning, of repair and of quantising, in their order ("wanda + least_squares +
    # gptq")
    method: str | None
    pattern: str | None  # "2:4", "W4A16 (gptq, group 128)", or both
    sparsity: float | None  # measured
    calibration: str | None
    requested_sparsity: float | None = None
    quantisation: Quantisation | None = None
    disk_bytes: int | None = None  # of the files that hold the tensors
    kv_cache: str = "auto"  # of the engine that serves it (EngineConfig.kv_cache)
    # weights, unpacked; a tied output head counts once, as it is stored
    parameters: int | None = None
    # before they were read
    files: FileStates | None = dataclasses.field(default=None, compare=False)
    # A line each: tensors that no engine uses, and weights that are not what the
    # manifest states.
    notes: tuple[str, ...] = ()

    @property
    def engine_keys(self) -> tuple[str, str]:
        """What an engine holds that serves it, and what is equal for checkpoints
        that one engine may serve in turn."""
        cache = "" if self.kv_cache == "auto" else f" kv {self.kv_cache}"
        return self.weights_digest + cache, self.architecture + cache

    def with_cache(self, name: str, kv_cache: str) -> "CheckpointInfo":
        """The same files, served with another cache, as a checkpoint `name`."""
        method, pattern = (
            _joined(self.method, "kv_cache"),
            _joined(self.pattern, f"kv {kv_cache}"),
        )
        return dataclasses.replace(
            self, name=name, kv_cache=kv_cache, method=method, pattern=pattern
        )


def check_directory(path: Path) -> None:
    """Raises InputError for no directory, a half-written one, and files that nobody
    may read."""
    if not path.is_dir():
        raise InputError(
            f"checkpoint {path}:"
            f" {'is not a directory' if path.exists() else 'no such directory'}"
        )
    if path.resolve().name.endswith(".partial") or any(path.glob("*.partial")):
        raise InputError(
            f"checkpoint {path}: half-written (what wrote it was stopped); make it"
            " again"
        )
    check_files(path)


def inspect_checkpoint(
    path: Path, name: str | None = None, *, trust_remote_code: bool = False
) -> CheckpointInfo:
    """Check a checkpoint directory and describe it; `name` is by default the
    directory's own.

    Raises InputError, in one line that names the file and the field or tensor, for a
    directory that is not a whole checkpoint with finite weights, an unknown
    architecture, sizes that differ from the tensors', and code of its own unless
    `trust_remote_code`. (Phi-3 brings code, but transformers knows its architecture:
    the code is not run.)
    """
    check_directory(path)
    files = file_states(path)
    config = read_config(path)
    check_no_code(path / "config.json", config)
    # Before transformers reads anything else: it would print its own warning. Engines
    # use transformers' list.
    from transformers import CONFIG_MAPPING

    if config["model_type"] not in CONFIG_MAPPING:
        file = path / "config.json"
        if "auto_map" not in config:
            raise InputError(
                f"{file}: field 'model_type' is {config['model_type']!r}, an unknown"
                " architecture"
            )
        if not trust_remote_code:
            raise InputError(
                f"{file}: field 'auto_map' names code of the checkpoint; it needs"
                " --trust-remote-code"
            )
    quantisation = read_quantisation(path, config)
    pruning = _read_pruning(path, quantised=quantisation is not None)
    tensors = read_tensors(path)
    check_shapes(path, config, tensors)
    fit = check_fit(path, config, tensors, quantisation)
    dtype = stored_dtype(config, tensors)
    states, weights_digest = WRITTEN.get(path.absolute(), (None, ""))
    if states != files:
        # the engine's quantisation while it loads, which changes the weights
        online = online_scheme(config)
        digest = hashlib.sha256(b"" if online is None else f"{online} of ".encode())
        for tensor in tensors:
            digest.update(identity(tensor))
            for chunk in tensor.chunks():
                digest.update(chunk)
        weights_digest = digest.hexdigest()
    notes: tuple[str, ...] = ()
    if pruning.get("matrices") is not None and (
        states != files or quantisation is not None
    ):
        # the rest was measured when this run wrote it
        notes = _measure(pruning, quantisation, tensors)
    if (changed := changed_file(files, file_states(path))) is not None:
        raise InputError(
            f"{path / changed}: was written while it was read; try again when it is"
            " whole"
        )
    # Loading transforms quantised weights and experts, and a running engine cannot
    # repeat that. So each such checkpoint gets its own engine.
    alone = weights_digest if quantisation is not None or expert_field(config) else None
    return CheckpointInfo(
        name=name or path.resolve().name,
        path=path,
        weights_digest=weights_digest,
        architecture=_architecture(config, dtype, tensors, alone),
        tensors=len(tensors),
        bytes=sum(tensor.size for tensor in tensors),
        dtype=dtype,
        method=_joined(
            pruning.get("method"),
            None if quantisation is None else quantisation.algorithm or "quantised",
        ),
        pattern=_joined(
            pruning.get("pattern"), None if quantisation is None else quantisation.label
        ),
        sparsity=pruning.get("sparsity"),
        requested_sparsity=pruning.get("requested_sparsity"),
        calibration=_joined(
            pruning.get("calibration"),
            None if quantisation is None else quantisation.calibration,
        ),
        quantisation=quantisation,
        disk_bytes=sum(
            files[name][0] for name in {tensor.file.name for tensor in tensors}
        ),
        parameters=count_weights(
            tensors, None if quantisation is None else quantisation.scheme
        ),
        files=files,
        notes=(*fit.unused, *notes),
    )


def recognise(info: CheckpointInfo, *, trust_remote_code: bool = False) -> FileStates:
    """The files, read again where they have changed. Raises InputError if they are
    not those that made `info`."""
    now = file_states(info.path)
    if info.files is not None and changed_file(info.files, now) is None:
        return now
    found = inspect_checkpoint(
        info.path, info.name, trust_remote_code=trust_remote_code
    )
    if (found.weights_digest, found.architecture) != (
        info.weights_digest,
        info.architecture,
    ):
        raise InputError(
            f"checkpoint {info.path}: was replaced while the run went on (weights"
            f" {found.weights_digest[:12]}..., they were {info.weights_digest[:12]}...)"
        )
    assert found.files is not None
    return found.files


def read_config(path: Path) -> dict[str, Any]:
    """config.json of a checkpoint directory. Raises InputError if it is missing or
    describes no model."""
    file = path / "config.json"
    if not file.exists():
        raise InputError(f"checkpoint {path}: config.json is missing")
    config: dict[str, Any] = of_kind(
        parse(read_bytes(file), str(file)), dict, str(file)
    )
    field(config, "model_type", str, str(file))
    return described(path, _with_floats(config))


def _with_floats(value: Any) -> Any:
    """JSON has no infinity: transformers writes {"__float__": "Infinity"}."""
    if isinstance(value, list):
        return [_with_floats(each) for each in value]
    if not isinstance(value, dict):
        return value
    if [*value] == ["__float__"] and value["__float__"] in (
        "Infinity",
        "-Infinity",
        "NaN",
    ):
        return float(value["__float__"])
    return {name: _with_floats(each) for name, each in value.items()}


def read_positions(path: Path, *, unknown: int, least: int = 1) -> int:
    """The model's positions; `unknown` if config.json has none. Raises InputError
    for a count below `least`."""
    positions = text_model(read_config(path)).get("max_position_embeddings") or unknown
    if not isinstance(positions, int) or positions < least:
        raise InputError(
            f"{path / 'config.json'}: field 'max_position_embeddings' is {positions!r},"
            " not a count"
        )
    return positions


def _joined(*parts: str | None) -> str | None:
    """The steps of a checkpoint's compression, in their order."""
    return " + ".join(part for part in parts if part) or None


def _architecture(
    config: dict[str, Any], dtype: str, tensors: Sequence[Tensor], alone: str | None
) -> str:
    """A digest of the configuration without its incidental fields, and of the tensors'
    names, dtypes and shapes.

    `alone` separates a checkpoint that may not share an engine. The digest covers more
    than the shapes depend on, since an engine also keeps the first checkpoint's rotary
    base: a key that is too coarse gives a wrong result.
    """
    kept = {key: value for key, value in config.items() if key not in INCIDENTAL}
    digest = hashlib.sha256(
        json.dumps([kept, dtype, *filter(None, [alone])], sort_keys=True).encode()
    )
    for tensor in tensors:
        digest.update(identity(tensor))
    return digest.hexdigest()


def stored_dtype(config: dict[str, Any], tensors: Sequence[Tensor]) -> str:
    """The stored dtype ("bfloat16"): the configuration's, or else that of most
    bytes."""
    for settings in (config, text_model(config)):
        named = settings.get("dtype") or settings.get("torch_dtype")
        if isinstance(named, str) and named != "auto":
            return named.removeprefix("torch.")
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.dtype] += tensor.size
    most = sizes.most_common(1)[0][0]
    return _DTYPES.get(most, most.lower())


def _read_pruning(path: Path, *, quantised: bool) -> dict[str, Any]:
    """How a checkpoint was pruned, by its manifest, which is written last and lists
    every other file; empty for a dense one. Raises InputError. A quantised checkpoint
    may have kept its source's manifest, with other file names.
    """
    file = path / MANIFEST
    if not file.exists():
        return {}
    place = str(file)
    manifest = parse(read_bytes(file), place)
    files = field(manifest, "files", dict, place)
    if outside := [name for name in files if not is_inside(name)]:
        raise InputError(
            f"{file}: field 'files' names {outside[0]!r}, which is not in its directory"
        )
    absent = [name for name in files if not (path / name).is_file()]
    if absent and not quantised:
        raise InputError(
            f"checkpoint {path}: half-written or damaged: {MANIFEST} lists {absent[0]},"
            " which is missing"
        )
    calibration = field(manifest, "config", dict, place).get("calibration")
    repair = (
        None
        if manifest.get("repair") is None
        else field(manifest, "repair", str, place)
    )
    source = (
        None
        if calibration is None
        else field(calibration, "source", str, f"{place}: config.calibration")
    )
    later = path / QUANTISE_MANIFEST
    stated = (
        of_kind(parse(read_bytes(later), str(later)), dict, str(later))
        if quantised and later.exists()
        else {}
    )
    # it was quantised elsewhere, or not at all
    if stated.get("measured_sparsity") is None:
        stated, later = manifest, file
    return {
        "method": _joined(field(manifest, "method", str, place), repair),
        "pattern": field(stated, "pattern", str, str(later)),
        "sparsity": _number(stated, "measured_sparsity", str(later)),
        "requested_sparsity": _number(manifest, "sparsity", place),
        "calibration": source,
        "file": later,
        # None: parts are gone, from the sizes too
        "matrices": (
            None
            if manifest.get("removed")
            else [
                field(each, "name", str, place)
                for each in of_kind(manifest.get("matrices", []), list, place)
            ]
        ),
    }


def few_tokens(path: Path) -> Iterator[str]:
    """A line for each step that saw little text. The manifests are known to be
    sound, or another program's."""
    for name in (MANIFEST, QUANTISE_MANIFEST):
        if (path / name).is_file():
            tokens = mapping_at(
                parse(read_bytes(path / name), name), "calibration"
            ).get("tokens")
            if isinstance(tokens, int) and tokens < FEW_TOKENS:
                yield f"{path / name}: {tokens:,} tokens of calibration are few"


def _number(manifest: dict[str, Any], name: str, place: str) -> float:
    value = manifest.get(name)
    if not isinstance(value, int | float):
        raise InputError(f"{place}: field {name!r} must be a number, not {value!r}")
    return float(value)


def _measure(
    pruning: dict[str, Any],
    quantisation: Quantisation | None,
    tensors: Sequence[Tensor],
) -> tuple[str, ...]:
    """Put what the weights hold in the place of what a manifest states; a line where
    the two differ."""
    from evaluator.checkpoints.sparsity import measure  # torch

    stated = pruning["sparsity"], pruning["pattern"]
    measured = None
    if (
        quantisation is None
        or quantisation.symmetric
        or quantisation.library in (COMPRESSED_TENSORS, "awq")
    ):
        measured = measure(tensors, pruning["matrices"], pruning["pattern"])
    if measured == stated:
        return ()
    line = f"{pruning['file']}: states sparsity {stated[0]:.6g}, {stated[1]};"
    if measured is None:
        return (
            (
                f"{line} this could not be measured in the weights, and the tables"
                " repeat it"
            ),
        )
    pruning["sparsity"], pruning["pattern"] = measured
    return (
        (
            f"{line} the weights have {measured[0]:.6g}, {measured[1]}, and so do the"
            " tables"
        ),
    )
