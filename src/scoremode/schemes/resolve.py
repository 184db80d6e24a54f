"""Makes one Scheme a module of headers and `quantization_config`.

Both must say the same. A quantized tensor that the config doesn't claim, a claimed module that is
stored dense, a shape that fits neither: each is an error that names the module, since loading it
some other way would measure another model. Other libraries' checkpoints, and transforms of inputs that
a checkpoint declares, are recognised, so that each is refused by its name.

Sources of names: transformers 5.23, `QuantizationMethod`; vLLM 0.33, `QuantizationMethods`; each
library's own files.
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from scoremode.checkpoint.config import TRANSFORM, quantizations
from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.model_files import MODELOPT, own_files
from scoremode.checkpoint.safetensors_files import FLOATS, TensorInfo
from scoremode.checkpoint.virtual import Mixture
from scoremode.errors import CheckpointError, ScoremodeError, UnsupportedFormat
from scoremode.schemes import (
    auto_round,
    awq,
    bitsandbytes,
    compressed_tensors,
    exl3,
    fp8,
    gguf,
    gptq,
    hqq,
    mlx,
    modelopt,
    mxfp4,
    quark,
    torchao,
)
from scoremode.schemes.base import Dense, Scheme
from scoremode.schemes.fields import TensorFormat, UnreadCache, shown
from scoremode.schemes.fused_experts import Stacked
from scoremode.schemes.library import Declared, Library, looks_like

_VLLM = "vLLM can score it: --engine vllm"
# quant_method → whose it is, and what to do.
METHODS = {
    "deepseek_v4_fp8": f"DeepSeek; {_VLLM}",
    "fbgemm_fp8": "FBGEMM of transformers",
    "inc": f"Intel Neural Compressor; {_VLLM}",
    "exl2": "ExLlamaV2; measure it with ExLlamaV2 itself",
    "quanto": "optimum-quanto",
    "aqlm": "AQLM",
    "vptq": "VPTQ",
    "spqr": "SpQR",
    "eetq": "EETQ",
    "higgs": "HIGGS",
    "bitnet": "BitNet",
    "fp_quant": "FP-Quant",
    "sinq": "SINQ",
}
# The libraries that are read. Of several that a config's fields tell, the first one counts.
LIBRARIES: tuple[type[Library], ...] = (
    compressed_tensors.Modules,
    fp8.Modules,
    modelopt.Modules,
    bitsandbytes.Modules,
    awq.Modules,
    gptq.Modules,
    auto_round.Modules,
    mxfp4.Modules,
    hqq.Modules,
    quark.Modules,
    torchao.Modules,
    exl3.Modules,
    mlx.Modules,
    gguf.Modules,
)
# Methods that configs have, in lower case.
READ = {method: library for library in LIBRARIES for method in library.methods}
# Tensors that are there only where their module is quantized, whatever the config says. Those of
# `looks_like` count as well, to be refused.
_MARKS = frozenset().union(*(library.marks for library in LIBRARIES))


@dataclass(frozen=True)
class Schemes:
    """The formats of a checkpoint's modules.

    - `quantized`: module name → Scheme, for every module with a quantized weight.
    - `groups`: module name → name of the config's group that claims it.
    - `config`: the parsed `quantization_config`, None for a dense checkpoint.
    - `split`: a tensor's module and suffix; `records`, `splits`: as in Library.

    Experts that are stored as one count as a module that has the name of their parameter.
    """

    quantized: dict[str, Scheme]
    groups: dict[str, str]
    config: Declared | None
    split: Callable[[str], tuple[str, str]] = Library.split
    records: frozenset[str] = Library.records
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: Library.splits)

    def claims(self, module: str) -> bool:
        """Tells whether the config wants the linear `module` quantized."""
        return self.config is not None and self.config.claims(module)

    def parameter_of(self, module: str) -> str:
        """The parameter that a quantized module's Scheme decodes."""
        return module if isinstance(self.quantized[module], Stacked) else f"{module}.weight"

    def home_of(self, module: str) -> str:
        """The name that stands before the suffixes of a quantized module's tensors."""
        stacked = isinstance(self.quantized[module], Stacked)
        return module.rpartition(".")[0] if stacked else module

    def module_of(self, parameter: str) -> str | None:
        """The quantized module whose parameter it is, None for a dense tensor."""
        linear = parameter.removesuffix(".weight")
        for module in (parameter, linear):
            if module in self.quantized and self.parameter_of(module) == parameter:
                return module
        return None


