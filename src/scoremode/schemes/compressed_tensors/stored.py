"""A quantized module as a checkpoint stores it: headers, config, and the checks every format needs.

A format's `build` takes a `Stored` and returns a Scheme, or raises naming the module and what does not
fit: a missing tensor, a dtype, a shape, a field that the format doesn't have.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from scoremode.errors import UnsupportedFormat
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import FactoredScheme
from scoremode.schemes.compressed_tensors.config import Group, QuantizationConfig
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.headers import SCALES, Headers
from scoremode.schemes.tensor_format import TensorFormat

__all__ = ["SCALES", "Stored"]

Built = TypeVar("Built", bound=FactoredScheme)
# Left by a cache's quantization in its own checkpoints; they belong to the cache.
_OF_THE_CACHE = {"output_scale", "output_zero_point"}


@dataclass(frozen=True)
class Stored(Headers):
    """A module's tensors by suffix, the group of `config` that claims it, with the format of its
    `weights`, and a reader of small tensors' bytes."""

    config: QuantizationConfig
    group: Group
    weights: TensorFormat
    read: Callable[[str], bytes]

    @property
    def format(self) -> str:
        """The format's name."""
        return str(self.group.format or self.config.format)

    def unsupported(self, what: str) -> UnsupportedFormat:
        return UnsupportedFormat(f"{self.module}: {self.format} with {what} is not supported")

    def has_zero_points(self) -> bool:
        """Tells whether the weights have some. Raises CheckpointError where only the tensors say so."""
        if self.weights.symmetric and "weight_zero_point" in self.tensors:
            raise self.wrong("has zero points, and the config says symmetric")
        return not self.weights.symmetric

    def scaling(self, shape: tuple[int, int]) -> Scaling:
        """The Scaling of the weights. Raises CheckpointError for a size that is not given."""
        weights = self.weights
        if weights.strategy == "block":
            if weights.block is None:
                raise self.wrong("quantized by block, and its block_structure is not given")
            return Scaling(shape, "block", block=weights.block)
        if weights.strategy not in ("group", "tensor_group"):
            return Scaling(shape, weights.strategy)
        if weights.group_size is None:
            raise self.wrong("quantized by group, and its group size is not given")
        return Scaling(shape, "group", weights.group_size)

    def expect_scale(self, suffix: str, dtypes: tuple[str, ...], scaling: Scaling) -> None:
        """Scales or zero points; one a row may be a vector, one a tensor of any rank."""
        shape = scaling.stored_shape
        if scaling.strategy == "tensor":
            self.expect_one(suffix, dtypes)
        else:
            self.expect(suffix, dtypes, [shape, shape[:1]] if shape[1] == 1 else [shape])

    def inputs(self, columns: int) -> Inputs | None:
        """Returns how the config has the module's input quantized, its static tensors checked."""
        if self.group.outputs is not None:
            raise self.unsupported(f"quantized outputs ({self.group.outputs})")
        f = self.group.inputs
        if f is None:
            return None
        known = {("int", bits) for bits in range(2, 9)} | {("float", bits) for bits in (4, 6, 8)}
        local = f.strategy == "tensor_group"
        by_group = f.strategy in ("group", "tensor_group")
        if (
            (f.type, f.bits) not in known
            or (f.type == "float" and not f.symmetric)
            or f.strategy not in ("token", "tensor", "group", "tensor_group")
            or (local and (f.type, f.bits, f.dynamic) != ("float", 4, "local"))
            or (f.dynamic == "local" and not local)
            or (f.dynamic is False and f.strategy != "tensor")
            or by_group != (f.group_size is not None)
        ):
            dynamic = {False: "static ", True: "dynamic ", "local": "local "}[f.dynamic]
            raise self.unsupported(f"inputs {dynamic}{f}")
        if f.group_size and columns % f.group_size:
            raise self.wrong(f"its {columns} inputs are quantized in groups of {f.group_size}")
        tensors: tuple[str, ...] = ()
        if local:
            self.check_input("input_global_scale")
            tensors = ("input_global_scale",)
        elif f.dynamic is False:
            self.check_input("input_scale")
            tensors = ("input_scale",)
            if not f.symmetric:
                self.check_input("input_zero_point", ("I8",))
                tensors += ("input_zero_point",)
            elif "input_zero_point" in self.tensors:
                # Older releases stored those of symmetric inputs too.
                self._expect_zero("input_zero_point")
        return Inputs(f, tensors)

    def used_by(self, scheme: Built, *others: str) -> Built:
        """The `scheme`. Raises UnsupportedFormat for tensors that neither it nor anything else uses."""
        known = {
            *scheme.tensors,
            *(scheme.inputs.tensors if scheme.inputs else ()),
            *others,
            "bias",
        }
        if self.config.kv_cache is not None:
            known |= _OF_THE_CACHE
        if self.group.inputs and self.group.inputs.symmetric:
            known.add("input_zero_point")
        if unknown := set(self.tensors) - known:
            raise self.unsupported(", ".join(sorted(unknown)))
        return scheme

    def _expect_zero(self, suffix: str) -> None:
        self.expect_one(suffix, ("I8", "I32", "F8_E4M3", *SCALES))
        # A zero of any of them, a negative one included, has no bit but the sign's.
        content = self.read(f"{self.module}.{suffix}")
        if int.from_bytes(content, "little") not in (0, 0x80 << 8 * (len(content) - 1)):
            raise self.wrong(f"is symmetric, and its {suffix} is not zero")
