"""From headers and `quantization_config` to one Scheme a module.

Both must say the same. A quantized tensor that the config doesn't claim, a claimed module that is
stored dense, a shape that fits neither: each is an error that names the module, since loading it
some other way would measure another model.
"""

from collections import defaultdict
from collections.abc import Mapping

from scoremode.checkpoint.files import FLOATS, Checkpoint, TensorInfo
from scoremode.errors import CheckpointError, ScoremodeError, UnsupportedFormat
from scoremode.schemes.base import FactoredScheme
from scoremode.schemes.config import QuantizationConfig, parse_quantization
from scoremode.schemes.dense import Dense
from scoremode.schemes.foreign import foreign_tensors, sparse_format
from scoremode.schemes.registry import FORMATS
from scoremode.schemes.stored import Stored

__all__ = ["Schemes", "dense_of", "resolve"]

# A tensor that is there only where its module is quantized.
_MARKS = ("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape")
_MODELOPT = "hf_quant_config.json"


class Schemes:
    """The formats of a checkpoint's modules.

    - `quantized`: module name → Scheme, for every module with a quantized weight.
    - `config`: the parsed `quantization_config`, None for a dense checkpoint.
    """

    def __init__(self, quantized: Mapping[str, FactoredScheme], config: QuantizationConfig | None):
        self.quantized = dict(quantized)
        self.config = config

    def claims(self, module: str) -> bool:
        """Whether the config wants the linear `module` quantized."""
        group = self.config.group_of(module) if self.config else None
        return group is not None and group.weights is not None


def dense_of(info: TensorInfo) -> Dense:
    """The Scheme of a float tensor. Raises CheckpointError for any other dtype."""
    if info.dtype not in FLOATS:
        raise CheckpointError(
            f"{info.file}: tensor {info.name} has dtype {info.dtype}, not a float's"
        )
    return Dense(info.shape, info.dtype, info.name.rpartition(".")[2])


def resolve(checkpoint: Checkpoint, refusals: dict[str, ScoremodeError] | None = None) -> Schemes:
    """The Schemes of a checkpoint, by its headers alone.

    Raises UnsupportedFormat or CheckpointError, naming the module; with `refusals` given, collects
    them there by module instead.
    """
    modules: dict[str, dict[str, TensorInfo]] = defaultdict(dict)
    for name, info in checkpoint.tensors.items():
        module, _, suffix = name.rpartition(".")
        modules[module][suffix] = info
    config = parse_quantization(checkpoint.quantization) if checkpoint.quantization else None
    quantized: dict[str, FactoredScheme] = {}
    for module, tensors in modules.items():
        if not _is_quantized(tensors):
            continue
        try:
            quantized[module] = _scheme(module, tensors, config, checkpoint)
        except ScoremodeError as error:
            if refusals is None:
                raise
            refusals[module] = error
    return Schemes(quantized, config)


def _is_quantized(tensors: Mapping[str, TensorInfo]) -> bool:
    weight = tensors.get("weight")
    return (
        any(mark in tensors for mark in _MARKS)
        or (weight is not None and weight.dtype not in FLOATS)
        or foreign_tensors(tensors) is not None
    )


def _undeclared(
    module: str, tensors: Mapping[str, TensorInfo], checkpoint: Checkpoint
) -> CheckpointError:
    if (checkpoint.path / _MODELOPT).exists():
        return UnsupportedFormat(
            f"{module}: {_MODELOPT} (ModelOpt; vLLM can score it: --engine vllm): not decoded"
        )
    names = ", ".join(sorted(tensors))
    below = (name for name in checkpoint.tensors if name.startswith(f"{module}."))
    library = foreign_tensors(name.rpartition(".")[2] for name in below)
    looks = f"; it looks like {library}" if library else ""
    return CheckpointError(
        f"{module} is stored quantized ({names}), and config.json says nothing{looks}"
    )


def _scheme(
    module: str,
    tensors: Mapping[str, TensorInfo],
    config: QuantizationConfig | None,
    checkpoint: Checkpoint,
) -> FactoredScheme:
    if config is None:
        raise _undeclared(module, tensors, checkpoint)
    group = config.group_of(module)
    if group is None:
        raise CheckpointError(f"{module} is stored quantized, and no quantization group claims it")
    if group.weights is None:
        raise CheckpointError(
            f"{module} is stored quantized, and group {group.name} quantizes no weights"
        )
    form = group.format or config.format
    if form == "mixed-precision":
        raise CheckpointError(
            f"{module}: quantized with mixed precision, and group {group.name} names no format"
        )
    if form not in FORMATS:
        why = sparse_format(form) or f"format {form}: not known, or not one of packed weights"
        raise UnsupportedFormat(f"{module}: {why}")
    return FORMATS[form](
        Stored(
            module=module,
            format=form,
            tensors=tensors,
            group=group,
            weights=group.weights,
            version=config.version,
            has_cache_scheme=config.kv_cache is not None,
            read=checkpoint.read,
        )
    )
