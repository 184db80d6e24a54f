"""Which tensor of a checkpoint fills which parameter, and the Slot they are decoded into.

The map is complete both ways: a parameter or a stored buffer without a tensor is an error, and so is
a tensor that lies in a decoder layer or in a module of the model and that nothing uses, since it means
the module is something else than we think. Other tensors (extra prediction layers, a vision tower) are
listed in the record.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.torch.skeleton import Skeleton
from scoremode.errors import CheckpointError, UnsupportedModel
from scoremode.schemes.base import Scheme, Scratch
from scoremode.schemes.dense import Dense
from scoremode.schemes.resolve import Schemes, dense_of

__all__ = ["Filling", "Slot", "WeightMap"]

Fetch = Callable[[str], torch.Tensor]


@dataclass(frozen=True)
class Filling:
    """How one parameter gets its values: `scheme` decodes the tensors of checkpoint module
    `source` into parameter `name` of `module`."""

    module: nn.Module
    name: str
    role: str
    source: str
    scheme: Scheme

    def tensor_names(self) -> dict[str, str]:
        """Suffix → checkpoint name."""
        return {s: f"{self.source}.{s}" if self.source else s for s in self.scheme.tensors}


class WeightMap:
    """Parameter names of a model → fillings from a checkpoint. Raises CheckpointError."""

    def __init__(self, skeleton: Skeleton, checkpoint: Checkpoint, schemes: Schemes):
        self._checkpoint, self._schemes = checkpoint, schemes
        self._tied: dict[str, str] = dict(getattr(skeleton.model, "all_tied_weights_keys", {}))
        self._names = _Names(skeleton, checkpoint, schemes)
        self._used: set[str] = set()
        self.layers = [
            [
                self._filling(layer, name, f"{prefix}.{name}", parameter.shape)
                for name, parameter in layer.named_parameters()
            ]
            for layer, prefix in zip(skeleton.layers, skeleton.layer_names, strict=True)
        ]
        self.outside = {
            name: self._filling(skeleton.model, name, name, parameter.shape)
            for name, parameter in skeleton.parameters_outside_layers()
        }
        self.buffers = list(self._stored_buffers(skeleton))
        self.unused = self._check_unused(skeleton)

    def filling_of(self, module: nn.Module, name: str) -> Filling | None:
        """The filling of a parameter outside the layers, None if the module has no such one."""
        return next(
            (f for f in self.outside.values() if f.module is module and f.name == name), None
        )

    def _filling(self, root: nn.Module, path: str, full_name: str, shape: Iterable[int]) -> Filling:
        parent, _, name = path.rpartition(".")
        module = root.get_submodule(parent)
        stored, is_own = self._find(full_name)
        source, _, suffix = stored.rpartition(".")
        scheme: Scheme
        if suffix == "weight" and source in self._schemes.quantized:
            scheme = self._schemes.quantized[source]
        else:
            scheme = dense_of(self._checkpoint.tensors[stored])
            # A head tied to the embedding is stored as the embedding, whatever targets linears.
            own_weight = suffix == "weight" and is_own
            if own_weight and isinstance(module, nn.Linear) and self._schemes.claims(source):
                raise CheckpointError(
                    f"{source} is stored dense ({scheme.label}), and quantization_config says that "
                    "it is quantized"
                )
        if tuple(scheme.shape) != tuple(shape):
            raise CheckpointError(
                f"{self._checkpoint.path}: tensor {stored} has shape {list(scheme.shape)}, "
                f"the model needs {list(shape)}"
            )
        filling = Filling(module, name, path, source, scheme)
        self._used |= set(filling.tensor_names().values())
        return filling

    def _find(self, full_name: str) -> tuple[str, bool]:
        """The checkpoint's name for a parameter or else for one it is tied to; whether its own."""
        stored = self._names.stored(full_name)
        if stored is not None:
            return stored, True
        for pair in self._tied.items():
            if full_name in pair:
                (twin,) = set(pair) - {full_name}
                stored = self._names.stored(twin)
                if stored is not None:
                    return stored, False
        raise CheckpointError(f"{self._checkpoint.path}: no tensor for parameter {full_name}")

    def _stored_buffers(self, skeleton: Skeleton) -> Iterable[tuple[torch.Tensor, str]]:
        """Buffers that a checkpoint holds values for, with the tensor's name."""
        roots = [("", skeleton.model), *zip(skeleton.layer_names, skeleton.layers, strict=True)]
        for prefix, root in roots:
            for module_name, module in root.named_modules():
                for name, buffer in module._buffers.items():
                    if buffer is None or name in module._non_persistent_buffers_set:
                        continue
                    full_name = ".".join(filter(None, (prefix, module_name, name)))
                    stored = self._names.stored(full_name)
                    if stored is None:
                        raise CheckpointError(
                            f"{self._checkpoint.path}: no tensor for buffer {full_name}"
                        )
                    self._used.add(stored)
                    yield buffer, stored

    def _check_unused(self, skeleton: Skeleton) -> list[str]:
        known = {f.source for f in (*self.outside.values(), *chain.from_iterable(self.layers))}
        ignorable = [*(skeleton.model._keys_to_ignore_on_load_unexpected or ()), *_COMPUTED]
        if self._schemes.config is not None and self._schemes.config.kv_cache is not None:
            ignorable += _KV_CACHE
        extra = getattr(skeleton.config, "num_nextn_predict_layers", None) or 0
        predicted = range(len(skeleton.layers), len(skeleton.layers) + extra)
        unused = []
        for name in self._checkpoint.tensors:
            if name in self._used or name.endswith(".weight_shape"):
                continue
            unused.append(name)
            parents = {name.rsplit(".", n)[0] for n in range(1, name.count(".") + 1)}
            layer = skeleton.layer_of(self._names.renamed(name))
            belongs = parents & known or (layer is not None and layer not in predicted)
            if belongs and not any(re.search(pattern, name) for pattern in ignorable):
                raise CheckpointError(
                    f"{self._checkpoint.path}: tensor {name} belongs to a layer or module of the "
                    "model, and nothing in it uses such a tensor"
                )
        return unused


