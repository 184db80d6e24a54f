"""Conversations that a base model itself says, as a data set: `scoremode generate`.

The prompts are turned into ids by the model's own template, replied to in batches, and each reply is
written as a row. All that is done lies in a file beside the output, so that the same command goes on
where it was killed; the output and its record are there when all of it is.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from scoremode.checkpoint.bulk_io import hash_file
from scoremode.checkpoint.chat_template import (
    chat_template,
    turn_ends,
)
from scoremode.checkpoint.config import positions_of
from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.checkpoint.model_files import ModelFiles, resolve_model, tokenizer_places
from scoremode.checkpoint.tokenizer import checkpoint_tokenizer
from scoremode.engines.sampling import Sampler, Sampling, SamplingRequest, seed_of
from scoremode.errors import CorpusError, RunFolderError, TokenizerError, UsageError
from scoremode.lib.files import MOST_JSON, MOST_TEXT, open_lock, read_regular, take, write_text
from scoremode.lib.json import json_digest, json_text
from scoremode.results.record.section import first_difference
from scoremode.results.record.sections import now, versions
from scoremode.runs.replies import Prompts, Replying
from scoremode.startup.clock import StageClock
from scoremode.text.conversations.corpus import KIND, record_path
from scoremode.text.conversations.template import DATE


class Engine(Protocol):
    """Options that make a sampler: `TorchSampling`, `VllmSampling`."""

    def identity(self, checkpoint: Checkpoint) -> dict[str, Any]: ...

    def open(
        self, checkpoint: Checkpoint, longest: int, sampling: Sampling, ends: frozenset[int]
    ) -> Sampler: ...


@dataclass(frozen=True)
class Generation:
    """A request for generated conversations.

    - `samples`: replies to each prompt; `seed`: of all draws.
    - `template`: a file in place of the model's own; `arguments` and `date` for it.
    """

    base: str
    prompts: Prompts
    output: Path
    engine: Engine
    sampling: Sampling = field(default_factory=Sampling)
    samples: int = 1
    seed: int = 0
    revision: str | None = None
    tokenizer: str | None = None
    template: Path | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    date: Any = DATE
    trust_remote_code: bool = False
    command: tuple[str, ...] = ()


class PartFile:
    """Batches that are done, each by its number, in a file beside the output, so that a killed command
    goes on. Close it, or use it in a `with` block.

    Its first line is the identity of the command; each further one a batch, written whole and synced.
    What follows the last newline was being written when the command was killed, and is cut off.

    Raises RunFolderError where another process has it, where it can't be written, and where another
    command has begun it.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]):
        self.path = path
        self.done: dict[int, list[dict[str, Any] | None]] = {}
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

    def add(self, number: int, rows: list[dict[str, Any] | None]) -> None:
        """Writes a batch, and has it on disk. Raises RunFolderError."""
        self._append({"batch": number, "rows": rows})
        self.done[number] = rows

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