def dense_of(info: TensorInfo) -> Dense:
    """The Scheme of a float tensor. Raises CheckpointError for any other dtype."""
    if info.dtype not in FLOATS:
        raise CheckpointError(
            f"{info.file}: tensor {info.name} has dtype {info.dtype}, not a float's"
        )
    return Dense(info.shape, info.dtype, info.name.rpartition(".")[2])


def resolve(checkpoint: Checkpoint, refusals: dict[str, ScoremodeError] | None = None) -> Schemes:
    """The Schemes of a checkpoint, by its headers and config.

    No weight is read, but small tensors beside it are, where they have what headers don't tell: a
    shape, an order of inputs, zero points, a record of how it is stored.

    Raises UnsupportedFormat or CheckpointError, naming the module; with `refusals` given, collects
    them there by module instead.
    """
    if isinstance(checkpoint, Mixture):
        return _of_mixture(checkpoint, refusals)
    library = _library(checkpoint)
    split = library.split if library else Library.split
    modules: dict[str, dict[str, TensorInfo]] = defaultdict(dict)
    for name, info in checkpoint.tensors.items():
        module, suffix = split(name)
        other = modules[module].setdefault(suffix, info)
        if other is not info:
            raise CheckpointError(
                f"{info.file}: tensors {other.name} and {name} are both the {suffix} of {module}"
            )
    quantized: dict[str, Scheme] = {}
    groups: dict[str, str] = {}
    below: list[str] = []
    for module, tensors in modules.items():
        if not _is_quantized(module, tensors):
            continue
        try:
            if library is None:
                below = below or sorted(checkpoint.tensors)
                raise _undeclared(module, tensors, below)
            quantized[module], groups[module] = library.scheme(module, tensors)
        except ScoremodeError as error:
            if refusals is None:
                raise
            refusals[module] = error
    if library is None:
        return Schemes(quantized, groups, None)
    return Schemes(quantized, groups, library.config, split, library.records, library.splits)


class _MixedConfig:
    """The configs of a mixture's parts, each asked for the modules that are its own."""

    def __init__(self, own: Declared | None, others: Mapping[str, Declared | None]):
        self._own, self._others = own, others

    @property
    def kv_cache(self) -> TensorFormat | UnreadCache | None:
        return None if self._own is None else self._own.kv_cache

    def claims(self, module: str) -> bool:
        config = self._others.get(module, self._own)
        return config is not None and config.claims(module)


def _of_mixture(mixture: Mixture, refusals: dict[str, ScoremodeError] | None) -> Schemes:
    """Each module's Scheme is that of the part which has it."""
    parts = {id(part): resolve(part, refusals) for part in mixture.parts}
    own = parts[id(mixture.own)]
    homes = {module: take.other for take in mixture.taken for module in take.modules}
    quantized: dict[str, Scheme] = {}
    groups: dict[str, str] = {}
    for part in mixture.parts:
        schemes = parts[id(part)]
        for module, scheme in schemes.quantized.items():
            if homes.get(module, mixture.own) is part:
                quantized[module], groups[module] = scheme, schemes.groups[module]
    kept = {own.split(name)[0] for name in mixture.tensors if mixture.owners[name] is mixture.own}
    quantized = {m: s for m, s in quantized.items() if m in homes or m in kept}
    others = {module: parts[id(part)].config for module, part in homes.items()}
    found = list(parts.values())

    def split(name: str) -> tuple[str, str]:
        owner = mixture.owners.get(name, mixture.own)
        return parts[id(owner)].split(name)

    is_declared = any(schemes.config is not None for schemes in found)
    return Schemes(
        quantized,
        {module: groups[module] for module in quantized},
        _MixedConfig(own.config, others) if is_declared else None,
        split,
        frozenset().union(*(schemes.records for schemes in found)),
        {name: value for schemes in reversed(found) for name, value in schemes.splits.items()},
    )


def _library(checkpoint: Checkpoint) -> Library | None:
    """The library whose config the checkpoint has, None where it has none.

    Raises UnsupportedFormat for one that is not read, CheckpointError for a config that can't be
    understood, or whose tensors are another library's.
    """
    config, library = checkpoint.quantization, library_of(checkpoint)
    if not library or not config:
        return None
    # Ends with the first, so that tens of thousands of experts are not split twice.
    if not any(library.split(name)[1] in library.marks for name in checkpoint.tensors):
        for name in sorted(checkpoint.tensors):
            module, _, suffix = name.rpartition(".")
            if looks := looks_like([suffix]):
                method = shown(
                    config.get("quant_method", method_of(config) or "compressed-tensors")
                )
                raise CheckpointError(
                    f"{module.removesuffix('.weight')} is stored as {looks} (its {suffix}), and the "
                    f"config says quantization method {method}"
                )
    reader = library(checkpoint, config)
    reader.check()
    return reader


