"""Which models can be pruned, and how one runs layer by layer, so that memory never
holds the whole model.

A decoder is two things here. Its layers are the library's own modules, on the meta
device until a layer's tensors are read. Everything before them (embedding, positions,
masks) is a skeleton: the library's own model with recorders for layers and an embedding
table of only the token ids in use. One call of it gives the first layer's input and the
exact keywords that each layer would be called with, so no architecture's forward pass
is written out again here.
"""

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.tensors import FLOATS
from evaluator.core.errors import InputError, JobError, one_line
from pruning.model import memory
from pruning.model.architectures import Architecture, architecture_of, separate
from pruning.model.packing import Batch, Keywords, pack, register

_KEPT_MASKS = 1 << 27  # elements of all sliding-window masks that are kept, a byte each
_EMBEDDED = 1024  # tokens that are embedded at once: their masks grow with the square
# Bytes of released layers that are kept: the system clears memory that was given back
# before it is used again.
_KEPT_BYTES = 1 << 26
_HEAD = "lm_head.weight"


Progress = Callable[[int, int], None]  # called with the layers that are done, and all


def silent(done: int, total: int) -> None:
    """Nobody waits."""


class _Recorder(nn.Module):
    """Takes the place of a decoder layer: passes its input through and keeps the
    keywords of the call."""

    def __init__(self, received: list[Keywords]) -> None:
        super().__init__()
        self._received = received

    def forward(self, hidden: Tensor, *more: Tensor | None, **keywords: Any) -> Tensor:
        # a layer's own embeddings, see `Architecture.whole`
        assert all(each is None for each in more)
        self._received.append(keywords)
        return hidden


def _text_config(checkpoint: Checkpoint, architecture: Architecture) -> Any:
    """transformers' configuration of the text model. Raises InputError for layers that
    cannot be run one at a time."""
    from transformers import AutoConfig

    file = checkpoint.config_file
    try:
        config = AutoConfig.from_pretrained(checkpoint.path, trust_remote_code=False)
    except Exception as error:  # each architecture checks its fields in its own way
        raise InputError(f"{file}: {one_line(error)}") from None
    if architecture.text_config:
        config = config.text_config
    for name, what in architecture.whole.items():
        if value := getattr(config, name, None):
            raise InputError(
                f"{file}: field {name!r} is {value!r}: a model with {what} cannot be"
                " pruned"
            )
    return config


