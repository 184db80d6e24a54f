"""Quantized activations: what a checkpoint says of a linear's input, and the quantizer that does it.

Everything is computed in float32 from the input as it comes, codes and scales as compressed-tensors'
fake-quantized forward computes them in that dtype: scale from the extremes, division by it, clamp,
round half to even. Two libraries do otherwise: torchao rounds its dynamic scales to the input's dtype,
and torchao and Quark multiply by an integer's inverse scale, which rounds twice. What is returned are
codes and scales, apart: the fake-quantized value is their product, and a linear needs only the codes'
products. On CUDA one kernel does it (kernels.py). LLM.int8 quantizes by `quantize_apart`.
Source: compressed-tensors 0.20, `compute_dynamic_scales_and_zp`, `calculate_qparams`, `fake_quantize`;
ModelOpt 0.47, `fp8_quantize_scale`, for a global scale that multiplies; torchao 0.18,
`_choose_qparams_affine`, `_quantize_affine`, `_choose_scale_float8`; Quark 0.13,
`calculate_int_quant_params`, `fake_quantize_per_tensor_affine`.

LLM.int8 has int8 by token, and columns with an outlier apart. Which columns are apart depends on all
tokens that go through the linear at once. Here these are the tokens of one window, as when the library
runs on it alone: no window's columns depend on what else is in its batch, and a state does know that
much of the tokens after it.

An input is rounded to float16 first. A token's scale is its largest magnitude below the threshold,
whichever column that lies in, over 127; codes of all tokens are zero in the columns apart.
Source: bitsandbytes 0.50, `int8_vectorwise_quant` on a CPU; its CUDA kernel divides approximately.
"""

from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from scoremode.lib.fallback import attempt
from scoremode.schemes.decoding.codes import FLOAT_MAX, Codes, Quantized, mx_exponents, round_float
from scoremode.schemes.decoding.unpack import Tensors, exponent_scales, row_blocks
from scoremode.schemes.fields import TensorFormat

