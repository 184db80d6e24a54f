"""Keys and values rounded as a quantized cache would hold them, or llama.cpp's in float16.

The library's attention hands its keys (after position rotation) and values to a cache and goes on with
what comes back. A scored window needs no cache, but handing in one that keeps nothing and returns the
rounded keys and values makes the model see what it would see when served from such a cache.
Source: compressed-tensors' `kv_cache_scheme` and QuantizedKVCache.

Static scales are the checkpoint's, or given: by a safetensors file, or as a run's record has them.
"""

import hashlib
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.safetensors_files import SafetensorsFiles, TensorInfo, read_header
from scoremode.engines.kv_formats import KvCache, RecordedScales
from scoremode.engines.torch.matmul.linears import Windows
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.errors import CheckpointError, UnsupportedFormat, UnsupportedModel, UsageError
from scoremode.lib.files import read_regular
from scoremode.schemes.decoding.codes import round_float
from scoremode.schemes.fields import TensorFormat, UnreadCache
from scoremode.schemes.resolve import Schemes

# Names of the scales that checkpoints hold, in the spellings of new and of old releases.
CACHE_TENSORS = (
    r"\.([qkv]|kv)_(scale|zero_point)$",
    r"\.[kv]_proj\.output_(scale|zero_point)$",
)
# AutoFP8's first ones have a single scale for both.
SCALE_NAMES = {
    "k": r"\.(k_scale|kv_scale|k_proj\.output_scale)$",
    "v": r"\.(v_scale|kv_scale|v_proj\.output_scale)$",
}
# The library's names of a layer's cache: since 5.24, and before it (where the code of models that bring
# their own has it as well).
_KEYWORDS = ("cache", "past_key_values")
# The library's types of layers whose cache is keys and values alone, and of those that have none.
_ATTENTION = (None, "full_attention", "sliding_attention", "chunked_attention")
_KEYLESS = ("linear_attention", "conv", "moe")
# The largest file of scales that is read: some tensors of a few bytes for each layer.
_MOST_BYTES = 1 << 26


class LayerCache:
    """The object that one layer's attention gets as its cache; counts how often it was used.

    `otherwise`: the flag that does without it.
    """

    otherwise = "--kv-cache none"

    # The checkpoint's that it is made of.
    tensors: tuple[str, ...] = ()

    def __init__(self, keyword: str):
        """`keyword`: what the layer calls its cache."""
        self._keyword = keyword
        self.uses = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [B, heads, T, D], rounded."""
        self.uses += 1
        return self._rounded("k", key_states), self._rounded("v", value_states)

    def arguments(self) -> dict[str, Any]:
        """Arguments that a layer is called with for this cache."""
        return {self._keyword: self}

    def _rounded(self, which: str, states: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class DeclaredCache(LayerCache):
    """A cache of float8, as a checkpoint declares it.

    - `scales`: float32 of `k` and `v`, [1] or [heads, 1, 1], from the checkpoint's `tensors`; None for
      dynamic ones, which span a window.
    """

    def __init__(
        self,
        keyword: str,
        scales: Mapping[str, torch.Tensor] | None,
        windows: Windows,
        tensors: Iterable[str] = (),
    ):
        super().__init__(keyword)
        self._scales, self._windows, self.tensors = scales, windows, tuple(tensors)
        windows.are_spanned |= scales is None

    def _rounded(self, which: str, states: torch.Tensor) -> torch.Tensor:
        exact = states.float()
        if self._scales is None:
            # One scale a window, so that a window's scores do not depend on its neighbours.
            dims = (1, 2, 3) if self._windows.apart else (0, 1, 2, 3)
            scale = exact.abs().amax(dim=dims, keepdim=True) / 448
            scale = torch.where(scale == 0, torch.finfo(torch.float32).eps, scale)
        else:
            scale = self._scales[which]
        return round_float(exact / scale, 8).mul_(scale).to(states.dtype)


class NoCache(LayerCache):
    """A layer's that keeps a state of its own instead of keys and values, such as linear attention's:
    it is handed nothing, and its state stays as it is."""

    def __init__(self) -> None:
        super().__init__("")

    def arguments(self) -> dict[str, Any]:
        return {}


class HalfCache(LayerCache):
    """llama.cpp's cache: keys and values in float16, which its attention computes with in float32."""

    otherwise = "--arithmetic weights"

    def _rounded(self, which: str, states: torch.Tensor) -> torch.Tensor:
        return states.half().to(states.dtype)


def build_half_caches(skeleton: Skeleton) -> list[LayerCache]:
    """A cache a layer, as llama.cpp has it. Raises UnsupportedModel for what can't be emulated."""
    keywords = cache_keywords(skeleton, HalfCache.otherwise)
    return [HalfCache(keyword) if keyword else NoCache() for keyword in keywords]