class Decoder:
    """The decoder of one checkpoint: its layers, one at a time, and the keywords
    that they are called with."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        """Build the modules on the meta device; no weights are read.

        Raises InputError if the architecture is not supported or the checkpoint's
        tensors are not its tensors.
        """
        from transformers import AutoModel

        self.checkpoint = checkpoint
        self.device = device
        self._architecture = architecture_of(checkpoint)
        self.config = _text_config(checkpoint, self._architecture)
        # only one sequence at a time can run through a layer
        self.recurrent = self._architecture.recurrent
        with torch.device("meta"), warnings.catch_warnings(action="ignore"):
            # of token ids in the config that no forward pass here uses
            self._model = AutoModel.from_config(copy.deepcopy(self.config)).eval()
        if not self.recurrent:
            register(self._model.config)
        self.modules: nn.ModuleList = self._model.layers
        if self._architecture.experts is not None:
            separate(self.modules, self._architecture.experts)
        self._find_tensors()
        # A CPU computes in float32, a GPU in the checkpoint's own dtype.
        self.dtype = torch.float32
        if device.type != "cpu":
            self.dtype = self.checkpoint_dtype(0, next(iter(self.linears(0))))
        self._released = 0
        self._skeleton: nn.Module | None = None
        self._received: list[Keywords] = []
        self._compact_ids: Tensor | None = None
        self._keywords: dict[int, list[Keywords]] = {}

    def _find_tensors(self) -> None:
        """Raises InputError unless the checkpoint has the decoder's tensors."""
        tensors = self.checkpoint.tensors
        self._prefix = self._architecture.prefixes[0]
        for prefix in reversed(self._architecture.prefixes):
            if any(name.startswith(f"{prefix}layers.") for name in tensors):
                self._prefix = prefix
        table = f"{self._prefix}embed_tokens.weight"
        # A tied matrix may have the head's name alone; `check_fit` refuses one that is
        # not tied.
        self._table = _HEAD if table not in tensors and _HEAD in tensors else table
        shapes = {self._table: tuple(self._model.embed_tokens.weight.shape)}
        for index, layer in enumerate(self.modules):
            for name, parameter in layer.state_dict().items():
                shapes[self.tensor_name(index, name)] = tuple(parameter.shape)
        for name, shape in shapes.items():
            tensor = self.checkpoint.float_tensor(name)
            if tensor.shape != shape:
                raise InputError(
                    f"{tensor.file}: tensor {name} has shape {tensor.shape}, config.json"
                    f" says {shape}"
                )

    def __len__(self) -> int:
        return len(self.modules)

    def linears(self, layer: int) -> dict[str, nn.Linear]:
        """The modules of a layer that are pruned, by name within the layer."""
        return {
            name: module
            for name, module in self.modules[layer].named_modules()
            if isinstance(module, nn.Linear)
            and name.rpartition(".")[2] not in self._architecture.dense
        }

    def tensor_name(self, layer: int, parameter: str) -> str:
        for own, theirs in self._architecture.renamed.items():
            if parameter.startswith(own):
                parameter = theirs + parameter.removeprefix(own)
        return f"{self._prefix}layers.{layer}.{parameter}"

    def checkpoint_dtype(self, layer: int, module: str) -> torch.dtype:
        """The type of a module's weight in the checkpoint."""
        name = self.tensor_name(layer, f"{module}.weight")
        dtype: torch.dtype = getattr(torch, FLOATS[self.checkpoint.tensors[name].dtype])
        return dtype

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Every matrix that is pruned, layer by layer: its tensor name and its shape
        (rows, columns)."""
        return {
            self.tensor_name(layer, f"{name}.weight"): (
                module.out_features,
                module.in_features,
            )
            for layer in range(len(self))
            for name, module in self.linears(layer).items()
        }

    def load(self, index: int) -> nn.Module:
        """Read one layer's tensors; `release` frees them. Raises JobError for a
        buffer without a value."""
        layer: nn.Module = self.modules[index]
        state = {}
        for name in layer.state_dict():
            tensor = self.checkpoint.tensors[self.tensor_name(index, name)]
            state[name] = tensor.read(self.dtype).to(self.device)
        layer.load_state_dict(state, assign=True)
        stranded = [name for name, buffer in layer.named_buffers() if buffer.is_meta]
        if stranded:
            raise JobError(
                f"layer {index}: buffer {stranded[0]} is not in the checkpoint and has"
                " no known value"
            )
        return layer.requires_grad_(False)

    def layers(self, report: Progress = silent) -> Iterator[tuple[int, nn.Module]]:
        """Each layer in turn, with its weights, which are forgotten after it. `report`
        gets how many are done, and all."""
        for index in range(len(self)):
            yield index, self.load(index)
            self.release(index)
            report(index + 1, len(self))

    def replace(self, index: int, module: str, weight_OI: Tensor) -> None:
        linear = cast("nn.Linear", self.modules[index].get_submodule(module))
        linear.weight.data = weight_OI.to(linear.weight.dtype)

    def release(self, index: int) -> None:
        self.modules[index].to("meta")
        for linear in self.linears(index).values():
            self._released += (
                linear.in_features * linear.out_features * self.dtype.itemsize
            )
        if self._released >= _KEPT_BYTES:
            self._released = 0
            memory.give_back()

    def open_skeleton(self, ids: Tensor) -> None:
        """Prepare for all token ids to come; only their embeddings are read. Raises
        InputError for one too large."""
        from transformers import AutoModel

        vocabulary = int(self._model.embed_tokens.num_embeddings)
        highest = int(ids.max())
        if highest >= vocabulary:
            raise InputError(
                f"{self.checkpoint.path}: its tokenizer gives id {highest}, its"
                f" embedding has {vocabulary} rows"
            )
        unique = torch.unique(ids)
        config = copy.deepcopy(self.config)
        config.num_hidden_layers = 0
        config.vocab_size = len(unique)
        config.pad_token_id = None
        with warnings.catch_warnings(action="ignore"):
            skeleton = AutoModel.from_config(config, dtype=self.dtype).eval()
        rows = self.checkpoint.tensors[self._table].stored()[unique]
        skeleton.embed_tokens.weight = nn.Parameter(
            rows.to(self.dtype), requires_grad=False
        )
        skeleton.layers = nn.ModuleList(
            _Recorder(self._received) for _ in range(len(self))
        )
        skeleton.config.num_hidden_layers = len(self)
        skeleton.norm = nn.Identity()
        self._skeleton = skeleton.to(self.device)
        self._compact_ids = unique

    def embed(self, batch: Batch) -> Tensor:
        """hidden_1TH: the first layer's input, sequences end to end. A token's place
        makes no difference to it."""
        pieces = torch.split(torch.cat(batch.sequences), _EMBEDDED)
        return torch.cat([self._run(ids)[0] for ids in pieces], dim=1)

    def keywords(self, layer: int, batch: Batch) -> Keywords:
        of_each = [self._keywords_of(ids)[layer] for ids in batch.sequences]
        return dict(of_each[0]) if self.recurrent else pack(of_each, batch.lengths)

    def _keywords_of(self, ids: Tensor) -> list[Keywords]:
        """The keywords of every layer for one sequence. They depend on its length
        alone, so small ones are kept."""
        length = len(ids)
        if length not in self._keywords:
            if sum(kept**2 for kept in self._keywords) > _KEPT_MASKS:
                self._keywords.clear()
            self._keywords[length] = self._run(ids)[1]
        return self._keywords[length]

    def _run(self, ids: Tensor) -> tuple[Tensor, list[Keywords]]:
        assert self._skeleton is not None, "open_skeleton comes first"
        assert self._compact_ids is not None
        compact_1T = torch.searchsorted(self._compact_ids, ids)[None].to(self.device)
        self._received.clear()
        return self._skeleton(
            input_ids=compact_1T, use_cache=False
        ).last_hidden_state, list(self._received)
