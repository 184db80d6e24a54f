"""Conversations that a base model itself says, as a data set: `scoremode generate`.

The prompts are turned into ids by the model's own template, replied to in batches, and each reply is
written as a row. All that is done lies in a file beside the output, so that the same command goes on
where it was killed; the output and its record are there when all of it is.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from scoremode.checkpoint.chat_template import (
    chat_template,
    special_tokens,
    template_file,
    turn_ends,
)
from scoremode.checkpoint.config import positions_of
from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.checkpoint.tokenizer import checkpoint_tokenizer
from scoremode.engines.sampling import Asked, Sampler, Sampling, seed_of
from scoremode.errors import CorpusError, RunFolderError, TokenizerError, UsageError
from scoremode.lib.files import write_text
from scoremode.lib.json import json_digest
from scoremode.results.record.differences import first_difference
from scoremode.results.record.sections import versions
from scoremode.runs.generation.part_file import PartFile, part_path, remove_left
from scoremode.runs.generation.prompts import Prompts
from scoremode.runs.generation.record import finished_record, record_of, record_text
from scoremode.runs.generation.replies import Replying
from scoremode.startup.clock import StageClock
from scoremode.text.conversations.corpus import record_path
from scoremode.text.conversations.template import DATE

__all__ = ["Engine", "Generation", "generate"]


class Engine(Protocol):
    """How a sampler is made: `TorchSampling`, `VllmSampling`."""

    def identity(self, checkpoint: Checkpoint) -> dict[str, Any]: ...

    def open(
        self, checkpoint: Checkpoint, longest: int, sampling: Sampling, ends: frozenset[int]
    ) -> Sampler: ...


@dataclass(frozen=True)
class Generation:
    """What is to be generated.

    - `samples`: replies to each prompt; `seed`: of all draws.
    - `template`: a file in place of the model's own; `arguments` and `date` for it.
    - `keeps_inexact`: whether replies whose ids don't come back from what is written are kept.
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
    keeps_inexact: bool = True
    trust_remote_code: bool = False
    command: tuple[str, ...] = ()


def generate(
    wanted: Generation,
    *,
    notify: Callable[[str], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda done, of: None,
    clock: StageClock | None = None,
) -> dict[str, Any]:
    """Writes the conversations and their record, and returns the record; of a file that this very call
    has written already, that.

    `progress` is told replies that are done, of all. Raises ScoremodeError.
    """
    clock = clock or StageClock()
    if wanted.samples < 1:
        raise UsageError(f"--samples-per-prompt {wanted.samples}: must be at least 1")
    clock.begin("open")
    checkpoint = open_checkpoint(wanted.base, wanted.revision, code=wanted.trust_remote_code)
    replying = _replying(wanted)
    if not replying.ends:
        notify(
            f"{checkpoint.source}: names no token that ends a turn: every reply is cut at "
            "--max-new-tokens"
        )
    asked = _asked(wanted, replying, checkpoint)
    longest = max(len(one.ids) for one in asked) + wanted.sampling.max_new_tokens
    clock.begin("hash")
    record = record_of(wanted, checkpoint, replying, _identity(wanted, checkpoint, replying))
    if (finished := _finished(wanted.output, record)) is not None:
        # Killed before it was removed.
        remove_left(wanted.output, record["identity"])
        notify(f"{wanted.output}: is there already, as this command writes it")
        return finished
    with PartFile(part_path(wanted.output), record["identity"]) as part:
        try:
            engine = _fill(part, wanted, replying, asked, checkpoint, longest, progress, clock)
            clock.begin("write")
            checkpoint.check_unchanged()
            return _write(part, wanted, record, engine)
        except BaseException:
            if not part.done:
                part.remove()
            raise


def _replying(wanted: Generation) -> Replying:
    """The tokenizer, the template and the ends of turns, as a run of the same model finds them."""
    # As planning has it: beside a tokenizer that is given before the model's own.
    places: list[tuple[str, str | None]] = [(wanted.base, wanted.revision)]
    if wanted.tokenizer is not None:
        places.insert(0, (wanted.tokenizer, None))
    tokenizer = checkpoint_tokenizer(*places[0])
    found = (chat_template(*place, tokenizer) for place in places)
    template = next((each for each in found if each is not None), None)
    if wanted.template is not None:
        template = template_file(wanted.template, special_tokens(*places[0], tokenizer))
    if template is None:
        raise TokenizerError(
            f"{wanted.base}: has no chat template: give one with --chat-template FILE"
        )
    ends = frozenset().union(*(turn_ends(*place, tokenizer) for place in places))
    template = replace(template, arguments=wanted.arguments, date=wanted.date)
    template.check()
    return Replying(tokenizer, template, ends)


def _asked(wanted: Generation, replying: Replying, checkpoint: Checkpoint) -> list[Asked]:
    """All that is asked for, a prompt's samples one behind the other.

    Raises CorpusError where a prompt leaves no room for its reply.
    """
    positions = positions_of(checkpoint.text_config)
    asked, most = [], wanted.sampling.max_new_tokens
    for place, prompt in enumerate(wanted.prompts.prompts):
        ids = replying.ids(prompt)
        if positions is not None and len(ids) + most > positions:
            raise CorpusError(
                f"{prompt.where}: has {len(ids):,} tokens, and with --max-new-tokens {most:,} more it "
                f"exceeds the model's {positions:,} positions"
            )
        asked += [Asked(ids, seed_of(wanted.seed, place, k)) for k in range(wanted.samples)]
    return asked


def _identity(wanted: Generation, checkpoint: Checkpoint, replying: Replying) -> dict[str, Any]:
    """All that two commands must share to write the same file."""
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
        "inexact": "keep" if wanted.keeps_inexact else "drop",
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
    asked: list[Asked],
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
        batches = sampler.batches(asked)
        done = sum(len(batches[number]) for number in part.done)
        progress(done, len(asked))
        for number, places in enumerate(batches):
            if number in part.done:
                continue
            replies = sampler.replies([asked[place] for place in places])
            rows = []
            for place, reply in zip(places, replies, strict=True):
                prompt, sample = divmod(place, wanted.samples)
                about = {"prompt": prompt, "sample": sample, "seed": asked[place].seed}
                written = replying.written(wanted.prompts.prompts[prompt], reply, about)
                kept = written.is_readable and (written.is_exact or wanted.keeps_inexact)
                rows.append({"row": written.row, "form": written.form, "kept": kept})
            part.add(number, rows)
            done += len(places)
            progress(done, len(asked))
        return sampler.describe()
    finally:
        sampler.close()


def _write(
    part: PartFile, wanted: Generation, record: dict[str, Any], engine: Mapping[str, Any]
) -> dict[str, Any]:
    """Writes the record of all batches, then their output, and removes the part file."""
    written = [one for rows in part.done.values() for one in rows]
    written.sort(
        key=lambda one: (one["row"]["generated"]["prompt"], one["row"]["generated"]["sample"])
    )
    kept = [one["row"] for one in written if one["kept"]]
    if not kept:
        raise CorpusError(
            f"{wanted.output}: none of {len(written):,} replies gives a conversation that can be read "
            "back exactly: --inexact keep keeps the others"
        )
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept)
    finished = record_text(record, wanted.output, text, written, engine)
    # The record first: killed between the two, the same command must know an output that is there.
    write_text(record_path(wanted.output), finished)
    write_text(wanted.output, text)
    part.remove()
    return json.loads(finished)
