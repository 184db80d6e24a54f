"""Requests and answers between the process that asks and the workers that score: names, not code.

A request carries `PoolingParams.extra_kwargs["scoremode"]`, a dictionary of the fields of
`ScoreRequest` and `Kind` that are not as they are by default; `targets` as bytes, little-endian int32.
The answer is one float32 row a scored token, with the columns of its kind. Ids are exact in float32
below 2^24.

Which reference is compared with, and which file states are kept in, is told to the workers apart
(`workers/worker.py`): in a request, anybody who may ask a server could name any.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

__all__ = ["COLUMNS", "COMPARED", "FULL", "KEY", "MAX_EXACT_ID", "Kind", "ScoreRequest"]

KEY = "scoremode"
COLUMNS = ("position", "target", "logprob", "entropy", "top1", "top1_logprob")
# Columns of a comparison with a reference, as results.scores.Comparison names them.
COMPARED = ("base_logprob", "base_top1", "base_top1_logprob", "kld", "kld_reverse")
FULL = ("jsd", "base_entropy", "model_entropy", "topk_sets", "topk_order")
_TEST_COLUMNS = ("gathered_logprob", "gathered_entropy", "gathered_top1")
MAX_EXACT_ID = 2**24


@dataclass(frozen=True)
class Kind:
    """Columns wanted of each scored token. Requests of one kind are scored together.

    - `vocabulary`: how many entries the softmax runs over, all if None.
    - `entropy`: without it its column is NaN.
    - `compared`: with the reference, whose extra sums have the columns `extra`; `full`: with what costs
      a second pass over the logits.
    - `kept`: the states go into the file.
    - `self_test`: with what the gathered logits say.
    """

    vocabulary: int | None = None
    entropy: bool = True
    compared: bool = False
    extra: tuple[str, ...] = ()
    full: bool = False
    kept: bool = False
    self_test: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the numbers in each row of the answer."""
        compared = COMPARED + self.extra + FULL * self.full
        return COLUMNS + compared * self.compared + _TEST_COLUMNS * self.self_test


@dataclass(frozen=True, eq=False)
class ScoreRequest:
    """One prompt's wishes.

    - `targets` int32, one a prompt token: what to score after it; None: the prompt's own.
    - `first`: the first prompt token to score after. `chosen` int32: those of them that are, in order;
      None for all from there on.
    - `row`, `place`: the rows of the reference and of the file that belong to the first scored token;
      those of the others follow.
    """

    targets: np.ndarray | None = None
    first: int = 0
    row: int = 0
    place: int = 0
    kind: Kind = field(default_factory=Kind)
    chosen: np.ndarray | None = None

    def to_extra(self) -> dict[str, Any]:
        """The request as `extra_kwargs` carry it."""
        value: dict[str, Any] = {
            name: number
            for name in ("first", "row", "place")
            if (number := int(getattr(self, name)))
        }
        if self.targets is not None:
            value["targets"] = np.ascontiguousarray(self.targets, dtype="<i4").tobytes()
        if self.chosen is not None:
            value["chosen"] = np.ascontiguousarray(self.chosen, dtype="<i4").tobytes()
        usual = asdict(Kind())
        value |= {k: v for k, v in asdict(self.kind).items() if v != usual[k]}
        return {KEY: value}

    @classmethod
    def from_extra(cls, extra: dict[str, Any] | None) -> "ScoreRequest":
        value = dict((extra or {}).get(KEY, {}))
        targets, chosen = (
            None if (data := value.pop(name, None)) is None else np.frombuffer(data, "<i4")
            for name in ("targets", "chosen")
        )
        own = {name: value.pop(name, 0) for name in ("first", "row", "place")}
        # On its way a tuple becomes a list.
        value["extra"] = tuple(value.get("extra", ()))
        kind = Kind(**value)
        return cls(targets, **own, kind=kind, chosen=chosen)
