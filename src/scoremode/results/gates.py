"""Gates: bounds on a comparison's metrics, for automation."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from scoremode.errors import UsageError

__all__ = ["Gate", "Gates"]


@dataclass(frozen=True)
class Gate:
    """One bound: its flag, what it bounds, the bound, the value found and whether it holds."""

    flag: str
    metric: str
    limit: float
    value: float
    passed: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        word = "holds" if self.passed else "failed"
        return f"gate {word}: {self.flag} {self.limit:g}: {self.metric} is {self.value:.6g}"


@dataclass(frozen=True)
class Gates:
    """Bounds, None for none. `max_kld`, `max_kld_p99` in nats; `min_top1` a share.

    Raises UsageError for what is no bound.
    """

    max_kld: float | None = None
    max_kld_p99: float | None = None
    max_ppl_ratio: float | None = None
    min_top1: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            most = 1 if field.name == "min_top1" else math.inf
            # Infinity would bound nothing, and is no JSON.
            if value is not None and not (0 <= value <= most and math.isfinite(value)):
                flag = "--" + field.name.replace("_", "-")
                ends = "and at most 1" if most == 1 else "and finite"
                raise UsageError(f"{flag} {value}: must be at least 0 {ends}")

    def judge(self, record: Mapping[str, Any]) -> list[Gate]:
        """Every gate that is set, against a comparison's record."""
        metrics, kld = record["metrics"], record["distribution"]["kld"]
        rows = (
            ("--max-kld", "the mean KLD", self.max_kld, metrics["kld"]["value"]),
            ("--max-kld-p99", "the KLD's 99th percentile", self.max_kld_p99, kld["99"]),
            ("--max-ppl-ratio", "PPL / base's PPL", self.max_ppl_ratio,
             metrics["ppl_ratio"]["value"]),
            ("--min-top1", "the share of same top-1", self.min_top1, metrics["top1"]["value"]),
        )  # fmt: skip
        return [
            Gate(flag, name, limit, value, value >= limit if "min" in flag else value <= limit)
            for flag, name, limit, value in rows
            if limit is not None
        ]
