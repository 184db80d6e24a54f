"""Shards of a run: which passes of it each of several independent processes scores.

Flags are read with it, so it imports nothing heavy.
"""

import re
from dataclasses import dataclass

from scoremode.errors import UsageError


@dataclass(frozen=True)
class Shard:
    """The shard `number`, from 1, of a run that is cut into `of` of them."""

    number: int
    of: int

    @classmethod
    def parsed(cls, text: str) -> "Shard":
        """The shard that `i/N` names. Raises UsageError for what names none."""
        found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
        shard = cls(int(found[1]), int(found[2])) if found else None
        if shard is None or not 1 <= shard.number <= shard.of:
            raise UsageError(
                f"--shard {text}: must be i/N, with i from 1 to N: 1/4 is the first of four"
            )
        return shard

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def among(self, passes: int) -> range:
        """The passes, counted from 0, that it has of so many: neighbours, in the shards' order as even
        as whole passes can be; none where there are fewer passes than shards, of some shards."""
        return range(
            (self.number - 1) * passes // self.of,
            self.number * passes // self.of,
        )

    def to_json(self) -> dict[str, int]:
        return {"number": self.number, "of": self.of}
