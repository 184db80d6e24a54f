"""A linear that quantizes its input, in the place of the library's own, and the arithmetic that runs.

The module stays where it is, with its bias and its hooks; only its forward is replaced. Its weight
parameter stays without data: a model that reaches past the forward for the weight fails instead of
computing with codes. Linears that are given the same input one after the other (q, k, v; gate, up)
share its codes.

A checkpoint may declare more than is measured (a W4A4 model as a kernel for weights alone would run
it): quantized weights alone, or activations quantized too where the checkpoint says so; of a GGUF file
also llama.cpp's own, which says how by the weight's type. What is declared and what ran go into every
record.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn

from scoremode.engines.torch.device import Device
from scoremode.engines.torch.matmul.products import Product, choose_product
from scoremode.engines.torch.matmul.sums import Operands
from scoremode.errors import UnsupportedModel, UsageError
from scoremode.schemes.activations.ggml import GgmlInputs
from scoremode.schemes.base import ColumnScheme, FactoredScheme, Scheme, Scratch
from scoremode.schemes.decoding.codes import Quantized
from scoremode.schemes.resolve import Schemes

Mode = Literal["auto", "weights", "weights+activations", "llama.cpp"]


class Windows:
    """Switch between a dynamic scale `per tensor`, or columns of outliers, for each window of a batch
    and one for all of them.

    Either spans a whole window, so a state does depend on tokens after it, by that alone. The
    proof that it does not otherwise needs rows that share it.

    - `are_spanned`: whether there is such a scale, or such columns.
    """

    def __init__(self) -> None:
        self.apart = True
        self.are_spanned = False
        self.latest = LatestInput()

    @contextmanager
    def together(self) -> Iterator[None]:
        self.apart = False
        try:
            yield
        finally:
            self.apart = True


class LatestInput:
    """Codes of the input that a linear was given last, for the next linear that is given the very same.

    The tensor is held as long as its codes are, so that no other can be in its place, and its version
    tells whether torch wrote to it; one that a kernel writes to behind torch's back has to be marked so
    (`torch.autograd.graph.increment_version`). A linear that comes again is in another call of its
    layer, and has its input quantized anew in any case.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._of: tuple[torch.Tensor, int, Any] | None = None
        self._codes: Quantized | None = None
        self._users: list[object] = []

    def get(
        self, x: torch.Tensor, how: Any, user: object, quantize: Callable[[], Quantized]
    ) -> Quantized:
        """Codes of `x`, as `quantize` makes them; `how` is equal for those who would make the same."""
        version = 0 if x.is_inference() else x._version
        if self._of is not None and self._codes is not None:
            tensor, then, made = self._of
            is_new = any(user is other for other in self._users)
            if tensor is x and then == version and made == how and not is_new:
                self._users.append(user)
                return self._codes
        # What was kept goes first, and makes room.
        self.forget()
        codes = quantize()
        if not x.is_inference():
            self._of, self._codes, self._users = (x, version, how), codes, [user]
        return codes


