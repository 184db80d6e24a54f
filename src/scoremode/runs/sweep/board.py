"""What a sweep has done and has still to do: its manifest, kept on disk at every step."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from scoremode.results.record.sections import now
from scoremode.runs.request import Request, Result
from scoremode.runs.sweep.definition import SCHEMA, SCHEMA_VERSION, Entry, Manifest, Pair
from scoremode.runs.sweep.manifest import place_in, placed, read_manifest, write_manifest
from scoremode.runs.sweep.request import Ended, Outcome, SweepRequest, Tell

__all__ = ["Board", "titles"]


class Board:
    """The entries of a sweep, model by model, and what became of each; `tell` gets those that end."""

    def __init__(self, request: SweepRequest, models: Sequence[str], tell: Tell):
        self._folder, self._tell = request.output, tell
        earlier = read_manifest(request.output)
        self._earlier = [] if earlier is None else earlier["entries"]
        self.models, self._pairs = list(models), len(request.pairs)
        self._under = titles(request.pairs)
        self._results: dict[int, Result | None] = {}
        first = request.pairs[0]
        self.manifest: Manifest = {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "created": now() if earlier is None else earlier["created"],
            "updated": now(),
            "command": list(request.command),
            "base": str(first.reference),
            "revision": first.reference_revision,
            "models": list(request.models),
            "pairs": [_pair(pair) for pair in request.pairs],
            "entries": [_entry(m, p) for m in models for p in range(len(request.pairs))],
            "sha256": "",
        }

    def write(self) -> None:
        self.manifest["updated"] = now()
        write_manifest(self._folder, self.manifest)

    def reference(self, pair: int, path: Path) -> None:
        """Notes where the base of a pair is."""
        self.manifest["pairs"][pair]["reference"] = placed(self._folder, path)
        self.write()

    def earlier(self, asked: str) -> Path | None:
        """The folder of the run that an earlier call made of the same, if it is there."""
        for entry in self._earlier:
            if (
                entry["asked"] == asked
                and entry["status"] == "done"
                and entry["folder"] is not None
            ):
                return place_in(self._folder, entry["folder"])
        return None

    def begin(self, model: int, pair: int) -> None:
        self._entry(model, pair)["status"] = "running"
        self.write()

    def done(self, model: int, pair: int, result: Result, asked: str | None = None) -> None:
        folder = placed(self._folder, result.folder)
        self._end(model, pair, result, {"status": "done", "folder": folder, "asked": asked})

    def failed(self, model: int, pair: int, line: str) -> None:
        self._end(model, pair, None, {"status": "failed", "error": line})

    def leave_out(self, model: int, pair: int) -> None:
        """Notes that a finished run is of another pair."""
        self._end(model, pair, None, {"status": "left out"})

    def outcome(self) -> Outcome:
        count = len(self.manifest["entries"])
        return Outcome(self._folder, self.manifest, [self._results[i] for i in range(count)])

    def _entry(self, model: int, pair: int) -> Entry:
        return self.manifest["entries"][model * self._pairs + pair]

    def _end(
        self, model: int, pair: int, result: Result | None, change: Mapping[str, str | None]
    ) -> None:
        entry, index = self._entry(model, pair), model * self._pairs + pair
        if index in self._results:
            return
        entry.update(change)  # pyright: ignore[reportCallIssue, reportArgumentType]
        self._results[index] = result
        self.write()
        under = self._under[pair] if self._pairs > 1 else ""
        count = len(self.manifest["entries"])
        self._tell(Ended(entry, under, len(self._results), count, result))


def titles(pairs: Sequence[Request]) -> list[str]:
    """Text and protocol of each pair; of texts with one name, where they are from."""
    named = [(pair.corpus.name, pair.protocol.name) for pair in pairs]
    return [
        f"{name if named.count((name, protocol)) == 1 else pair.corpus.source}, {protocol}"
        for pair, (name, protocol) in zip(pairs, named, strict=True)
    ]


def _pair(request: Request) -> Pair:
    protocol = request.protocol
    return {
        "corpus": request.corpus.name,
        "protocol": protocol.name,
        "protocol_sha256": protocol.sha256,
        "reference": None,
    }


def _entry(model: str, pair: int) -> Entry:
    return {
        "model": model,
        "pair": pair,
        "status": "waiting",
        "folder": None,
        "error": None,
        "asked": None,
    }
