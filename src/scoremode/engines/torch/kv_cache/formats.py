"""Caches in a format that the user names, one a layer, with static scales measured in the run or given.

Everything is computed in float32 and in the order in which it is written here, so that a CPU and a GPU
give the same bits; what comes back is rounded once, to the dtype that is computed in. Sources, each at
the release of its format's function below: vLLM 0.32, llama.cpp 0c1e57098 (`quantize_row_*_ref`),
KIVI (`triton_quantize_and_pack_along_last_dim`), ModelOpt 0.47 (`fp8_quantize_scale`).

Measured scales are of the largest magnitudes of keys and values, rotated where the format rotates them,
over the plan's first windows that together have at most CALIBRATION_TOKENS tokens, the first one
always; each window runs by itself and with its keys and values as they are, once, before the first
pass. So they depend on neither passes nor micro-batches, nor on how many devices share a run.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from scoremode.engines.kv_formats import KvCache, KvFormat
from scoremode.engines.torch.kv_cache.layer_caches import (
    GivenScales,
    LayerCache,
    NoCache,
    cache_keywords,
    given_scales,
)
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.errors import UnsupportedModel, UsageError
from scoremode.lib.fallback import attempt
from scoremode.schemes.decoding.codes import E5M2_MAX, FLOAT_MAX, round_e5m2, round_float
from scoremode.schemes.decoding.unpack import row_blocks
from scoremode.text.plan import Plan

_HALVES = {"f16": torch.float16, "bf16": torch.bfloat16}
# The largest code of the formats whose scale is a largest magnitude over it.
_LARGEST = {"fp8_e4m3": FLOAT_MAX[8], "fp8_e5m2": E5M2_MAX, "int8": 127.0}
# No scale of a token's head is smaller (vLLM's).
_LEAST_SCALE = 1e-6
_EPS = torch.finfo(torch.float32).eps
# Steps to either side of zero, and codes above, of ggml's types: those with a minimum have no first.
_GGML = {"q4_0": (8, 15), "q5_0": (16, 31), "q4_1": (None, 15), "q5_1": (None, 31)}
CALIBRATION_TOKENS = 16384


def rounded(
    states: torch.Tensor, form: KvFormat, scale: torch.Tensor | None = None
) -> torch.Tensor:
    """`states` [B, heads, T, D] in a dtype of their own, as the cache gives them back in it.

    `scale`: of static ones, float32 [1] or [heads]. The result may share memory with `states` where
    nothing is rounded. `check_head` says beforehand whether D fits the format.
    """
    if form.as_it_is:
        return states
    if form.name in _HALVES:
        return states.to(_HALVES[form.name]).to(states.dtype)
    if form.paired:
        halves = states.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
        found = rounded(halves, replace(form, paired=False), scale)
        return found.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    if scale is None:
        scale = torch.ones(1, device=states.device)
    if states.is_cuda and (found := _by_kernel(states, form, scale)) is not None:
        return found
    out = torch.empty_like(states)
    heads, tokens, size = states.shape[1:]
    by_head = scale.view(-1, 1, 1)
    for window, into in zip(states, out, strict=True):
        # Some tokens at a time: they stay in a core's cache over all steps.
        for block in row_blocks((tokens, heads * size), states.device):
            into[:, block].copy_(_rounded(window[:, block].float(), form, by_head))
    return out


def check_head(form: KvFormat, size: int, what: str) -> None:
    """Raises UnsupportedModel, naming `what`, where heads of `size` don't divide as `form` wants."""
    for many, of in ((form.block, "blocks"), (form.rotated(size), "rotations")):
        if many is not None and (size % many or many < 2):
            raise UnsupportedModel(
                f"{what}: heads of {size} values don't divide into {of} of {many}: --kv-cache {form}"
            )


def rotated(x: torch.Tensor, form: KvFormat) -> torch.Tensor:
    """`x` float32 [..., D] by the orthonormal Walsh-Hadamard matrix of the format's size, block by
    block; its own inverse. `x` itself without a rotation.

    Sums and differences of halves, then of quarters, and so on; times 1/√n at the end.
    """
    many = form.rotated(x.shape[-1])
    if many is None:
        return x
    half = many // 2
    while half:
        one, other = x.unflatten(-1, (-1, 2, half)).unbind(-2)
        x = torch.stack((one + other, one - other), -2).flatten(-3)
        half //= 2
    return x.mul_(many**-0.5)


