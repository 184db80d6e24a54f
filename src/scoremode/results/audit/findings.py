"""Findings of an audit: each thing that was looked at, and what became of it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from scoremode.errors import escaped

__all__ = ["Finding", "Findings", "short"]

Status = Literal["held", "unchecked", "wrong"]


@dataclass(frozen=True)
class Finding:
    """A thing of a run that was looked at.

    - `part`: of the run, such as "metrics"; `name`: the thing within it.
    - `status`: it held, could not be checked, or is wrong.
    - `words`: what was found, or why it could not be checked.
    """

    part: str
    name: str
    status: Status
    words: str


@dataclass
class Findings:
    """Findings of one run, in the order in which they were made."""

    found: list[Finding] = field(default_factory=list)

    def held(self, part: str, name: str, words: str = "") -> None:
        self._add(part, name, "held", words)

    def wrong(self, part: str, name: str, words: str) -> None:
        self._add(part, name, "wrong", words)

    def unchecked(self, part: str, name: str, words: str) -> None:
        self._add(part, name, "unchecked", words)

    def judge(self, part: str, name: str, wrong: Iterable[str], held: str = "") -> bool:
        """Adds one finding: wrong where `wrong` has any words, else held. Returns whether it held."""
        words = list(wrong)
        more = f"; {len(words) - 3} more" if words[3:] else ""
        if words:
            self.wrong(part, name, "; ".join(words[:3]) + more)
        else:
            self.held(part, name, held)
        return not words

    def same(self, part: str, name: str, said: object, found: object, of: str) -> bool:
        """Adds one finding: whether the record's value is the one `found`, which is `of` something.
        Returns whether it is."""
        words = [] if said == found else [f"the record says {short(said)}, and {of} {short(found)}"]
        return self.judge(part, name, words, short(said))

    def count(self, status: Status) -> int:
        return sum(each.status == status for each in self.found)

    def to_json(self) -> dict[str, Any]:
        counts = {status: self.count(status) for status in ("held", "unchecked", "wrong")}
        return {"counts": counts, "findings": [asdict(each) for each in self.found]}

    def _add(self, part: str, name: str, status: Status, words: str) -> None:
        # What a record holds ends up in them.
        self.found.append(Finding(part, escaped(name), status, escaped(words)))


def short(value: object) -> str:
    """A value for a message: of a sha256 its first 12 digits, of all else the first 60 characters."""
    text = str(value)
    if len(text) == 64 and all(c in "0123456789abcdef" for c in text):
        return f"{text[:12]}…"
    return text if len(text) <= 60 else f"{text[:60]}…"