def method_of(config: Mapping[str, Any]) -> str | None:
    """The `quant_method` in lower case, or the one that the config's fields tell; None if none does."""
    method = config.get("quant_method")
    if method is None and "config_groups" not in config:
        told = (library for library in LIBRARIES for own in library.told if own <= config.keys())
        method = next((min(library.methods) for library in told), None)
    return None if method is None else str(method).lower()


def library_of(checkpoint: Checkpoint) -> type[Library] | None:
    """The library that the config names, None where it has none. Raises UnsupportedFormat for one that
    is not read, and for weights that were changed together with their inputs."""
    refuse_transforms(checkpoint)
    config = checkpoint.quantization
    if not config:
        return None
    method = method_of(config)
    if method is None or method in READ:
        # Configs that say no method are compressed-tensors', too.
        return READ[method or "compressed-tensors"]
    raise UnsupportedFormat(foreign_method(config))


def foreign_method(config: Mapping[str, Any]) -> str:
    """The reason why a `quantization_config` that is of no library that is read here is refused."""
    method = config.get("quant_method")
    about, words = METHODS.get(str(method).lower()), f"quantization method {shown(method)}"
    return f"{words} ({about}): not decoded" if about else f"{words}: not known"


def refuse_transforms(checkpoint: Checkpoint) -> None:
    """Raises UnsupportedFormat where a file says that weights were changed together with their inputs:
    AutoRound's `rotation_config` and `hadamard_config`, compressed-tensors' `transform_config`,
    GPTQModel's `rotation`, which older releases write to `quantize_config.json` alone.
    """
    said: list[tuple[str, Mapping[str, Any]]] = []
    for part in (checkpoint.config, checkpoint.text_config):
        # Its other objects are other models', such as an encoder.
        said.append(("config.json", {k: v for k, v in part.items() if TRANSFORM.search(k)}))
    said += [(f"config.json, {where}", what) for where, what in quantizations(checkpoint.config)]
    if checkpoint.modelopt is not None:
        said.append((MODELOPT, checkpoint.modelopt))
    if checkpoint.quantization and checkpoint.is_folder:
        said += own_files(checkpoint.path).items()
    for where, what in said:
        for name, value in _transforms(what, where):
            raise UnsupportedFormat(
                f"{checkpoint.path}: {name} {shown(value)} says that weights were changed together "
                "with their inputs; changing inputs so is not built"
            )


def _transforms(fields: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        path = f"{where}, {name}"
        # Names with a dot are modules'; `meta` is how GPTQModel was asked to quantize.
        if name == "meta" or not isinstance(name, str):
            continue
        if "." not in name and TRANSFORM.search(name):
            if _is_none(value):
                continue
            yield path, value
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Mapping):
                yield from _transforms(item, path)


def _is_none(value: Any) -> bool:
    """Tells whether a transform's field says that there is none: empty, `false` however written,
    switched off (`{"enable": false, …}`), or compressed-tensors' `transform_config` without a group."""
    if isinstance(value, Mapping):
        off = any(value.get(name) is False for name in ("enable", "enabled"))
        return off or not value or (set(value) == {"config_groups"} and not value["config_groups"])
    if isinstance(value, list):
        return all(map(_is_none, value))
    return not value or str(value).lower() in ("none", "null", "no", "off", "false", "identity")


def _is_quantized(module: str, tensors: Mapping[str, TensorInfo]) -> bool:
    # A linear's, or that of experts stored as one.
    weights = [tensors.get(suffix) for suffix in ("weight", module.rpartition(".")[2])]
    return (
        not _MARKS.isdisjoint(tensors)
        or any(weight is not None and weight.dtype not in FLOATS for weight in weights)
        or looks_like(tensors) is not None
    )


def _undeclared(
    module: str, tensors: Mapping[str, TensorInfo], below: list[str]
) -> CheckpointError:
    """The error for a module that no config declares; `below` has all tensors' names in order."""
    names = ", ".join(sorted(tensors))
    its_own = below[bisect(below, f"{module}.") : bisect(below, f"{module}/")]
    library = looks_like(name.rpartition(".")[2] for name in its_own)
    looks = f"; it looks like {library}" if library else ""
    return CheckpointError(
        f"{module} is stored quantized ({names}), and config.json says nothing{looks}"
    )
