"""The file beside an output that has what is done of it, so that a killed command goes on.

Its first line is the identity of the command; each further one a batch, written whole and synced. What
follows the last newline was being written when the command was killed, and is cut off.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scoremode.errors import RunFolderError
from scoremode.lib.files import MOST_TEXT, open_lock, take
from scoremode.results.record.differences import first_difference

__all__ = ["PartFile", "part_path", "remove_left"]


def part_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.part")


def remove_left(output: Path, identity: Mapping[str, Any]) -> None:
    """Removes what the command of this identity left, killed when its output was there; what is
    another's stays."""
    path = part_path(output)
    if os.path.lexists(path):
        with suppress(RunFolderError):
            PartFile(path, identity).remove()


class PartFile:
    """Batches that are done, each by its number. Close it, or use it in a `with` block.

    Raises RunFolderError where another process has it, where it can't be written, and where another
    command has begun it.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]):
        self.path = path
        self.done: dict[int, list[dict[str, Any]]] = {}
        try:
            # Written where it lies, and held by whoever writes it: no link, and no one's but ours.
            self._file = open_lock(path, MOST_TEXT)
        except OSError as error:
            raise RunFolderError(f"{path}: cannot be written: {error.strerror}") from None
        try:
            take(self._file.fileno())
            self._begin(identity)
        except BlockingIOError:
            self._file.close()
            raise RunFolderError(f"{path}: another process is generating it") from None
        except BaseException:
            self._file.close()
            raise

    def add(self, number: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Writes a batch, and has it on disk. Raises RunFolderError."""
        self._append({"batch": number, "rows": list(rows)})
        self.done[number] = [dict(row) for row in rows]

    def remove(self) -> None:
        """Removes the file: its output is there."""
        with suppress(FileNotFoundError):
            self.path.unlink()
        self.close()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "PartFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, identity: Mapping[str, Any]) -> None:
        data = self._file.read()
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            ours = json.dumps({"identity": dict(identity)}).encode()
            if not ours.startswith(data):
                raise self._foreign()
            self._cut(0)
            self._append({"identity": dict(identity)})
            return
        header, *batches = (self._read(line) for line in whole.splitlines())
        ours = json.loads(json.dumps(identity))
        if found := first_difference("", header.get("identity") or {}, ours):
            name, theirs, own = found
            raise RunFolderError(
                f"{self.path}: was begun with {name} {theirs!r}, and this command has {own!r}: remove "
                "it, or write to another file"
            )
        for batch in batches:
            if not isinstance(batch.get("batch"), int) or not isinstance(batch.get("rows"), list):
                raise RunFolderError(f"{self.path}: has a line that is no batch: remove it")
            self.done[batch["batch"]] = batch["rows"]
        self._cut(len(whole))

    def _cut(self, size: int) -> None:
        """Leaves so many bytes, behind which is written."""
        self._file.seek(size)
        self._file.truncate()

    def _foreign(self) -> RunFolderError:
        return RunFolderError(f"{self.path}: is no part of generated conversations: remove it")

    def _read(self, line: bytes) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise self._foreign()
        return value

    def _append(self, value: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(value, default=str).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise RunFolderError(f"{self.path}: cannot be written: {error.strerror}") from None
