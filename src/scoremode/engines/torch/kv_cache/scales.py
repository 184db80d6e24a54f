"""Static scales of a cache that are given: by a safetensors file, or as a run's record has them."""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scoremode.checkpoint.safetensors_files import SafetensorsFiles, TensorInfo, read_header
from scoremode.engines.kv_formats import KvCache, RecordedScales
from scoremode.engines.torch.weights.kv_cache import SCALE_NAMES
from scoremode.errors import CheckpointError, UsageError
from scoremode.lib.files import read_regular

__all__ = ["GivenScales", "given_scales"]

# The largest file of scales that is read: some tensors of a few bytes for each layer.
_MOST_BYTES = 1 << 26


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