def largest_of(states: torch.Tensor, form: KvFormat) -> torch.Tensor:
    """The largest magnitude of each head, float32 [heads], of `states` [B, heads, T, D], rotated as
    the format says."""
    found = torch.zeros(states.shape[1], device=states.device)
    for window in states:
        for block in row_blocks((states.shape[2], window[:, 0].numel()), states.device):
            x = rotated(window[:, block].float(), form)
            found = torch.maximum(found, x.abs().amax((1, 2)))
    return found


def static_scale(largest: torch.Tensor, form: KvFormat) -> torch.Tensor:
    """The scale float32 [1] or [heads] with which the largest magnitudes [heads] are the largest codes;
    NVFP4's is of its blocks' scales, whose largest is 448."""
    if form.scale == "tensor":
        largest = largest.amax().view(1)
    top = FLOAT_MAX[4] * FLOAT_MAX[8] if form.name == "nvfp4" else _LARGEST[form.name]
    return _over(largest, top).clamp_min_(_EPS)


def _by_kernel(states: torch.Tensor, form: KvFormat, scale: torch.Tensor) -> torch.Tensor | None:
    """The numbers of `_rounded`, in one launch; None where no kernel does it."""
    heads, tokens = states.shape[1:3]
    # As they mostly come: a token's heads beside each other, as their linear made them.
    turned = states.transpose(1, 2)
    by_token = turned.is_contiguous()
    x = turned if by_token else states.contiguous()
    out = torch.empty_like(x)

    def run() -> None:
        from scoremode.engines.torch.kv_cache.kernels import round_heads

        round_heads(x, form, scale, heads, 1 if by_token else tokens, out)

    if not attempt("KV cache", states.device, run):
        return None
    return out.transpose(1, 2) if by_token else out


def _rounded(x: torch.Tensor, form: KvFormat, scale: torch.Tensor) -> torch.Tensor:
    """float32 [heads, T, D] of `x` the same, which it may write to; `scale` [1 or heads, 1, 1]."""
    x = rotated(x, form)
    if form.block is not None:
        grouped = x.unflatten(-1, (-1, form.block))
        x = _by_block(grouped, form, scale.unsqueeze(-1)).flatten(-2)
    elif form.scale == "token":
        x = _by_token(x, form)
    elif form.name == "int8":
        x = (x / scale).round_().clamp_(-128, 127).mul_(scale)
    else:
        x = _float8(x / scale, form).mul_(scale)
    return rotated(x, form)


def _float8(x: torch.Tensor, form: KvFormat) -> torch.Tensor:
    return round_e5m2(x) if form.name == "fp8_e5m2" else round_float(x, 8)


def _by_token(x: torch.Tensor, form: KvFormat) -> torch.Tensor:
    """vLLM's `_reshape_cache_per_token_head`: times an inverse scale, and int8 half away from zero."""
    scale = _over(x.abs().amax(-1, keepdim=True), _LARGEST[form.name]).clamp_min_(_LEAST_SCALE)
    x = x * scale.reciprocal()
    if form.name != "int8":
        return _float8(x, form).mul_(scale)
    half = torch.where(x >= 0, 0.5, -0.5)
    return x.add_(half).clamp_(-128, 127).trunc_().mul_(scale)


def _by_block(x: torch.Tensor, form: KvFormat, scale: torch.Tensor) -> torch.Tensor:
    """`x` [heads, T, blocks, values of one]."""
    if form.name == "nvfp4":
        return _nvfp4(x, scale)
    if form.name == "int":
        return _grouped(x, (1 << (form.bits or 0)) - 1)
    if form.name == "q8_0":
        return _q8_0(x)
    steps, top = _GGML[form.name]
    return _with_minimum(x, top) if steps is None else _around_zero(x, steps, top)