class QuantizedMatmul:
    """x · Wᵀ with both sides quantized, for one weight at a time.

    `load` gives it the weight, the static scales of its input and memory to work in; `unload` takes
    them away. `groups`: into how many the rows fall, each of which multiplies an input of its own.
    """

    def __init__(self, scheme: FactoredScheme, device: Device, windows: Windows, groups: int = 1):
        assert scheme.inputs is not None
        self.scheme = scheme
        self.inputs = scheme.inputs
        rows, columns = scheme.shape
        self._groups = groups
        self.product: Product = choose_product(
            scheme.inputs.codes,
            scheme.codes,
            (rows // groups, columns),
            device,
            minimums=isinstance(scheme.inputs, GgmlInputs) and scheme.inputs.summed is not None,
        )
        self._windows = windows
        windows.are_spanned |= self.inputs.spans_window
        self._loaded: tuple[Quantized, Mapping[str, torch.Tensor], Scratch] | None = None
        self._stored: Mapping[str, torch.Tensor] = {}
        # Static scales loaded last, and their values.
        self._static: Mapping[str, torch.Tensor] = {}
        self._values: tuple[Any, ...] = ()

    def load(
        self,
        weight: Quantized,
        static: Mapping[str, torch.Tensor],
        scratch: Scratch,
        stored: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """`stored`: what `weight` was made of, for formats that multiply some columns apart."""
        self._loaded, self._stored = (weight, static, scratch), stored or {}
        if any(tensor is not self._static.get(suffix) for suffix, tensor in static.items()):
            # Not for tensors that are the same ones: reading waits for a GPU.
            self._values = tuple((s, *t.flatten().tolist()) for s, t in static.items())
            self._static = static

    def unload(self) -> None:
        self._loaded, self._stored = None, {}
        self._windows.latest.forget()

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """[..., O] in the dtype of `x` [..., I], rounded to it once, after the bias; where columns are
        apart once more, after their product. In groups [..., G, O / G] of [..., G, I]."""
        assert self._loaded is not None, "a linear was used without its weight"
        weight, static, scratch = self._loaded
        apart, dtype = self._windows.apart, self.product.dtype

        def quantize() -> Quantized:
            rows = x if apart else x.reshape(1, -1, x.shape[-1])
            return self.inputs.quantize(rows, static, dtype)

        how = self.inputs, self._values, dtype, apart
        quantized = self._windows.latest.get(x, how, self, quantize)
        if self._groups > 1:
            assert bias is None and not quantized.apart and weight.minimum is None
            by_group = zip(self._split_input(quantized), self._split_rows(weight), strict=True)
            parts = [
                self.product.multiply(Operands(a, b, scratch, None, x.dtype)) for a, b in by_group
            ]
            return torch.stack(parts, 1).view(*x.shape[:-1], -1)
        y = self.product.multiply(Operands(quantized, weight, scratch, bias, x.dtype))
        if quantized.apart:
            self._add_columns(y, x, quantized.apart)
        return y.view(*x.shape[:-1], -1)

    def _split_input(self, x: Quantized) -> list[Quantized]:
        """Each group's rows of codes [N·G, I]."""
        each = range(self._groups)
        scale = x.scale
        scales = [scale if len(scale) == 1 else scale[g :: self._groups].contiguous() for g in each]
        return [Quantized(x.codes[g :: self._groups].contiguous(), s) for g, s in enumerate(scales)]

    def _split_rows(self, weight: Quantized) -> list[Quantized]:
        """Each group's rows of codes [O, I]."""
        codes, scale = weight.codes.chunk(self._groups), weight.scale
        scales = [scale] * self._groups if len(scale) == 1 else scale.chunk(self._groups)
        return [Quantized(c, s) for c, s in zip(codes, scales, strict=True)]

    def _add_columns(
        self, y: torch.Tensor, x: torch.Tensor, apart: tuple[torch.Tensor, ...]
    ) -> None:
        """Adds to `y` [N, O] what each window's columns `apart` give, in its dtype: a window at a time,
        so that none's sums depend on another."""
        assert isinstance(self.scheme, ColumnScheme)
        windows, outputs = (t.reshape(len(apart), -1, t.shape[-1]) for t in (x, y))
        for values, sums, columns in zip(windows, outputs, apart, strict=True):
            if len(columns):
                weight = self.scheme.columns(self._stored, columns, x.dtype)
                sums.addmm_(values[:, columns], weight.T)


class InputFactor:
    """Factors of one linear's input, element by element, before all else (AWQ's).

    `load` gives it the factors [I], `unload` takes them away.
    """

    def __init__(self) -> None:
        self._factor: torch.Tensor | None = None

    def load(self, factor: torch.Tensor) -> None:
        self._factor = factor

    def unload(self) -> None:
        self._factor = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The product in the dtype of `x` [..., I], as kernels are given it."""
        assert self._factor is not None, "a linear was used without its input's factors"
        return x * self._factor.to(x.dtype)


def multiply_input(linear: nn.Module, name: str, factor: InputFactor) -> None:
    """Has `linear`, which may quantize its input, get it multiplied. Raises UnsupportedModel for what
    is no plain linear."""
    if not isinstance(linear, nn.Linear) or type(linear).forward is not nn.Linear.forward:
        raise UnsupportedModel(
            f"{name} is a {type(linear).__name__}, and the checkpoint has factors for its inputs: only "
            "plain linears' can be multiplied"
        )
    forward = linear.forward
    linear.forward = lambda input: forward(factor(input))


def groups_of(linear: nn.Module) -> int | None:
    """1 for a plain linear, and for one that multiplies [..., G, I] by G parts of its rows, group by
    group (DeepSeek-V4's), their number; None for what is neither, or may be."""
    if not isinstance(linear, nn.Linear):
        return None
    if type(linear).forward is nn.Linear.forward:
        return 1
    groups = getattr(linear, "n_groups", None)
    # So transformers knows one.
    if "GroupedLinear" not in type(linear).__name__ or not isinstance(groups, int):
        return None
    if linear.bias is not None or linear.out_features % groups:
        return None
    # Its own forward on a few numbers, since a name is no proof.
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(groups, 2, 3, generator=generator)
    x = torch.randn(1, 4, groups, 3, generator=generator)
    probe = copy.copy(linear)
    probe.__dict__["_parameters"] = {"weight": nn.Parameter(weight.flatten(0, 1), False)}
    found = type(linear).forward(probe, x)
    expected = torch.einsum("btgi,goi->btgo", x, weight)
    same = found.shape == expected.shape and torch.allclose(found, expected, atol=1e-5)
    return groups if same else None


def quantize_forward(linear: nn.Module, name: str, matmul: QuantizedMatmul) -> None:
    """Has `linear` compute by `matmul`. Raises UnsupportedModel for what is no plain linear and none in
    groups, and for groups that share blocks."""
    groups = groups_of(linear)
    if groups is None:
        raise UnsupportedModel(
            f"{name} is a {type(linear).__name__}, and its inputs would be quantized: only "
            "plain linears' can be; --arithmetic weights measures it without"
        )
    rows = matmul.scheme.shape[0] // groups
    if groups > 1 and rows % matmul.scheme.codes.rows:
        raise UnsupportedModel(
            f"{name} has groups of {rows} rows, and scales for blocks of {matmul.scheme.codes.rows}: "
            "its inputs can't be quantized; --arithmetic weights measures it without"
        )

    def forward(input: torch.Tensor) -> torch.Tensor:
        if matmul.inputs.spans_window and input.dim() != 3:
            raise UnsupportedModel(
                f"{name} gets its tokens as {list(input.shape)}, its windows not apart, and its input "
                f"({matmul.inputs.label}, dynamic) {matmul.inputs.by_window}: not supported; "
                "--arithmetic weights measures it without"
            )
        return matmul(input, linear._parameters.get("bias"))

    linear.forward = forward


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