def build_caches(
    skeleton: Skeleton,
    checkpoint: Checkpoint,
    schemes: Schemes,
    renamed: Callable[[str], str],
    windows: Windows,
) -> list[LayerCache]:
    """A cache a layer, as the checkpoint declares it; `renamed`: a tensor's name in the model.

    Raises UsageError where it declares none, UnsupportedFormat and UnsupportedModel for what can't
    be emulated, CheckpointError for scales that are missing.
    """
    declared = schemes.config.kv_cache if schemes.config is not None else None
    if declared is None:
        raise UsageError(f"--kv-cache as-declared: {checkpoint.source} declares no KV cache scheme")
    if isinstance(declared, UnreadCache):
        raise UnsupportedFormat(
            f"--kv-cache as-declared: {declared.why}; --kv-cache none measures without it"
        )
    _refuse_unsupported(declared)
    keywords = cache_keywords(skeleton, LayerCache.otherwise)
    if declared.dynamic:
        return [DeclaredCache(word, None, windows) if word else NoCache() for word in keywords]
    device = skeleton.device
    patterns = "|".join(SCALE_NAMES.values())
    names = {name: renamed(name) for name in checkpoint.tensors if re.search(patterns, name)}
    caches: list[LayerCache] = []
    for prefix, keyword in zip(skeleton.layer_names, keywords, strict=True):
        if keyword is None:
            caches.append(NoCache())
            continue
        own = [name for name, new in names.items() if new.startswith(f"{prefix}.")]
        found = {which: _find_scale(checkpoint, prefix, own, which) for which in SCALE_NAMES}
        scales = {w: _scale(checkpoint, n, declared).to(device) for w, n in found.items()}
        caches.append(DeclaredCache(keyword, scales, windows, found.values()))
    return caches


def check_used(caches: list[LayerCache], name: str) -> None:
    """Raises UnsupportedModel where a layer ran and its cache was not asked for."""
    for i, cache in enumerate(caches):
        if not cache.uses and not isinstance(cache, NoCache):
            raise UnsupportedModel(
                f"{name}: layer {i} does not use its KV cache: {cache.otherwise}"
            )


def _refuse_unsupported(declared: TensorFormat) -> None:
    wanted = ("tensor",) if declared.dynamic else ("tensor", "attn_head")
    if (
        (declared.type, declared.bits) != ("float", 8)
        or not declared.symmetric
        or declared.strategy not in wanted
        or declared.dynamic == "local"
    ):
        raise UnsupportedFormat(f"KV cache scheme {declared.described}: not supported yet")


def cache_keywords(skeleton: Skeleton, otherwise: str) -> list[str | None]:
    """The keyword by which each layer takes a cache of keys and values; None for a layer that has a
    state of its own, or none.

    Raises UnsupportedModel where a layer takes no cache, or its cache is of something else;
    `otherwise`: the flag that does without.
    """
    name, config = type(skeleton.model).__name__, skeleton.config
    if getattr(config, "kv_lora_rank", None) is not None:
        raise UnsupportedModel(
            f"{name}: its cache holds a compressed state, not keys and values: {otherwise}"
        )
    kinds = getattr(config, "layer_types", None) or [None] * len(skeleton.layers)
    keywords: list[str | None] = []
    for layer, kind in zip(skeleton.layers, kinds, strict=True):
        if kind in _KEYLESS:
            keywords.append(None)
            continue
        if kind not in _ATTENTION:
            raise UnsupportedModel(
                f"{name}: its layers of {kind} keep more than keys and values: {otherwise}"
            )
        keyword = next((word for word in _KEYWORDS if _takes_cache(layer, word)), None)
        if keyword is None:
            raise UnsupportedModel(
                f"{name}: its layers take no {' or '.join(_KEYWORDS)}: {otherwise}"
            )
        keywords.append(keyword)
    if not any(keywords):
        raise UnsupportedModel(f"{name}: has no layer with keys and values: {otherwise}")
    return keywords


def _takes_cache(layer: torch.nn.Module, keyword: str) -> bool:
    """Tells whether a layer hands a cache of that keyword on to one of its parts. Some layers take any
    keyword, and their attention a cache under another name."""
    parameters = inspect.signature(layer.forward).parameters
    takes = keyword in parameters or any(
        p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()
    )
    parts = (part for child in layer.children() for part in child.modules())
    return takes and any(keyword in inspect.signature(part.forward).parameters for part in parts)


