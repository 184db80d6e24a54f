"""Writing a reference: a base model's final states, pass by pass, and its head, into a run's folder.

A pass's states are written, hashed and synced in a thread while the next pass computes, the last one's
while the run's statistics do; the thread waits for the GPU, not the run. A file has its name only when
it is whole; the run's own parts follow only when their states are there (`settle`), so that a killed
run goes on where both end.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from scoremode.checkpoint.bulk_io import hash_file
from scoremode.errors import RunFolderError
from scoremode.head.project import Head
from scoremode.lib.files import atomic, check_regular, is_partial, make_folder, remove_folder
from scoremode.lib.json import json_digest
from scoremode.lib.tasks import Task
from scoremode.reference.states import (
    HEADER_BYTES,
    create_states,
    fill_states,
    raw_bytes,
    read_states,
    write_tensors,
)
from scoremode.results.folders.store import HEAD, STATES, TOKENS
from scoremode.text.plan import Plan

# Passes whose states are held while they are being written.
HELD = 2


def name_of(number: int) -> str:
    """The file of a pass's states, in the reference's folder."""
    return f"{STATES}/{number:05}.safetensors"


def _is_states(name: str) -> bool:
    return re.fullmatch(r"\d{5,}\.safetensors", name) is not None


@dataclass(frozen=True)
class HeadTensors:
    """A base's head, and where in its checkpoint it lies.

    - `weight`, `bias`: the names of its tensors, None where they are stored in another form.
    """

    head: Head
    source: str
    place: str
    weight: str | None
    bias: str | None


class Keeper:
    """Keeps one run's reference in its `folder`: states a pass at a time, and beside them its head.

    - `stored`: whether the head is written too; if not, the checkpoint must have it as it is used.

    Raises RunFolderError.
    """

    def __init__(self, folder: Path, plan: Plan, tensors: HeadTensors, *, stored: bool):
        self._folder, self._plan, self._width = folder, plan, tensors.head.weight.shape[1]
        self._writing: dict[int, Task[None]] = {}
        self._hashes: dict[int, str] = {}
        self._earlier: Task[None] | None = None
        # One for each of the passes that may be written at a time.
        self._streams: list[torch.cuda.Stream] = []
        has_other_bias = tensors.head.bias is not None and tensors.bias is None
        if not stored and (tensors.weight is None or has_other_bias):
            raise RunFolderError(
                f"{tensors.source}: its head is stored in another form than it is used in, so it can't "
                "be left in the checkpoint: keep it in the reference (--head stored)"
            )
        try:
            make_folder(folder / STATES, below=folder)
            for leftover in (folder / STATES).iterdir():
                if is_partial(leftover.name, _is_states):
                    leftover.unlink()
        except OSError as error:
            raise RunFolderError(f"{folder / STATES}: {error.strerror}") from None
        self._head = Task(lambda: self._keep_head(tensors, stored=stored))

    def kept(self, passes: Sequence[range]) -> dict[str, Any]:
        """The record's section `kept`, when all is on disk; `passes` are the windows of each.

        Raises RunFolderError, ReferenceUnusable.
        """
        self._check_earlier()
        offsets = self._plan.offsets
        states = self._describe_states([int(offsets[w.stop] - offsets[w.start]) for w in passes])
        head, tokens = self._head.result(), self._keep_tokens()
        sha256 = reference_sha256(self._plan.sha256, states, head)
        return {"states": states, "head": head, "tokens": tokens, "sha256": sha256}

    def check_parts(self, hashes: Sequence[str]) -> None:
        """Begins to read the states of the first passes, which another process has written, and which
        must have these sha256: `settle` and `kept` raise where they have others.

        Raises RunFolderError where a file is missing.
        """
        paths = [self._folder / name_of(number) for number in range(len(hashes))]
        # A state's numbers have 4 bytes at most.
        most = HEADER_BYTES + 4 * self._width * self._plan.scored
        for path in paths:
            try:
                check_regular(path, most, links=False)
            except FileNotFoundError:
                raise RunFolderError(f"{path}: is missing, and its pass is done") from None
            except OSError as error:
                raise RunFolderError(f"{path}: {error.strerror}") from None
        self._hashes |= dict(enumerate(hashes))

        def check() -> None:
            for path, wanted in zip(paths, hashes, strict=True):
                try:
                    found = hash_file(path)
                except OSError as error:
                    raise RunFolderError(f"{path}: {error.strerror}") from None
                if found != wanted:
                    raise RunFolderError(
                        f"{path}: is damaged or another's: its sha256 is {found[:12]}…, and the "
                        f"record has {wanted[:12]}…: remove it, and --resume scores its pass again, "
                        "with those after it"
                    )

        self._earlier = Task(check)

    def _check_earlier(self) -> None:
        if self._earlier is not None:
            self._earlier.result()

    def check_room(self, rows: int, width: int, dtype: str) -> None:
        """Raises RunFolderError where the disk has no room for so many states of `dtype`."""
        needed = rows * width * getattr(torch, dtype).itemsize
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            raise RunFolderError(
                f"{self._folder}: the states take {needed / 1e9:.3g} GB, and there are "
                f"{free / 1e9:.3g} GB free"
            )

    def put(self, number: int, states: Sequence[torch.Tensor]) -> None:
        """Begins to write a pass's states, parts [n, D] of it one behind the other.

        On a GPU they may still have to be computed, by the current stream; afterwards they must not
        change any more. No more than the states of two passes are held: waits for those before.
        """
        path, parts = self._folder / name_of(number), tuple(states)
        for earlier in list(self._writing.values())[: 1 - HELD]:
            earlier.wait()
        ready = self._ready(number, parts[0].device)

        def write() -> None:
            stream = None
            if ready is not None:
                stream, made = ready
                stream.wait_event(made)
            with atomic(path) as tmp:
                create_states(tmp, sum(map(len, parts)), parts[0].shape[1], parts[0].dtype)
                self._hashes[number] = fill_states(tmp, parts, stream)

        self._writing[number] = Task(write)

    def _ready(
        self, number: int, device: torch.device
    ) -> "tuple[torch.cuda.Stream, torch.cuda.Event] | None":
        """The stream by which states leave a GPU, and when all that is queued now is done."""
        if device.type != "cuda":
            return None
        if not self._streams:
            self._streams = [torch.cuda.Stream(device) for _ in range(HELD)]
        made = torch.cuda.Event()
        made.record(torch.cuda.current_stream(device))
        return self._streams[number % HELD], made

    @contextmanager
    def states_file(self, number: int, rows: int, width: int, dtype: torch.dtype) -> Iterator[Path]:
        """A file for a pass's states [rows, width], which other processes write inside the block, and
        which is whole when it ends well. Raises RunFolderError."""
        with ExitStack() as stack:
            tmp = stack.enter_context(atomic(self._folder / name_of(number)))
            create_states(tmp, rows, width, dtype)
            yield tmp
            rest = stack.pop_all()

        def finish() -> None:
            self._hashes[number] = hash_file(tmp)
            rest.close()

        self._writing[number] = Task(finish)

    def settle(self, number: int) -> str:
        """The sha256 of the pass's states, when they are on disk, and those of passes before are known
        to be what they were. Raises RunFolderError."""
        self._writing.pop(number).result()
        self._check_earlier()
        return self._hashes[number]

    def stop(self) -> None:
        """Returns when nothing is being written any more: the folder may be removed then."""
        for work in (*self._writing.values(), self._head, self._earlier):
            if work is not None:
                work.wait()

    def discard(self) -> None:
        """Removes all that was kept, of a run that came to nothing."""
        self.stop()
        remove_folder(self._folder / STATES, _is_states)
        for name in (HEAD, TOKENS):
            (self._folder / name).unlink(missing_ok=True)

    def _keep_head(self, tensors: HeadTensors, *, stored: bool) -> dict[str, Any]:
        """The record's facts of the head, written beside the states if it is to be `stored`."""
        head = tensors.head
        parts = {"weight": head.weight[: head.vocabulary]}
        if head.bias is not None:
            parts["bias"] = head.bias[: head.vocabulary]
        if stored:
            with atomic(self._folder / HEAD) as tmp:
                hashes = write_tensors(tmp, parts)
        else:
            hashes = {name: digest_of(part) for name, part in parts.items()}
        return {
            "vocabulary": head.vocabulary,
            "scale": head.scale,
            "softcap": head.softcap,
            "dtype": str(head.weight.dtype).removeprefix("torch."),
            "width": head.weight.shape[1],
            "sha256": {name: hashes[name] for name in parts},
            "file": HEAD if stored else None,
            "checkpoint": None
            if stored
            else {
                "source": tensors.source,
                "path": tensors.place,
                "weight": tensors.weight,
                "bias": tensors.bias,
            },
        }

    def _keep_tokens(self) -> dict[str, Any]:
        """The record's facts of the plan's token stream, written beside the states as the little-endian
        int32 that the plan has the sha256 of: with the protocol, the plan can be made again from it."""
        with atomic(self._folder / TOKENS) as tmp:
            tmp.write_bytes(self._plan.tokens.astype("<i4").tobytes())
        return {"name": TOKENS, "sha256": self._plan.tokens_sha256}

    def _describe_states(self, passes: Sequence[int]) -> dict[str, Any]:
        """The record's facts of the states: `passes` are the rows of each."""
        names = [name_of(number) for number in range(len(passes))]
        kept = [read_states(self._folder / name) for name in names]
        for name, states, rows in zip(names, kept, passes, strict=True):
            if len(states) != rows:
                raise RunFolderError(
                    f"{self._folder / name}: {len(states)} states for {rows} targets"
                )
        return {
            "dtype": str(kept[0].dtype).removeprefix("torch."),
            "width": kept[0].shape[1],
            "rows": sum(passes),
            # Hashes of what was written, by this process or, as the record has it, by one before.
            "files": [
                {"name": name, "rows": rows, "sha256": self._hashes[number]}
                for number, (name, rows) in enumerate(zip(names, passes, strict=True))
            ],
        }


def digest_of(tensor: torch.Tensor) -> str:
    """sha256 of a tensor's bytes, row by row."""
    digest = sha256()
    for part in raw_bytes(tensor):
        digest.update(part)
    return digest.hexdigest()


def reference_sha256(plan_sha256: str, states: dict[str, Any], head: dict[str, Any]) -> str:
    """sha256 of all that makes a reference's numbers."""
    parts = {
        "plan": plan_sha256,
        "states": [states["dtype"], states["width"], [f["sha256"] for f in states["files"]]],
        "head": [head[k] for k in ("vocabulary", "scale", "softcap", "dtype", "width", "sha256")],
    }
    return json_digest(parts)
