"""The map that says which tensor of a checkpoint fills which parameter.

The map is complete both ways: a parameter or a stored buffer without a tensor is an error, and so is
a tensor that lies in a decoder layer or in a module of the model and that nothing uses, since it means
the module is something else than we think. Other tensors (extra prediction layers, a vision tower) are
listed in the record.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.torch.matmul.linears import (
    Arithmetic,
    InputFactor,
    groups_of,
    multiply_input,
    quantize_forward,
)
from scoremode.engines.torch.model.skeleton import Skeleton, kept_dtype
from scoremode.engines.torch.weights.expert_weights import (
    ExpertWeights,
    Layout,
    find_experts,
    is_experts,
)
from scoremode.engines.torch.weights.names import Conversion, Converted, Names, find_unused
from scoremode.engines.torch.weights.slot import PARTS, Binding, Heads, Joined, Source
from scoremode.errors import CheckpointError, UnsupportedModel
from scoremode.schemes.base import Dense, Scheme, fitted, input_factor
from scoremode.schemes.exl3 import Exl3
from scoremode.schemes.fused_experts import Stacked
from scoremode.schemes.gguf import permuted, with_inputs
from scoremode.schemes.qweight import Qweight
from scoremode.schemes.resolve import Schemes, dense_of

# Formats that hold a linear's inputs first, and decode to its outputs first.
_OUT_IN = (Qweight, Exl3)


class WeightMap:
    """The parameters of a model, each bound to tensors of a checkpoint. Raises CheckpointError.

    - `layers`: for each decoder layer the bindings of its parameters but the experts'.
    - `experts`: for each decoder layer its modules of fused experts, expert by expert.
    - `outside`: the bindings of everything else, by full name.
    - `buffers`: those that the checkpoint holds values for, with the tensor's name.
    - `unused`: the tensors that belong to no part of the model that runs.
    - `renamed`: the library's name for a tensor, whether the model has it or not.
    """

    def __init__(
        self,
        skeleton: Skeleton,
        checkpoint: Checkpoint,
        schemes: Schemes,
        arithmetic: Arithmetic,
    ):
        self._checkpoint, self._schemes = checkpoint, schemes
        self._skeleton, self._arithmetic = skeleton, arithmetic
        self._tied: dict[str, str] = dict(getattr(skeleton.model, "all_tied_weights_keys", {}))
        self._names = Names(skeleton, checkpoint, schemes)
        self.renamed = self._names.renamed
        self._used: set[str] = set()
        self.layers: list[list[Binding]] = []
        self.experts: list[list[ExpertWeights]] = []
        for layer, prefix in zip(skeleton.layers, skeleton.layer_names, strict=True):
            experts = list(self._experts(layer, prefix))
            apart = {id(p) for e in experts for p in e.parameters()}
            self.experts.append(experts)
            self.layers.append(
                [
                    self._binding(layer, name, f"{prefix}.{name}", parameter)
                    for name, parameter in layer.named_parameters()
                    if id(parameter) not in apart
                ]
            )
        self.outside = {
            name: self._binding(skeleton.model, name, name, parameter)
            for name, parameter in skeleton.model.named_parameters(remove_duplicate=False)
        }
        self.buffers = list(self._stored_buffers())
        self.unused = find_unused(checkpoint, skeleton, schemes, self._names, self._used)

    def binding_of(self, module: nn.Module, name: str) -> Binding | None:
        """The binding of a parameter outside the layers, None if the module has no such one."""
        return next(
            (b for b in self.outside.values() if b.module is module and b.name == name), None
        )

    def tensors_of_layers(self) -> list[list[str]]:
        """The checkpoint's tensors that each decoder layer is made of."""
        result = []
        for bindings, experts in zip(self.layers, self.experts, strict=True):
            every = [*bindings, *(b for weights in experts for b in weights.bindings())]
            result.append(self._tensor_names(every))
        return result

    def tensors_outside(self) -> tuple[list[str], list[str]]:
        """Tensors of the embedding's table, and those of everything else that lies in no layer; one
        that both use is in either."""
        embedding = self._skeleton.embedding
        table = [b for b in self.outside.values() if b.module is embedding and b.name == "weight"]
        rest = [b for b in self.outside.values() if b not in table]
        return self._tensor_names(table), self._tensor_names(rest)

    def _tensor_names(self, bindings: Iterable[Binding]) -> list[str]:
        """Names of all tensors that the bindings read. Of a static scale that weights alone don't use
        there may be none."""
        names = dict.fromkeys(n for b in bindings for n in b.all_tensor_names())
        return [name for name in names if name in self._checkpoint.tensors]

    def _binding(
        self, root: nn.Module, path: str, full_name: str, parameter: nn.Parameter
    ) -> Binding:
        parent, _, name = path.rpartition(".")
        module = root.get_submodule(parent)
        linear, shape = isinstance(module, nn.Linear), tuple(parameter.shape)
        found, is_own = self._find(full_name)
        # A head tied to the embedding is stored as the embedding, whatever targets linears.
        if isinstance(found, str):
            source = self._source(found, shape, linear=linear and is_own)
            # Other formats store the matrix that the module has, whichever way it lies.
            if type(module).__name__ == "Conv1D" and isinstance(source.scheme, _OUT_IN):
                raise UnsupportedModel(
                    f"{found} is stored in {source.scheme.label}, and the library's module (Conv1D) "
                    "has its weight transposed: not supported"
                )
            self._check_shape(found, source.scheme, shape)
        elif isinstance(found, list):
            parts = [self._source(name, linear=True) for name in found]
            by_head = parent.rpartition(".")[2] in PARTS
            joined = Heads(parts) if by_head else self._joined(found, parts, full_name, shape)
            self._check_shape(f"{full_name} made of {joined}", joined, shape)
            source = Source("", joined)
        else:
            converted = self._converted(found, full_name, shape, linear=linear)
            self._check_shape(f"{full_name} made of {converted}", converted, shape)
            source = Source("", converted)
        if len(shape) > 1 and not isinstance(module, nn.Embedding):
            source = self._seen(source, full_name)
        # Some modules make a parameter float32 whatever the model's dtype (hunyuan's routers).
        dtype = kept_dtype(self._skeleton.model, full_name) or parameter.dtype
        matmul = None
        # The head has a product of its own (head.py).
        if self._quantizes_input(full_name, source) and module is not self._skeleton.head:
            matmul = self._arithmetic.matmul(source.scheme, groups_of(module) or 1)
            quantize_forward(module, full_name.removesuffix(".weight"), matmul)
        factor = InputFactor() if input_factor(source.scheme) else None
        binding = Binding(
            module, name, path, source.module, source.scheme, dtype, matmul=matmul, factor=factor
        )
        if factor is not None:
            if root is self._skeleton.model:
                raise UnsupportedModel(
                    f"{full_name}: the checkpoint has factors for its inputs "
                    f"({binding.factor_name()}), and it lies in no decoder layer: not supported"
                )
            multiply_input(module, full_name.removesuffix(".weight"), factor)
        return self._used_by(binding)

    def _seen(self, source: Source, full_name: str) -> Source:
        """The source with inputs as the arithmetic has them. Raises UnsupportedModel for parameters
        made of several tensors whose inputs would be rounded."""
        scheme = source.scheme
        if not self._arithmetic.is_llama_cpp:
            return source
        if not isinstance(scheme, Converted | Joined):
            return replace(source, scheme=with_inputs(scheme))
        if any(with_inputs(part.scheme).inputs for part in scheme.parts):
            raise UnsupportedModel(
                f"{full_name} is made of {scheme}, whose inputs llama.cpp rounds: not supported yet; "
                "--arithmetic weights measures it without"
            )
        return source

    def _quantizes_input(self, full_name: str, source: Source) -> bool:
        """Tells whether the input is quantized, after a look at its static scales: an expert that
        calibration never reached may have none, or zero, which would make all outputs zero."""
        if not self._arithmetic.quantizes_input_of(source.scheme):
            return False
        if isinstance(source.scheme, Converted):
            raise UnsupportedModel(
                f"{full_name} is made of {source.scheme}, whose inputs are quantized in the "
                "checkpoint: not supported yet; --arithmetic weights measures it without"
            )
        inputs = source.scheme.inputs
        assert inputs is not None
        names = source.input_names()
        for name in names.values():
            if name not in self._checkpoint.tensors:
                raise CheckpointError(
                    f"{self._checkpoint.path}: the input of {full_name.removesuffix('.weight')} is "
                    f"quantized, and the tensor {name} is missing; --arithmetic weights measures "
                    "without it"
                )
        for suffix in inputs.scales:
            info = self._checkpoint.tensors[names[suffix]]
            for value in self._checkpoint.read(info.name).flatten().tolist():
                if not 0 < value < math.inf:
                    raise CheckpointError(
                        f"{info.file}: tensor {info.name} is {value:g}, not a positive scale; "
                        "--arithmetic weights measures without it"
                    )
        return True

    def _find(self, full_name: str) -> tuple[str | list[str] | Conversion, bool]:
        """Finds what a parameter, or else one it is tied to, is stored as, or in which parts; and
        whether that is the parameter's own."""
        twins = [set(pair) - {full_name} for pair in self._tied.items() if full_name in pair]
        for name in (full_name, *(twin for (twin,) in twins)):
            found = self._names.stored(name) or self._names.conversion(name)
            if found is not None:
                return found, name == full_name
        module, _, suffix = full_name.rpartition(".")
        home, _, last = module.rpartition(".")
        names = PARTS.get(last) or self._schemes.splits.get(last, ())
        parts = [f"{home}.{part}.{suffix}" for part in names]
        stored = [name for part in parts if (name := self._names.stored(part)) is not None]
        if stored and len(stored) == len(parts):
            return stored, True
        raise CheckpointError(f"{self._checkpoint.path}: no tensor for parameter {full_name}")

    def _source(self, stored: str, shape: tuple[int, ...] | None = None, *, linear: bool) -> Source:
        """Returns how a tensor is decoded; `linear`: whether it is one of a linear's own; `shape`: what
        the model needs, where it needs it as it is stored."""
        quantized = self._schemes.module_of(stored)
        layout = self._checkpoint.layouts.get(stored)
        if quantized is not None:
            home = self._schemes.home_of(quantized)
            scheme = self._schemes.quantized[quantized]
            if layout is not None:
                return Source(home, permuted(scheme, layout, stored))
            return Source(home, scheme if shape is None else fitted(scheme, shape))
        module, _, suffix = stored.rpartition(".")
        scheme = dense_of(self._checkpoint.tensors[stored])
        if linear and suffix == "weight" and self._schemes.claims(module):
            raise CheckpointError(
                f"{module} is stored dense ({scheme.label}), and quantization_config says that "
                "it is quantized"
            )
        return Source(module, scheme if layout is None else permuted(scheme, layout, stored))

    def _joined(
        self, stored: list[str], parts: list[Source], full_name: str, shape: tuple[int, ...]
    ) -> Joined:
        # Each has outputs of its own, and all have the model's inputs.
        parts = [
            replace(p, scheme=fitted(p.scheme, (p.scheme.shape[0], *shape[1:]))) for p in parts
        ]
        for name, part in zip(stored, parts, strict=True):
            if part.scheme.shape[1:] != shape[1:]:
                raise CheckpointError(
                    f"{self._checkpoint.path}: tensor {name} has shape {list(part.scheme.shape)}, "
                    f"and {full_name}, which it is a part of, {list(shape)}"
                )
        return Joined(parts)

    def _converted(
        self, conversion: Conversion, full_name: str, shape: tuple[int, ...], *, linear: bool
    ) -> Converted:
        merges = repr(conversion.converter.operations[0]) == "MergeModulelist(dim=0)"
        sources = {}
        for pattern, names in conversion.sources.items():
            count = shape[0] if merges else max(names, default=-1) + 1
            ordered = conversion.in_order(pattern, count)
            if ordered:
                sources[pattern] = [self._source(n, linear=linear or merges) for n in ordered]
        for source in (s for found in sources.values() for s in found):
            if input_factor(source.scheme):
                raise UnsupportedModel(
                    f"{full_name} is made of several tensors, and {source.module} has factors for its "
                    "inputs: not supported"
                )
        return Converted(conversion, sources, full_name, self._skeleton.model)

    def _experts(self, layer: nn.Module, prefix: str) -> Iterable[ExpertWeights]:
        for path, module in layer.named_modules():
            if is_experts(module):
                make = partial(self._expert_binding, module, path)
                found = find_experts(module, f"{prefix}.{path}", self._names, make)
                if found is not None:
                    yield found

    def _expert_binding(
        self,
        module: Any,
        path: str,
        stored: str,
        role: str,
        shape: tuple[int, ...],
        index: int | None,
        layout: Layout,
    ) -> Binding:
        """One expert's share of a parameter, from a tensor of this shape."""
        source = self._source(stored, shape, linear=layout != "fused")
        if "_bias." not in role:
            source = self._seen(source, stored)
        scheme = source.scheme
        is_slice = layout == "fused" and isinstance(scheme, Dense)
        if is_slice and scheme.inputs and module.is_transposed:
            raise UnsupportedModel(
                f"{stored} holds all experts transposed, and llama.cpp rounds their inputs: not "
                "supported; --arithmetic weights measures it without"
            )
        if isinstance(scheme, Stacked) and layout == "fused":
            if module.is_transposed and scheme.untransposes:
                shape = (shape[0], *shape[:0:-1])
            elif module.is_transposed != scheme.one.transposed:
                other = "not transposed" if scheme.one.transposed else "transposed"
                raise UnsupportedModel(
                    f"{stored} holds all experts in {scheme.label}, and the library's module has them "
                    f"{other}: not supported"
                )
        self._check_shape(stored, scheme, shape)
        if index is not None:
            scheme = _one_of(scheme)
        name = role.partition(".")[0]
        dtype = module.get_parameter(name).dtype
        matmul = None
        if self._quantizes_input(stored, source):
            matmul = self._arithmetic.matmul(scheme)
            if matmul.inputs.spans_window:
                raise UnsupportedModel(
                    f"{stored} is an expert's, which gets tokens of many windows at once, and its "
                    f"input ({matmul.inputs.label}, dynamic) {matmul.inputs.by_window}: not supported; "
                    "--arithmetic weights measures it without"
                )
        factor = InputFactor() if input_factor(scheme) else None
        role = f"{path}.{role}"
        return self._used_by(
            Binding(module, name, role, source.module, scheme, dtype, index, matmul, factor)
        )

    def _used_by(self, binding: Binding) -> Binding:
        self._used |= set(binding.tensor_names().values())
        return binding

    def _check_shape(self, stored: str, scheme: Scheme, shape: tuple[int, ...]) -> None:
        if tuple(scheme.shape) != shape:
            raise CheckpointError(
                f"{self._checkpoint.path}: tensor {stored} has shape {list(scheme.shape)}, "
                f"the model needs {list(shape)}"
            )

    def _stored_buffers(self) -> Iterable[tuple[torch.Tensor, str]]:
        skeleton = self._skeleton
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


def _one_of(scheme: Scheme) -> Scheme:
    """The scheme of one expert, of tensors that hold all."""
    if isinstance(scheme, Stacked):
        return scheme.one
    assert isinstance(scheme, Dense), f"{scheme.label} of all experts is not stacked"
    return replace(scheme, shape=scheme.shape[1:])
