"""From headers and `quantization_config` to one Scheme a module.

Both must say the same. A quantized tensor that the config doesn't claim, a claimed module that is
stored dense, a shape that fits neither: each is an error that names the module, since loading it
some other way would measure another model.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping

from scoremode.checkpoint.files import FLOATS, Checkpoint, TensorInfo
from scoremode.errors import CheckpointError, ScoremodeError, UnsupportedFormat
from scoremode.schemes.base import Scheme
from scoremode.schemes.config import Group, QuantizationConfig, TensorFormat, parse_quantization
from scoremode.schemes.dense import Dense
from scoremode.schemes.pack_quantized import PackQuantized

__all__ = ["Schemes", "resolve"]

# A tensor that is there only where its module is quantized.
_MARKS = ("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape")
_BITS_PACKED = (4, 8)


class Schemes:
    """The formats of a checkpoint's modules.

    - `quantized`: module name → Scheme, for every module with a quantized weight.
    - `config`: the parsed `quantization_config`, None for a dense checkpoint.
    """

    def __init__(self, quantized: Mapping[str, Scheme], config: QuantizationConfig | None):
        self.quantized = dict(quantized)
        self.config = config

    def claims(self, module: str) -> bool:
        """Whether the config wants the linear `module` quantized."""
        return self.config is not None and self.config.group_of(module) is not None


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
    quantized: dict[str, Scheme] = {}
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
    return any(mark in tensors for mark in _MARKS) or (
        weight is not None and weight.dtype not in FLOATS
    )


def _scheme(
    module: str,
    tensors: Mapping[str, TensorInfo],
    config: QuantizationConfig | None,
    checkpoint: Checkpoint,
) -> Scheme:
    if config is None and (checkpoint.path / "hf_quant_config.json").exists():
        raise UnsupportedFormat(f"{module}: hf_quant_config.json (ModelOpt) is not supported yet")
    if config is None:
        names = ", ".join(sorted(tensors))
        raise CheckpointError(
            f"{module} is stored quantized ({names}), and config.json says nothing"
        )
    # A quantized embedding is claimed by its name; everything else stored so is a linear.
    group = config.group_of(module)
    if group is None:
        raise CheckpointError(f"{module} is stored quantized, and no quantization group claims it")
    weights = group.weights
    if weights is None:
        raise CheckpointError(
            f"{module} is stored quantized, and group {group.name} quantizes no weights"
        )
    form = group.format or config.format
    _refuse_unsupported(module, form, weights, group, tensors)
    return _pack_quantized(module, weights, tensors, checkpoint)


def _refuse_unsupported(
    module: str,
    form: str | None,
    weights: TensorFormat,
    group: Group,
    tensors: Mapping[str, TensorInfo],
) -> None:
    activations = " and ".join(
        f"{what} {value}"
        for what, value in (("inputs", group.inputs), ("outputs", group.outputs))
        if value is not None
    )
    title = f"format {form} (weights {weights}{', ' + activations if activations else ''})"
    packed = tensors.get("weight_packed")
    if (
        form not in ("pack-quantized", "mixed-precision")
        or packed is None
        or packed.dtype != "I32"
        or activations
        or weights.type != "int"
        or weights.bits not in _BITS_PACKED
        or weights.strategy not in ("group", "channel", "tensor")
    ):
        raise UnsupportedFormat(f"{module}: {title} is not supported yet")


def _pack_quantized(
    module: str,
    weights: TensorFormat,
    tensors: Mapping[str, TensorInfo],
    checkpoint: Checkpoint,
) -> PackQuantized:
    shape = _stored_shape(module, tensors, checkpoint)
    rows, columns = shape
    scheme = PackQuantized(
        shape=shape,
        bits=weights.bits,
        strategy=weights.strategy,
        group_size=weights.group_size if weights.strategy == "group" else None,
        has_zero_point=not weights.symmetric,
        has_g_idx=weights.actorder == "group",
    )
    if weights.strategy == "group" and weights.group_size is None:
        raise CheckpointError(f"{module}: quantized by group, and its group size is not given")
    if scheme.has_g_idx and scheme.group_size is None:
        raise CheckpointError(f"{module}: in activation order by group, and has no groups")
    if not scheme.has_g_idx and "weight_g_idx" in tensors:
        raise CheckpointError(f"{module}: has weight_g_idx, and the config says no actorder group")
    if weights.symmetric and "weight_zero_point" in tensors:
        raise CheckpointError(f"{module}: has zero points, and the config says symmetric")

    def words(n: int) -> int:
        return -(-n * weights.bits // 32)

    one = weights.strategy == "tensor"
    _expect(module, tensors, "weight_packed", ("I32",), [(rows, words(columns))])
    scales: list[tuple[int, ...]] = [(1,), (1, 1), ()] if one else [(rows, scheme.groups)]
    if not one and scheme.groups == 1:
        scales.append((rows,))
    _expect(module, tensors, "weight_scale", ("BF16", "F16", "F32"), scales)
    if scheme.has_zero_point and one:
        _expect(module, tensors, "weight_zero_point", ("I8",), [(1,), (1, 1), ()])
    elif scheme.has_zero_point:
        _expect(module, tensors, "weight_zero_point", ("I32",), [(words(rows), scheme.groups)])
    if scheme.has_g_idx:
        _expect(module, tensors, "weight_g_idx", ("I32", "I64"), [(columns,)])
        _check_order(module, checkpoint, scheme)
    unknown = set(tensors) - {*scheme.tensors, "weight_shape", "bias"}
    if unknown:
        raise UnsupportedFormat(
            f"{module}: {scheme.label} with {', '.join(sorted(unknown))} is not supported yet"
        )
    return scheme


def _stored_shape(
    module: str, tensors: Mapping[str, TensorInfo], checkpoint: Checkpoint
) -> tuple[int, int]:
    _expect(module, tensors, "weight_shape", ("I64", "I32"), [(2,)])
    rows, columns = (int(n) for n in checkpoint.read(tensors["weight_shape"].name))
    if rows < 1 or columns < 1:
        raise CheckpointError(f"{module}.weight_shape is {rows} x {columns}")
    return rows, columns


def _check_order(module: str, checkpoint: Checkpoint, scheme: PackQuantized) -> None:
    """Every group has its `group_size` inputs, the last one what is left."""
    columns, size = scheme.shape[1], scheme.group_size
    assert size is not None
    given = Counter(checkpoint.read(f"{module}.weight_g_idx").tolist())
    if given != Counter(i // size for i in range(columns)):
        raise CheckpointError(
            f"{module}.weight_g_idx doesn't put {columns} inputs into groups of {size}"
        )


def _expect(
    module: str,
    tensors: Mapping[str, TensorInfo],
    suffix: str,
    dtypes: tuple[str, ...],
    shapes: list[tuple[int, ...]],
) -> None:
    info = tensors.get(suffix)
    if info is None:
        raise CheckpointError(f"{module}: quantized, and its tensor {suffix} is missing")
    if info.dtype not in dtypes:
        raise CheckpointError(
            f"{info.file}: tensor {info.name} has dtype {info.dtype}, "
            f"expected {' or '.join(dtypes)}"
        )
    if info.shape not in shapes:
        raise CheckpointError(
            f"{info.file}: tensor {info.name} has shape {list(info.shape)}, "
            f"expected {list(shapes[0])}"
        )