# Tables that old checkpoints store and that are computed now; a cache's scales, which apply only to
# a quantized cache.
_COMPUTED = (
    r"\.rotary_emb\.inv_freq$",
    r"\.attn\.masked_bias$",
    r"^(transformer\.)?h\.\d+\.attn\.bias$",
)
_KV_CACHE = (r"\.[qkv]_(scale|zero_point)$",)


class _Names:
    """The model's parameter names → the checkpoint's, by transformers' own conversion rules.

    They cover a base model saved without its head, and layers that were renamed since. A quantized
    module counts as its `weight`. A tensor that the library would have to rearrange, beyond naming
    it anew, has no counterpart here.
    """

    def __init__(self, skeleton: Skeleton, checkpoint: Checkpoint, schemes: Schemes):
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import (
            WeightConverter,
            WeightRenaming,
            rename_source_key,
        )

        rules = get_model_conversion_mapping(skeleton.model) or []
        renamings = [r for r in rules if isinstance(r, WeightRenaming)]
        converters = [r for r in rules if isinstance(r, WeightConverter)]
        base = skeleton.model.base_model_prefix
        known = dict.fromkeys(skeleton.tensor_names(), True)
        self._stored: dict[str, str] = {}
        self._rearranged: dict[str, str] = {}
        self._renamed: dict[str, str] = {}
        for name in _logical_names(checkpoint, schemes):
            renamed, pattern = rename_source_key(name, renamings, converters, base, known)
            if renamed not in known and name in known:
                renamed, pattern = name, None
            (self._stored if pattern is None else self._rearranged)[renamed] = name
            self._renamed[name] = renamed

    def renamed(self, stored: str) -> str:
        """What the library calls a tensor of the checkpoint, whether the model has it or not."""
        return self._renamed.get(stored, stored)

    def stored(self, name: str) -> str | None:
        """The checkpoint's name, None if it has no such tensor. Raises UnsupportedModel."""
        if name not in self._stored and name in self._rearranged:
            raise UnsupportedModel(
                f"tensor {self._rearranged[name]} is stored in another layout than the model's "
                f"{name}: not supported yet"
            )
        return self._stored.get(name)


def _logical_names(checkpoint: Checkpoint, schemes: Schemes) -> Iterable[str]:
    for name in checkpoint.tensors:
        module, _, suffix = name.rpartition(".")
        if module not in schemes.quantized or suffix == "bias":
            yield name
    yield from (f"{module}.weight" for module in schemes.quantized)


class Slot:
    """One dense decoder layer's worth of memory, filled with each layer in turn.

    Buffers are kept by role and shape, so layers that look alike share them. A dense tensor that is
    already in the wanted dtype and place is used where it lies.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, fetch: Fetch):
        self.dtype, self.device = dtype, device
        self._fetch = fetch
        self._scratch = Scratch()
        self._buffers: dict[tuple[str, tuple[int, ...]], torch.Tensor] = {}

    @property
    def bytes(self) -> int:
        """Of the dense buffers held."""
        return sum(b.nbytes for b in self._buffers.values())

    def fill(self, fillings: Iterable[Filling]) -> None:
        """Decodes the fillings and points their modules' parameters at the result."""
        for filling in fillings:
            weight = self.dense(filling)
            filling.module._parameters[filling.name] = nn.Parameter(weight, requires_grad=False)

    def empty(self, fillings: Iterable[Filling]) -> None:
        """Takes the parameters away again, so that nothing runs on another layer's weights."""
        for filling in fillings:
            shape = tuple(filling.scheme.shape)
            meta = torch.empty(shape, dtype=self.dtype, device="meta")
            filling.module._parameters[filling.name] = nn.Parameter(meta, requires_grad=False)

    def kept(self, filling: Filling) -> torch.Tensor:
        """The weight for good: as it is stored if dense, else decoded into memory of its own."""
        if isinstance(filling.scheme, Dense):
            (name,) = filling.tensor_names().values()
            return self._fetch(name)
        return self.dense(filling).clone()

    def dense(self, filling: Filling) -> torch.Tensor:
        """The effective weight, valid until a filling of the same role and shape is decoded."""
        tensors = {s: self._fetch(name) for s, name in filling.tensor_names().items()}
        if isinstance(filling.scheme, Dense):
            (tensor,) = tensors.values()
            if tensor.dtype == self.dtype and tensor.device == self.device:
                return tensor
        key = (filling.role, tuple(filling.scheme.shape))
        if key not in self._buffers:
            self._buffers[key] = torch.empty(key[1], dtype=self.dtype, device=self.device)
        out = self._buffers[key]
        filling.scheme.decode(tensors, out, self._scratch)
        return out