def _nvfp4(x: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """e2m1 under a float8 scale a block under the one that multiplies all: where the block's rounds to
    zero, so do its values."""
    scale = round_float(x.abs().amax(-1, keepdim=True) / (whole * FLOAT_MAX[4]), 8).mul_(whole)
    return torch.where(scale == 0, 0, round_float(x / scale, 4).mul_(scale))


def _grouped(x: torch.Tensor, top: int) -> torch.Tensor:
    """KIVI's values: from a minimum up, both it and the step as they are stored, in float16."""
    least, most = torch.aminmax(x, dim=-1, keepdim=True)
    step = _over(most - least, top).half().float()
    least = least.half().float()
    codes = ((x - least) / step).clamp_(0, top).round_()
    return torch.where(step == 0, 0, codes).mul_(step).add_(least)


def _q8_0(x: torch.Tensor) -> torch.Tensor:
    """By a scale before it is rounded to float16; half away from zero."""
    scale = _over(x.abs().amax(-1, keepdim=True), 127)
    x = x * _inverse(scale)
    whole = x.trunc()
    rest = x - whole
    return whole.add_((rest >= 0.5).float()).sub_((rest <= -0.5).float()).mul_(scale.half().float())


def _around_zero(x: torch.Tensor, steps: int, top: int) -> torch.Tensor:
    """Q4_0, Q5_0: the first value of the largest magnitude becomes −8 or −16, whatever its sign."""
    size = x.abs()
    place = torch.arange(x.shape[-1], device=x.device)
    # Not argmax: of several it takes any, on a GPU.
    first = torch.where(size == size.amax(-1, keepdim=True), place, x.shape[-1] - 1).amin(-1, True)
    scale = _over(x.gather(-1, first), -steps)
    codes = (x * _inverse(scale)).add_(steps + 0.5).trunc_().clamp_max_(top)
    return codes.sub_(steps).mul_(scale.half().float())


def _with_minimum(x: torch.Tensor, top: int) -> torch.Tensor:
    """Q4_1, Q5_1: from a minimum up; codes by step and minimum before these are rounded to float16."""
    least, most = torch.aminmax(x, dim=-1, keepdim=True)
    step = _over(most - least, top)
    codes = ((x - least) * _inverse(step)).add_(0.5).trunc_().clamp_max_(top)
    return codes.mul_(step.half().float()).add_(least.half().float())


def _inverse(scale: torch.Tensor) -> torch.Tensor:
    """Zero where the scale is zero as it is stored: its inverse may be infinite."""
    return torch.where(scale.half() == 0, 0, scale.reciprocal())


def _over(values: torch.Tensor, number: float) -> torch.Tensor:
    """`values / number`, divided on CUDA too, where a number is taken as its inverse otherwise."""
    return values / torch.full((), number, device=values.device)


class FormatCache(LayerCache):
    """One layer's, in the formats of `cache`; `keyword`: what the layer calls it; `what` names the
    layer for errors.

    Until it has its static scales, keys and values go through as they are.
    """

    def __init__(self, keyword: str, cache: KvCache, what: str):
        super().__init__(keyword)
        self._forms: dict[str, KvFormat] = {"k": cache.k, "v": cache.v}
        self._what = what
        self._checked: set[tuple[str, int]] = set()
        self._largest: dict[str, torch.Tensor] = {}
        # float32 [1] or [heads], by side.
        self.static: dict[str, torch.Tensor] = {}
        self.is_measuring = False

    @property
    def waits(self) -> bool:
        """True while static scales are missing."""
        return any(f.is_static and side not in self.static for side, f in self._forms.items())

    def begin(self) -> None:
        """Measures from now on, and forgets what was."""
        self.static.clear()
        self._largest.clear()
        self.is_measuring = True

    def settle(self) -> None:
        """Makes scales of what was measured."""
        for side, form in self._forms.items():
            if form.is_static:
                if side not in self._largest:
                    raise UnsupportedModel(
                        f"{self._what} does not use its KV cache: --kv-cache none"
                    )
                self.static[side] = static_scale(self._largest[side], form)
        self.is_measuring = False

    def _rounded(self, which: str, states: torch.Tensor) -> torch.Tensor:
        form = self._forms[which]
        if (which, states.shape[-1]) not in self._checked:
            check_head(form, states.shape[-1], self._what)
            self._checked.add((which, states.shape[-1]))
        if self.is_measuring and form.is_static:
            self._measure(which, states, form)
        if self.waits:
            return states
        scale = self.static.get(which)
        if scale is not None and scale.numel() not in (1, states.shape[1]):
            raise UsageError(
                f"--kv-scales: {self._what} has {states.shape[1]} heads in its cache, and "
                f"{scale.numel()} scales for {which}"
            )
        return rounded(states, form, scale)

    def _measure(self, which: str, states: torch.Tensor, form: KvFormat) -> None:
        found = largest_of(states, form)
        before = self._largest.get(which)
        self._largest[which] = found if before is None else torch.maximum(before, found)


class FormatCaches:
    """All layers' caches of a run in the formats of `cache`, those of layers without one included.

    - `given`: static scales that are not measured.
    """

    def __init__(
        self, cache: KvCache, layers: Sequence[LayerCache], given: GivenScales | None
    ) -> None:
        self.cache, self.layers, self._given = cache, list(layers), given
        self._own = [layer for layer in layers if isinstance(layer, FormatCache)]
        self._plan: Plan | None = None
        self._measured: tuple[int, int] | None = None

    def identity(self) -> dict[str, Any]:
        """Facts that move a score: the formats' name, and scales that the run did not measure
        itself."""
        found = {"kv_cache_dtype": str(self.cache)}
        if self._given is not None and self._given.sha256 is not None:
            found["kv_scales_sha256"] = self._given.sha256
        return found

    def describe(self) -> dict[str, Any]:
        """Formats, how many layers have them, and static scales with where they are from."""
        scales: dict[str, Any] | None = None
        if self.cache.is_static:
            scales = {"source": "measured" if self._given is None else self._given.source}
            if self._measured is not None:
                scales |= dict(zip(("windows", "tokens"), self._measured, strict=True))
            for side in ("k", "v"):
                if getattr(self.cache, side).is_static:
                    scales[side] = [
                        None if layer.static.get(side) is None else layer.static[side].tolist()
                        for layer in self._own
                    ]
        return {
            "k": str(self.cache.k),
            "v": str(self.cache.v),
            "layers": len(self._own),
            "scales": scales,
        }

    def calibrate(self, plan: Plan, run: Callable[[list[np.ndarray]], Any]) -> None:
        """Measures the scales that this plan's windows have, of one that a rule may end early those of
        all; `run` takes windows of ids through all layers."""
        # Each look of the rule has a plan of its own, and scores are of one scale.
        plan = plan.planned or plan
        if not self.cache.is_static or self._given is not None or plan is self._plan:
            return
        # Several texts may share an engine: each has its own scales, whichever came first.
        self._plan = plan
        count = int(np.searchsorted(np.cumsum(plan.lengths), CALIBRATION_TOKENS, side="right"))
        windows = range(max(1, min(count, len(plan))))
        for layer in self._own:
            layer.begin()
        run([plan[w].inputs for w in windows])
        for layer in self._own:
            layer.settle()
        self._measured = len(windows), int(plan.lengths[: len(windows)].sum())


def build_format_caches(skeleton: Skeleton, cache: KvCache) -> FormatCaches:
    """A cache a layer. Raises UnsupportedModel for a model whose cache holds something else, and
    UsageError for scales that are given and fit no layer, or that nothing wants."""
    keywords = cache_keywords(skeleton, LayerCache.otherwise)
    name = type(skeleton.model).__name__
    layers: list[LayerCache] = [
        FormatCache(keyword, cache, f"{name}: layer {i}") if keyword else NoCache()
        for i, keyword in enumerate(keywords)
    ]
    given = None
    if cache.scales is not None:
        if not cache.is_static:
            source = cache.scales if isinstance(cache.scales, str) else "of a record"
            raise UsageError(
                f"--kv-scales {source}: --kv-cache {cache} has no scales to be given: "
                "names with -tensor or -head have"
            )
        given = given_scales(cache, [i for i, word in enumerate(keywords) if word])
        for i, layer in enumerate(x for x in layers if isinstance(x, FormatCache)):
            for side, values in given.values.items():
                layer.static[side] = torch.tensor(values[i], device=skeleton.device)
    return FormatCaches(cache, layers, given)
