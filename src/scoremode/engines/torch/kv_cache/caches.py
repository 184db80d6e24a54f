"""Caches in a format that the user names, one a layer, with static scales measured in the run or given.

Measured scales are of the largest magnitudes of keys and values, rotated where the format rotates them,
over the plan's first windows that together have at most CALIBRATION_TOKENS tokens, the first one
always; each window runs by itself and with its keys and values as they are, once, before the first
pass. So they depend on neither passes nor micro-batches, nor on how many devices share a run.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from scoremode.engines.kv_formats import KvCache, KvFormat, RecordedScales
from scoremode.engines.torch.kv_cache.rounding import (
    check_head,
    largest_of,
    rounded,
    static_scale,
)
from scoremode.engines.torch.kv_cache.scales import GivenScales, given_scales
from scoremode.engines.torch.matmul.linears import Windows
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.engines.torch.weights.kv_cache import LayerCache, NoCache, cache_keywords
from scoremode.errors import UnsupportedModel, UsageError
from scoremode.text.plan import Plan

__all__ = ["CALIBRATION_TOKENS", "FormatCache", "FormatCaches", "build_format_caches"]

CALIBRATION_TOKENS = 16384


class FormatCache(LayerCache):
    """One layer's, in the formats of `cache`; `keyword`: what the layer calls it; `what` names the
    layer for errors.

    Until it has its static scales, keys and values go through as they are.
    """

    def __init__(self, keyword: str, cache: KvCache, what: str):
        super().__init__(keyword, None, Windows())
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
        """What moves a score: the formats' name, and scales that the run did not measure itself."""
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
            raise UsageError(
                f"--kv-scales {_named(cache.scales)}: --kv-cache {cache} has no scales to be given: "
                "names with -tensor or -head have"
            )
        given = given_scales(cache, [i for i, word in enumerate(keywords) if word])
        for i, layer in enumerate(x for x in layers if isinstance(x, FormatCache)):
            for side, values in given.values.items():
                layer.static[side] = torch.tensor(values[i], device=skeleton.device)
    return FormatCaches(cache, layers, given)


def _named(scales: str | RecordedScales) -> str:
    return scales if isinstance(scales, str) else "of a record"