def generate(
    wanted: Generation,
    *,
    notify: Callable[[str], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda done, of: None,
    clock: StageClock | None = None,
) -> dict[str, Any]:
    """Writes the conversations and their record, and returns the record; of a file that this very call
    has written already, that.

    `progress` is told replies that are newly done, of all; first those of before. Raises
    ScoremodeError.
    """
    clock = clock or StageClock()
    if wanted.samples < 1:
        raise UsageError(f"--samples-per-prompt {wanted.samples}: must be at least 1")
    clock.begin("open")
    files = resolve_model(wanted.base, wanted.revision)
    checkpoint = open_checkpoint(files, code=wanted.trust_remote_code)
    replying = _replying(wanted, files)
    if not replying.ends:
        notify(
            f"{checkpoint.source}: names no token that ends a turn: every reply is cut at "
            "--max-new-tokens"
        )
    requests = _sampling_requests(wanted, replying, checkpoint)
    longest = max(len(one.ids) for one in requests) + wanted.sampling.max_new_tokens
    clock.begin("hash")
    record = record_of(wanted, checkpoint, replying, _identity(wanted, checkpoint, replying))
    if (finished := _finished(wanted.output, record)) is not None:
        # Killed before it was removed.
        remove_left(wanted.output, record["identity"])
        notify(f"{wanted.output}: is there already, as this command writes it")
        return finished
    with PartFile(part_path(wanted.output), record["identity"]) as part:
        try:
            engine = _fill(part, wanted, replying, requests, checkpoint, longest, progress, clock)
            clock.begin("write")
            checkpoint.check_unchanged()
            return _write(part, wanted, record, engine)
        except BaseException:
            if not part.done:
                part.remove()
            raise


def _replying(wanted: Generation, files: ModelFiles) -> Replying:
    """The tokenizer, the template and the ends of turns, as a run of the same model finds them."""
    places = tokenizer_places(wanted.tokenizer, files)
    tokenizer = checkpoint_tokenizer(places[0])
    template = chat_template(places, tokenizer, wanted.template)
    if template is None:
        raise TokenizerError(
            f"{wanted.base}: has no chat template: give one with --chat-template FILE"
        )
    template = replace(template, arguments=wanted.arguments, date=wanted.date)
    template.check()
    return Replying(tokenizer, template, turn_ends(places, tokenizer))


def _sampling_requests(
    wanted: Generation, replying: Replying, checkpoint: Checkpoint
) -> list[SamplingRequest]:
    """Lists the replies that are asked for, a prompt's samples one behind the other.

    Raises CorpusError where a prompt leaves no room for its reply.
    """
    positions = positions_of(checkpoint.text_config)
    requests, most = [], wanted.sampling.max_new_tokens
    for place, prompt in enumerate(wanted.prompts.prompts):
        ids = replying.ids(prompt)
        if positions is not None and len(ids) + most > positions:
            raise CorpusError(
                f"{prompt.where}: has {len(ids):,} tokens, and with --max-new-tokens {most:,} more it "
                f"exceeds the model's {positions:,} positions"
            )
        requests += [
            SamplingRequest(ids, seed_of(wanted.seed, place, k)) for k in range(wanted.samples)
        ]
    return requests


def _identity(wanted: Generation, checkpoint: Checkpoint, replying: Replying) -> dict[str, Any]:
    """Facts that two commands must share to write the same file."""
    # What it refuses, it refuses before all bytes are read.
    engine = wanted.engine.identity(checkpoint)
    return {
        "files": checkpoint.hash_files(),
        "tokenizer": replying.tokenizer.sha256,
        "template": {k: v for k, v in replying.template.to_json().items() if k != "source"},
        "ends": sorted(replying.ends),
        "prompts": json_digest([prompt.sha256 for prompt in wanted.prompts.prompts]),
        "prompts_file": wanted.prompts.sha256,
        "sampling": wanted.sampling.to_json() | {"seed": wanted.seed, "samples": wanted.samples},
        "engine": engine,
        "versions": versions(),
    }


def _finished(output: Path, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of an output that is there and is what this command would write; None for none.

    Raises RunFolderError for any other file there.
    """
    if not output.exists():
        if output.parent.is_dir():
            return None
        raise RunFolderError(f"{output}: is in no folder")
    found = finished_record(output)
    if found is None:
        raise RunFolderError(
            f"{output}: is there already, and no record says how it was made: remove it, or write to "
            "another file"
        )
    ours = json.loads(json.dumps(record["identity"]))
    if differs := first_difference("", found["identity"], ours):
        name, theirs, own = differs
        raise RunFolderError(
            f"{output}: is there already, with {name} {theirs!r}, and this command has {own!r}: remove "
            "it, or write to another file"
        )
    return found


def _fill(
    part: PartFile,
    wanted: Generation,
    replying: Replying,
    requests: list[SamplingRequest],
    checkpoint: Checkpoint,
    longest: int,
    progress: Callable[[int, int], None],
    clock: StageClock,
) -> dict[str, Any]:
    """Generates what the part file lacks, and returns what the engine says of itself."""
    clock.begin("engine")
    sampler = wanted.engine.open(checkpoint, longest, wanted.sampling, replying.ends)
    try:
        clock.begin("generate")
        batches = sampler.batches(requests)
        done = sum(len(batches[number]) for number in part.done)
        progress(done, len(requests))
        for number, places in enumerate(batches):
            if number in part.done:
                continue
            replies = sampler.replies([requests[place] for place in places])
            rows = []
            for place, reply in zip(places, replies, strict=True):
                prompt, sample = divmod(place, wanted.samples)
                about = {"prompt": prompt, "sample": sample, "seed": requests[place].seed}
                rows.append(replying.row(wanted.prompts.prompts[prompt], reply, about))
            part.add(number, rows)
            progress(len(places), len(requests))
        return sampler.describe()
    finally:
        sampler.close()


def _write(
    part: PartFile, wanted: Generation, record: dict[str, Any], engine: Mapping[str, Any]
) -> dict[str, Any]:
    """Writes the record of all batches, then their output, and removes the part file."""
    replies = [row for rows in part.done.values() for row in rows]
    rows = [row for row in replies if row is not None]
    if not rows:
        raise CorpusError(
            f"{wanted.output}: none of {len(replies):,} replies gives a conversation that reads back "
            "as the tokens that were generated"
        )
    rows.sort(key=lambda row: (row["generated"]["prompt"], row["generated"]["sample"]))
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    finished = record_text(record, wanted.output, text, replies, engine)
    # The record first: killed between the two, the same command must know an output that is there.
    write_text(record_path(wanted.output), finished)
    write_text(wanted.output, text)
    part.remove()
    return json.loads(finished)


def part_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.part")


def remove_left(output: Path, identity: Mapping[str, Any]) -> None:
    """Removes what the command of this identity left, killed when its output was there; what is
    another's stays."""
    path = part_path(output)
    if os.path.lexists(path):
        with suppress(RunFolderError):
            PartFile(path, identity).remove()


def record_of(
    wanted: "Generation", checkpoint: Checkpoint, replying: Replying, identity: dict[str, Any]
) -> dict[str, Any]:
    """The record but for what follows from the replies."""
    return {
        "kind": KIND,
        "schema_version": 1,
        "command": list(wanted.command),
        "base": {
            "source": checkpoint.source,
            "fingerprint": checkpoint.fingerprint,
            "files": identity["files"],
        },
        "tokenizer": replying.tokenizer.to_json(),
        "template": replying.template.to_json(),
        "ends": identity["ends"],
        "prompts": wanted.prompts.to_json(),
        "sampling": identity["sampling"],
        "engine": identity["engine"],
        "versions": identity["versions"],
        "identity": identity,
        "begun": now(),
    }


def record_text(
    record: Mapping[str, Any],
    output: Path,
    text: str,
    replies: Sequence[Mapping[str, Any] | None],
    engine: Mapping[str, Any],
) -> str:
    """The whole record as JSON; `text`: the output's, `replies`: their rows, None for one left out."""
    data = text.encode()
    whole = {
        **record,
        "engine": {**record["engine"], **engine},
        "finished": now(),
        "counts": counts_of(replies),
        "output": {
            "name": output.name,
            "bytes": len(data),
            "sha256": sha256(data).hexdigest(),
        },
    }
    return json_text(whole)


def counts_of(replies: Sequence[Mapping[str, Any] | None]) -> dict[str, int]:
    """Replies, how many of them are `written` and `left_out`, and how many of those written `ended`
    their turn, were `cut`, or are `respelled` (have `generated_ids`); the `tokens` in them."""
    rows = [row for row in replies if row is not None]
    ends = Counter(row["finish_reason"] for row in rows)
    return {
        "replies": len(replies),
        "written": len(rows),
        "left_out": len(replies) - len(rows),
        "ended": ends["stop"],
        "cut": ends["length"],
        "respelled": sum("generated_ids" in row for row in rows),
        "tokens": sum(row["generated"]["tokens"] for row in rows),
    }


def finished_record(output: Path) -> dict[str, Any] | None:
    """The record of a file that is as its record says; None for any other file.

    Raises OSError where the record can't be read for another reason than not being there.
    """
    file = record_path(output)
    try:
        record = json.loads(read_regular(file, MOST_JSON))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("kind") != KIND or "identity" not in record:
        return None
    said = record.get("output")
    if not isinstance(said, dict) or said.get("sha256") != hash_file(output):
        return None
    return record