def _find_scale(checkpoint: Checkpoint, prefix: str, names: list[str], which: str) -> str:
    """The one of `names` that is a layer's scale."""
    found = [name for name in names if re.search(SCALE_NAMES[which], name)]
    if len(found) != 1:
        raise CheckpointError(
            f"{checkpoint.path}: {prefix} has {len(found)} tensors for its cache's {which}_scale, "
            "and kv_cache_scheme says that it is static"
        )
    return found[0]


def _scale(checkpoint: Checkpoint, name: str, declared: TensorFormat) -> torch.Tensor:
    """float32 [1], or [heads, 1, 1] with a scale a head."""
    info = checkpoint.tensors[name]
    scale = checkpoint.read(name).float()
    if not bool(torch.isfinite(scale).all() and (scale > 0).all()):
        raise CheckpointError(f"{info.file}: tensor {info.name} is not a positive scale")
    if declared.strategy == "attn_head":
        return scale.view(-1, 1, 1)
    if scale.numel() != 1:
        raise CheckpointError(
            f"{info.file}: tensor {info.name} has shape {list(info.shape)}, expected one scale"
        )
    return scale.view(1)


@dataclass(frozen=True)
class GivenScales:
    """Scales that the run did not measure.

    - `values`: of `k` and `v`, as far as they are static, each cached layer's: one, or one a head.
    - `source`: for the record; `sha256`: of the file, None of a record's, which a run with measured
      scales is made again by.
    """

    values: Mapping[str, Sequence[Sequence[float]]]
    source: str
    sha256: str | None


def given_scales(cache: KvCache, layers: Sequence[int]) -> GivenScales:
    """The scales that `cache` says, of the `layers` with a cache, by their numbers in the model.

    Raises UsageError for what is no scale, one too many, or missing.
    """
    assert cache.scales is not None
    static = [side for side in ("k", "v") if getattr(cache, side).is_static]
    if isinstance(cache.scales, RecordedScales):
        found = {side: getattr(cache.scales, side) for side in static}
        source, sha256 = "a record's", None
    else:
        file = Path(cache.scales)
        try:
            found, sha256 = _of_file(file, static, layers)
        except CheckpointError as error:
            raise UsageError(f"--kv-scales {error}") from None
        source = cache.scales
    for side, values in found.items():
        if values is None or len(values) != len(layers):
            raise UsageError(
                f"--kv-scales {source}: has {len(values or ())} scales for {side}, and "
                f"{len(layers)} layers have a cache"
            )
        for layer, scales in zip(layers, values, strict=True):
            _check(
                scales, f"--kv-scales {source}: layer {layer}, {side}", getattr(cache, side).scale
            )
    return GivenScales(found, source, sha256)


def _check(scales: Sequence[float], what: str, wanted: str | None) -> None:
    if not all(math.isfinite(scale) and scale > 0 for scale in scales) or not scales:
        raise UsageError(f"{what}: {list(scales)} are not positive scales")
    if wanted == "tensor" and len(scales) != 1:
        raise UsageError(f"{what}: has {len(scales)} scales, and -tensor wants one: see -head")


def _of_file(
    file: Path, sides: Sequence[str], layers: Sequence[int]
) -> tuple[dict[str, list[list[float]]], str]:
    """The file's scales by side, and its sha256. Raises UsageError and CheckpointError."""
    try:
        content = read_regular(file, _MOST_BYTES)
    except OSError as error:
        raise UsageError(f"--kv-scales {file}: not readable: {error.strerror}") from None
    header, opened = read_header(file), SafetensorsFiles()
    found = {side: _of_layers(file, header, side, layers) for side in sides}
    values = {
        side: [opened.read(info).double().flatten().tolist() for info in infos]
        for side, infos in found.items()
    }
    return values, hashlib.sha256(content).hexdigest()


def _of_layers(
    file: Path, header: Sequence[TensorInfo], side: str, layers: Sequence[int]
) -> list[TensorInfo]:
    """The one tensor of each layer that is its scale, by the names that checkpoints have."""
    by_layer: dict[int, list[TensorInfo]] = {}
    for info in header:
        if match := re.search(SCALE_NAMES[side], info.name):
            numbers = re.findall(r"(?:^|\.)(\d+)\.", info.name[: match.start() + 1])
            if len(numbers) == 1:
                by_layer.setdefault(int(numbers[0]), []).append(info)
    missing = [layer for layer in layers if len(by_layer.get(layer, ())) != 1]
    if missing:
        count = len(by_layer.get(missing[0], ()))
        raise UsageError(
            f"--kv-scales {file}: has {count} tensors for layer {missing[0]}'s {side}_scale"
        )
    return [by_layer[layer][0] for layer in layers]