# The substitutes for a scale of zero: float8's and float32's.
_SCALE_TINY = 0.125
_EPS = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Inputs:
    """The format in which the input of one linear is quantized.

    - `tensors`: suffixes of the static scales and zero points that the checkpoint holds for it. NVFP4's
      global scale divides as `input_global_scale`, and multiplies as ModelOpt's `input_scale`.
    - `declared`: whether the checkpoint says it. What it doesn't, some kernels for its weights do, and
      `--arithmetic weights+activations` asks for.
    """

    format: TensorFormat
    tensors: tuple[str, ...]
    declared: bool = True

    @property
    def label(self) -> str:
        """Such as `int8 token`, `float8 tensor static`."""
        f = self.format
        by = f"group {f.group_size}" if f.group_size else f.strategy
        how = {False: " static", "local": " local"}.get(f.dynamic, "")
        more = " ue8m0" if f.powers_of_two else ""
        if f.outliers is not None:
            more = f", outliers from {f.outliers:g} apart" if f.outliers else ", no outliers apart"
        if not self.declared:
            more += ", not declared"
        return f"{f.type}{f.bits} {by}{how}{'' if f.symmetric else ' asymmetric'}{more}"

    @property
    def scales(self) -> tuple[str, ...]:
        """The suffixes in `tensors` that are not of zero points."""
        return tuple(name for name in self.tensors if name.endswith("_scale"))

    @property
    def spans_window(self) -> bool:
        """True where all tokens of a window share what is made of them: a scale, or LLM.int8's columns
        of outliers."""
        f = self.format
        return (f.strategy == "tensor" and f.dynamic is True) or bool(f.outliers)

    @property
    def by_window(self) -> str:
        """The quantity that is computed once a window, for sentences on inputs that span one."""
        return "has its outliers by the window" if self.format.outliers else "has a scale a window"

    @property
    def codes(self) -> Codes:
        f = self.format
        if f.type == "int":
            # A zero point is any int8, so that less of it is no int8 any more.
            return Codes("int", (1 << (f.bits - 1)) if f.symmetric else 255, f.group_size)
        # A power of two and a float8 scale are part of the code, exact in bfloat16.
        local = f.is_mx or f.strategy == "tensor_group"
        kind = "float8" if f.bits == 8 and not local else "float"
        return Codes(kind, None, None if local else f.group_size)

    def quantize(
        self, x: torch.Tensor, tensors: Tensors, dtype: torch.dtype = torch.float32
    ) -> Quantized:
        """Codes and scales of `x` float [..., I], rows flattened to [N, I].

        `tensors` are those of `self.tensors` by suffix, on the device of `x`; `dtype`: of the codes,
        one that holds them exactly. A dynamic scale `per tensor` is one for each window, and so are
        columns of outliers: `x` is [B, T, I] then, and [N, I] counts as one window.
        """
        if self.format.outliers is not None:
            by_window = x if x.dim() == 3 else x.reshape(1, -1, x.shape[-1])
            return quantize_apart(by_window, self.format.outliers, dtype)
        windows = len(x) if x.dim() == 3 else 1
        rows = x.reshape(-1, x.shape[-1])
        size, columns = self.format.group_size, rows.shape[1]
        if size and columns < size:
            narrow = replace(self, format=replace(self.format, group_size=columns))
            return narrow.quantize(rows, tensors, dtype)
        if size and columns % size:
            # A last group that is short: zeros change neither its extremes nor its codes.
            whole = self.quantize(functional.pad(rows, (0, -columns % size)), tensors, dtype)
            return Quantized(whole.codes[:, :columns].contiguous(), whole.scale)
        known = self._known(rows, windows, tensors)
        if x.is_cuda and (quantized := self._by_kernel(rows, known, dtype)) is not None:
            return quantized
        codes = torch.empty(rows.shape, dtype=dtype, device=x.device)
        scales = []
        holds_nan = dtype.is_floating_point
        # A block of rows at a time: it stays in a core's cache over all steps.
        for block in row_blocks((len(rows), rows.shape[1]), x.device):
            values = torch.empty(rows[block].shape, dtype=torch.float32, device=x.device)
            grouped = self._grouped(values.copy_(rows[block]))
            scales.append(self._codes(grouped, known.of(block), rows.dtype))
            codes[block].copy_(values)
            if not holds_nan:
                # An int8 code can't be NaN, so the row's scale is; a dynamic one is NaN by itself.
                lost = values.sum(1, keepdim=True).isnan()
                scales[-1] = torch.where(lost, torch.nan, scales[-1])
        is_one = holds_nan and (known.is_one or self.format.is_mx)
        return Quantized(codes, scales[0] if is_one else torch.cat(scales))

    def _by_kernel(
        self, rows: torch.Tensor, known: "_Known", dtype: torch.dtype
    ) -> Quantized | None:
        """Returns the bits that plain torch would give, in one launch; None where no kernel does it."""
        f = self.format
        if dtype == torch.int8 and (f.group_size or not f.symmetric):
            # No product wants these: a row's lost values would have to mark all of its groups.
            return None
        rows = rows.contiguous()
        codes = torch.empty(rows.shape, dtype=dtype, device=rows.device)
        scale = None
        if known.whole is not None:
            one = known.of_codes
        elif f.is_mx:
            one = torch.ones(1, 1, device=rows.device)
        elif known.scale is not None and dtype.is_floating_point:
            one = known.scale
        else:
            groups = rows.shape[1] // (f.group_size or rows.shape[1])
            one = scale = torch.empty(len(rows), groups, device=rows.device)

        def run() -> None:
            from scoremode.schemes.activations.kernels import quantize_lines

            given = known.scale if known.whole is None else known.whole
            quantize_lines(
                rows, f, given, known.zero_point, codes, scale, multiplies=known.multiplies
            )

        return Quantized(codes, one) if attempt("quantized inputs", rows.device, run) else None

    def _codes(self, x: torch.Tensor, known: "_Known", dtype: torch.dtype) -> torch.Tensor:
        """Turns `x` [n, groups, columns] into its codes in place; their scales [n or 1, groups].

        `dtype`: what `x` was stored in.
        """
        f = self.format
        if known.whole is not None:
            return _local(x, known)
        if f.is_mx:
            return _mx(x, f.bits)
        if f.type == "float":
            scale = known.scale
            if scale is None:
                scale = self._float_scale(x.abs().amax(2), dtype)
            round_float(x.div_(scale.unsqueeze(2)), f.bits)
            return scale
        low, high = self._range
        scale, zero_point = known.scale, known.zero_point
        if scale is None:
            scale, zero_point = self._range_scale(*self._extremes(x), dtype)
        if f.inverse:
            x.mul_(scale.reciprocal().unsqueeze(2))
        else:
            x.div_(scale.unsqueeze(2))
        if zero_point is not None:
            x.add_(zero_point.unsqueeze(2))
        x.clamp_(low, high).round_()
        if zero_point is not None:
            x.sub_(zero_point.unsqueeze(2))
        return scale

    def _known(self, rows: torch.Tensor, windows: int, tensors: Tensors) -> "_Known":
        """The scales known before any row is looked at by itself: static ones, those of a window."""
        if "input_global_scale" in self.tensors:
            return _Known(whole=tensors["input_global_scale"].float().view(1, 1))
        if "input_scale" in self.tensors and self.format.strategy == "tensor_group":
            return _Known(whole=tensors["input_scale"].float().view(1, 1), multiplies=True)
        if self.format.dynamic is False:
            zero_point = None
            (scale,) = self.scales
            if "input_zero_point" in self.tensors:
                zero_point = tensors["input_zero_point"].float().view(1, 1)
            return _Known(tensors[scale].float().view(1, 1), zero_point)
        if not self.spans_window:
            return _Known()
        extremes = self._extremes(self._grouped(rows.float()))
        smallest, largest = (
            reduce(e.view(windows, -1, 1), 1, keepdim=True).expand(-1, len(rows) // windows, 1)
            for reduce, e in zip((torch.amin, torch.amax), extremes, strict=True)
        )
        smallest, largest = smallest.reshape(-1, 1), largest.reshape(-1, 1)
        if self.format.type == "float":
            largest = torch.maximum(largest, -smallest)
            return _Known(self._float_scale(largest, rows.dtype))
        return _Known(*self._range_scale(smallest, largest, rows.dtype))

    @property
    def _range(self) -> tuple[int, int]:
        half = 1 << (self.format.bits - 1)
        return -half, half - 1

    def _float_scale(self, largest: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Scales of floats of this `largest` magnitude, of an input in `dtype`."""
        f = self.format
        scale = _nonzero(_rounded(_over(largest, FLOAT_MAX[f.bits]), f, dtype))
        return _raised(scale) if f.powers_of_two else scale

    def _range_scale(
        self, smallest: torch.Tensor, largest: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Scales and zero points of integers that span these extremes, of an input in `dtype`."""
        low, high = self._range
        if self.format.symmetric:
            largest = torch.maximum(largest, -smallest)
            scale = _rounded(_over(largest, (high - low) / 2), self.format, dtype)
            return (scale.clamp_min(_EPS) if self.format.inverse else _nonzero(scale)), None
        raw = _over(largest - smallest, high - low)
        # All zeros have no range: any zero point gives them back.
        zero_point = (low - smallest / raw).nan_to_num(low).clamp_(low, high).round_()
        return _nonzero(raw), zero_point

    def _extremes(self, grouped: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[n, groups], on either side of zero or at it."""
        smallest, largest = torch.aminmax(grouped, dim=2)
        return smallest.clamp_max_(0), largest.clamp_min_(0)

    def _grouped(self, x: torch.Tensor) -> torch.Tensor:
        """[N, groups, columns of one]."""
        return x.unflatten(1, (-1, self.format.group_size or x.shape[1]))


@dataclass(frozen=True)
class _Known:
    """Scales and zero points float32 [1 or N, 1] that do not depend on a row alone.

    - `whole`: NVFP4's global scale, which divides or, with `multiplies`, multiplies.
    """

    scale: torch.Tensor | None = None
    zero_point: torch.Tensor | None = None
    whole: torch.Tensor | None = None
    multiplies: bool = False

    @property
    def of_codes(self) -> torch.Tensor:
        """The scale by `whole` of codes that have their local scales in them."""
        assert self.whole is not None
        return self.whole if self.multiplies else 1 / self.whole

    @property
    def is_one(self) -> bool:
        """True where all rows have the same scale."""
        return self.whole is not None or (self.scale is not None and len(self.scale) == 1)

    def of(self, rows: slice) -> "_Known":
        def cut(values: torch.Tensor | None) -> torch.Tensor | None:
            return values if values is None or len(values) == 1 else values[rows]

        return _Known(cut(self.scale), cut(self.zero_point), self.whole, self.multiplies)


def _local(x: torch.Tensor, known: _Known) -> torch.Tensor:
    """NVFP4: e2m1 under a float8 scale a group, part of the code, under a global one.

    One that multiplies as ModelOpt's `fp8_quantize_scale` does it.
    """
    whole, largest = known.whole, x.abs().amax(2)
    assert whole is not None
    if known.multiplies:
        scale = largest / (whole * FLOAT_MAX[4])
    else:
        scale = _over(largest, FLOAT_MAX[4]) * whole
    scale = round_float(scale, 8)
    scale = torch.where(scale == 0, _SCALE_TINY, scale)
    step = scale * whole if known.multiplies else scale / whole
    round_float(x.div_(step.unsqueeze(2)), 4).mul_(scale.unsqueeze(2))
    return known.of_codes


def _mx(x: torch.Tensor, bits: int) -> torch.Tensor:
    """MXFP4/6/8: a power of two a group, part of the code."""
    exponent = mx_exponents(x.abs().amax(2), bits)
    scale = exponent_scales(torch.float32, x.device)[exponent].unsqueeze(2)
    round_float(x.div_(scale), bits).mul_(scale)
    return x.new_ones(1, 1)


def _over(values: torch.Tensor, number: float) -> torch.Tensor:
    """`values / number`, divided on CUDA too: a number there is taken as its inverse, which rounds
    twice."""
    return values / torch.full((), number, device=values.device)


def _rounded(scale: torch.Tensor, form: TensorFormat, dtype: torch.dtype) -> torch.Tensor:
    return scale.to(dtype).float() if form.rounded else scale


def _nonzero(scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale == 0, _EPS, scale)


def _raised(scale: torch.Tensor) -> torch.Tensor:
    """The next power of two of at least 2^-126, `scale` itself where it is one; NaN stays."""
    above = scale.contiguous().view(torch.int32) + 0x7FFFFF
    return torch.where(scale.isnan(), scale, (above & 0x7F800000).view(torch.float32))


def quantize_apart(x: torch.Tensor, threshold: float, dtype: torch.dtype) -> Quantized:
    """Codes [B·T, I] in `dtype` and scales of `x` float [B, T, I], whose columns are apart where a
    window has a magnitude of at least `threshold`, rounded to float16; in none where it is 0."""
    windows, tokens, width = x.shape
    limit = torch.tensor(threshold, dtype=torch.float16).item()
    codes = torch.empty(x.shape, dtype=dtype, device=x.device)
    scale = torch.empty(windows, tokens, 1, device=x.device)
    apart = torch.zeros(windows, width, dtype=torch.bool, device=x.device)
    # As many windows at a time as a block holds, of a larger one so many tokens.
    for some in row_blocks((windows, tokens * width), x.device):
        for rows in row_blocks((tokens, width), x.device):
            values = x[some, rows].half().float()
            if threshold:
                outlier = values.abs() >= limit
                apart[some] |= outlier.any(1)
                values.masked_fill_(outlier, 0)
            largest = values.abs().amax(2, keepdim=True)
            # The library's 127 / largest is torch's: the inverse, times 127.
            steps = largest.reciprocal().mul_(127).masked_fill_(largest == 0, 0)
            codes[some, rows] = values.mul_(steps).round_()
            scale[some, rows] = largest.mul_(1 / 127)
    columns: tuple[torch.Tensor, ...] = ()
    if threshold:
        # One wait for a GPU, and not one a window.
        columns = tuple(row.nonzero().flatten().to(x.device) for row in apart.cpu())
        for window, found in enumerate(columns):
            codes[window].index_fill_(1, found, 0)
    return Quantized(codes.view(-1, width), scale.view(-1, 1), columns)
