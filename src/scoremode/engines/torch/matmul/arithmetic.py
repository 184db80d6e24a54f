"""The arithmetic that runs: quantized weights alone, or activations quantized too where the
checkpoint says so; of a GGUF file also llama.cpp's own, which says how by the weight's type.

A checkpoint may say more than is measured (a W4A4 model as a kernel for weights alone would run it).
What is declared and what ran go into every record.
"""

from collections import Counter
from typing import Any, Literal

from scoremode.engines.torch.device import Device
from scoremode.engines.torch.matmul.linears import QuantizedMatmul, Windows
from scoremode.errors import UsageError
from scoremode.schemes.base import FactoredScheme, Scheme
from scoremode.schemes.resolve import Schemes

__all__ = ["Arithmetic", "Mode"]

Mode = Literal["auto", "weights", "weights+activations", "llama.cpp"]


class Arithmetic:
    """The mode of one engine, and the products that its linears have.

    `auto` quantizes activations where the checkpoint declares it; `weights+activations` also where
    it does not and kernels for its weights do. `llama.cpp` rounds inputs as its CPU build does, keys
    and values to float16, and computes all else in float32. Raises UsageError where either is asked of
    what has none of it; `is_gguf`: whether the checkpoint is a GGUF file.
    """

    def __init__(self, wanted: Mode, schemes: Schemes, device: Device, *, is_gguf: bool = False):
        inputs = {s.inputs for s in schemes.quantized.values() if s.inputs is not None}
        self.declared = ", ".join(sorted({i.label for i in inputs if i.declared})) or None
        if wanted == "weights+activations" and not inputs:
            instead = "; llama.cpp's own: --arithmetic llama.cpp" if is_gguf else ""
            raise UsageError(
                "--arithmetic weights+activations: the checkpoint declares no quantized activations"
                f"{instead}"
            )
        if wanted == "llama.cpp" and not is_gguf:
            raise UsageError("--arithmetic llama.cpp: is for GGUF files, and this is none")
        self.is_llama_cpp = wanted == "llama.cpp"
        self._wanted = wanted
        self.windows = Windows()
        self._device = device
        self._products: Counter[tuple[str, str, str, bool]] = Counter()

    @property
    def mode(self) -> str:
        """Arithmetic of the linears counted: those that declare quantized activations may all lie in
        parts that don't run."""
        if self.is_llama_cpp:
            return "llama.cpp"
        return "weights+activations" if self._products else "weights"

    def quantizes_input_of(self, scheme: Scheme) -> bool:
        inputs = scheme.inputs
        if inputs is None or self._wanted == "weights":
            return False
        return inputs.declared or self._wanted in ("weights+activations", "llama.cpp")

    def matmul(self, scheme: Scheme, groups: int = 1) -> QuantizedMatmul:
        """The product of a linear with this Scheme, whose input it quantizes, or its `groups`."""
        assert isinstance(scheme, FactoredScheme)
        matmul = QuantizedMatmul(scheme, self._device, self.windows, groups)
        self.note(scheme, matmul.product.name, native=matmul.product.native)
        return matmul

    def note(self, scheme: Scheme, product: str, *, native: bool = False) -> None:
        """Counts a linear's product by the name that the record has for it."""
        assert scheme.inputs is not None
        self._products[scheme.label, scheme.inputs.label, product, native] += 1

    def check_ran(self) -> None:
        """Raises UsageError where quantized activations are asked for and no linear has them."""
        if self._wanted == "weights+activations" and not self._products:
            has = f"declares {self.declared}" if self.declared else "has quantized activations"
            raise UsageError(
                f"--arithmetic weights+activations: the checkpoint {has} only for what is no part of "
                "the language model"
            )

    def to_json(self) -> dict[str, Any]:
        """Facts for a record: the mode, what is declared of activations and what ran, and how."""
        ran = "quantized" if self._products else "not quantized" if self.declared else None
        names = "format", "inputs", "product", "native"
        return {
            "arithmetic": self.mode,
            "activations": {
                "declared": self.declared,
                "ran": ran,
            },
            "products": [
                dict(zip(names, product, strict=True)) | {"linears": linears}
                for product, linears in sorted(self._products.items())
            ],
        }
