"""What travels between the process that asks and the workers that score: names, not code.

A request carries `PoolingParams.extra_kwargs["scoremode"]`, a dictionary with these keys, all
optional: `targets` (bytes, little-endian int32, one a prompt token: what to score after it), `first`
(the first prompt token to score after), `vocabulary` (how many entries the softmax runs over),
`self_test` (append what the gathered logits say). The answer is one float32 row a scored token, with
`COLUMNS`, and with `self_test` `TEST_COLUMNS` behind them. Ids are exact in float32 below 2^24.
"""

from typing import Any

import numpy as np

__all__ = ["COLUMNS", "KEY", "MAX_EXACT_ID", "TEST_COLUMNS", "Request"]

KEY = "scoremode"
COLUMNS = ("position", "target", "logprob", "entropy", "top1", "top1_logprob")
TEST_COLUMNS = ("gathered_logprob", "gathered_entropy", "gathered_top1")
MAX_EXACT_ID = 2**24


class Request:
    """One prompt's wishes, read from and written to `extra_kwargs`."""

    def __init__(
        self,
        targets: np.ndarray | None = None,
        first: int = 0,
        vocabulary: int | None = None,
        self_test: bool = False,
    ):
        self.targets = targets
        self.first = first
        self.vocabulary = vocabulary
        self.self_test = self_test

    def to_extra(self) -> dict[str, Any]:
        value: dict[str, Any] = {"first": self.first}
        if self.targets is not None:
            value["targets"] = np.ascontiguousarray(self.targets, dtype="<i4").tobytes()
        if self.vocabulary is not None:
            value["vocabulary"] = self.vocabulary
        if self.self_test:
            value["self_test"] = True
        return {KEY: value}

    @classmethod
    def from_extra(cls, extra: dict[str, Any] | None) -> "Request":
        value = (extra or {}).get(KEY, {})
        targets = value.get("targets")
        return cls(
            None if targets is None else np.frombuffer(targets, "<i4"),
            value.get("first", 0),
            value.get("vocabulary"),
            value.get("self_test", False),
        )
