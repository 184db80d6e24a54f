"""Findings of an audit, and what holds each field of a record.

Whoever edits a record can make all of its hashes anew. What then still contradicts an edit is the one
thing that counts, so each field of the record's definition is in exactly one class, and an audit
always lists those that nothing contradicts. `tests/runs/check/test_resealed.py` edits fields of real
runs, and what passes must be what is listed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from scoremode.errors import escaped
from scoremode.results.record.section import value_at

Class = Literal["recomputed", "files", "second run", "not checked"]

# Of an engine's section, what follows from the model and the options alone.
FOLLOWING = ("engine", "dtype", "arithmetic", "activations", "products", "kv_cache_dtype", "kv_cache",
             "attention", "text_alone", "model_class", "vocabulary", "layers", "head",
             "unused_tensors")  # fmt: skip
# Of it, what a kept base's own record says again.
_DESCRIBED = ("kv_cache", "layers", "head", "unused_tensors")
_IDENTIFYING = (*(n for n in FOLLOWING if n not in _DESCRIBED), "kv_scales_sha256")

_CLASSES: dict[Class, str] = {
    # From the scores and the rest of the record.
    "recomputed": """
        schema schema_version status sha256 scores metrics intervals stopping gates distribution
        breakdown thresholds survival llama_cpp worst pages protocol.sha256 noise_floor.resolves
        merged.shards.windows merged.shards.targets requests.name requests.rows requests.sha256
        tasks.answers identity.checkpoint identity.plan identity.full identity.token_text
        identity.confident
    """,
    # With the text, the tokenizer, the model, the base, where these can be reached.
    "files": """
        corpus tokenizer protocol plan checkpoint calibration kept reference identity.labels
        identity.conversations.sha256 identity.reference.sha256 identity.reference.checkpoint
        identity.reference.fingerprint
    """,
    # On the same device with the same versions.
    "second run": "",
    # Places and times, what a machine was and took, what a user chose that moves no number.
    "not checked": """
        reason created finished command label directory versions identity schedule shard merged
        schedule_change engine seconds llama_cpp_note noise_floor parts requests tasks gates.limit
        checkpoint.source checkpoint.path checkpoint.mixture tokenizer.source
        tokenizer.auto_tokenizer corpus.source corpus.files corpus.skipped corpus.generated
        corpus.conversations.template.source corpus.conversations.template.given
        corpus.conversations.template.arguments corpus.conversations.template.date calibration.name
        calibration.source kept.head.checkpoint reference.source reference.label reference.path
        reference.engine reference.metrics reference.head reference.states_sha256 reference.replay
        reference.replay_at_load reference.checkpoint.source reference.checkpoint.path
        reference.checkpoint.mixture reference.tokenizer.source reference.tokenizer.auto_tokenizer
        stored.head.checkpoint
    """,
}
# A field, its keys joined by dots and places in lists left out → its class, which is also that of all
# within it but for what is named itself. `stored`: the `reference` of a run whose base was kept.
HELD: dict[str, Class] = {name: held for held, names in _CLASSES.items() for name in names.split()}
HELD |= {f"{part}.{n}": "second run" for part in ("engine", "reference.engine") for n in FOLLOWING}
HELD |= {
    f"stored.{name}": "files"
    for name in ("metrics", "head", "states_sha256", "replay", "engine.batch_windows")
}
HELD |= {f"stored.engine.{name}": "files" for name in _IDENTIFYING}
HELD |= {f"stored.engine.{name}": "not checked" for name in _DESCRIBED}
# A second run is given the static scales that the record has, wherever those are from.
HELD |= {
    f"{part}.kv_cache.scales.{name}": "not checked"
    for part in ("engine", "reference.engine")
    for name in ("source", "windows", "tokens")
}
# A field of the identity that says another one again.
_AGAIN = {
    "identity.engine": "engine",
    "identity.versions": "versions",
    "identity.reference.engine": "reference.engine",
    "identity.conversations.template": "corpus.conversations.template",
    "identity.noise_floor": "noise_floor",
}


def class_of(field: str, *, is_stored: bool = False) -> Class:
    """The class of a field, its keys joined by dots; `is_stored`: whether the run's base was kept.

    A field that isn't in the record's definition, or within one that is not checked, is not checked.
    """
    for again, said in _AGAIN.items():
        if field == again or field.startswith(f"{again}."):
            field = said + field.removeprefix(again)
    names = [field.replace("reference.", "stored.", 1)] if is_stored else []
    names = [n for n in names if n.startswith("stored.")] + [field]
    for length in range(field.count(".") + 1, 0, -1):
        for name in names:
            if (held := HELD.get(".".join(name.split(".")[:length]))) is not None:
                return held
    return "not checked"


def not_checked(document: Mapping[str, Any], held_again: Sequence[str] = ()) -> list[str]:
    """The fields of a record that no audit holds, each whole where nothing within it is held.

    - `held_again`: what a second run held, of which the sections `engine` and `reference.engine` count.
    """
    is_stored = (document.get("reference") or {}).get("kind") == "stored"

    def is_open(field: str) -> bool:
        held = class_of(field, is_stored=is_stored)
        if held == "second run":
            return field.rpartition("engine.")[0] + "engine" not in held_again
        return held == "not checked"

    def found(value: Any, field: str) -> Iterator[tuple[str, bool]]:
        if value is not None and value_at(document, _AGAIN.get(field, ""), value) is not value:
            # Said again elsewhere, and told there.
            yield field, False
            return
        inner = value.items() if isinstance(value, Mapping) else ()
        if isinstance(value, list):
            inner = (("", each) for each in value if isinstance(each, Mapping | list))
        within = [
            each for key, one in inner for each in found(one, f"{field}.{key}" if key else field)
        ]
        if not within:
            yield field, is_open(field)
        elif all(each[1] for each in within) and is_open(field):
            yield field, True
        else:
            yield from within

    names = {name for key, value in document.items() for name, is_so in found(value, key) if is_so}
    return sorted(names)


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
