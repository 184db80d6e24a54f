"""The command line that measures a finished run again, made of what its record says.

Model, base, text and protocol are the record's values; what tunes the engine is what its own command
line had, or where that names none of it, as a sweep's, what the engine says of itself. What lay on the
measuring machine is called by its last part, such as `wiki.test.raw`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET, UnsetType

from scoremode.cli.command import Measurement
from scoremode.cli.kld import Kld
from scoremode.engines.kv_formats import AS_DECLARED, is_declared
from scoremode.errors import ScoremodeError
from scoremode.lib.hub import on_hub
from scoremode.results.record.definition import Done
from scoremode.results.record.model import Checkpoint, VllmEngine
from scoremode.results.record.text import Calibration, Conversations, Corpus

_RUNS = (["ppl"], ["kld"], ["reference"])
_USUAL_TEXT = "wikitext wikitext-2-raw-v1 test"
# Flags by their names; what is None is left away.
_Given = dict[str, Any]


def reproduction(record: Done) -> list[str]:
    """The words of the command, without folders: its run goes to where runs go."""
    recorded = _recorded(record)
    name, revision = _model(_own_source(record.checkpoint))
    reference = record.reference
    given: _Given = {"revision": revision}
    if reference:
        source = reference.checkpoint.source if reference.checkpoint else reference.source
        given["reference"], given["reference_revision"] = _model(source)
    given |= _mixture(record.checkpoint) | _tokenizer(record) | _protocol(record.protocol.name)
    given |= _text(record.corpus, recorded) | _calibration(record.calibration)
    given |= _measured_by(record) if recorded is None else _tuning(recorded)
    return ["scoremode", "kld" if reference else "ppl", name, *_words(given)]


def joined(commands: Sequence[Sequence[str]]) -> list[list[str]]:
    """Commands that differ in nothing but their model as one, where the command takes several."""
    alike = {(*command[:2], *command[3:]) for command in commands}
    if len(alike) > 1 or len(commands) < 2 or commands[0][1] != Kld.called:
        return [list(command) for command in commands]
    first = commands[0]
    return [[*first[:2], *(command[2] for command in commands), *first[3:]]]


def _words(given: _Given) -> list[str]:
    """Flags as a user would type them."""
    words: list[str] = []
    for name, value in given.items():
        # A list only where a flag is given several times.
        for each in value if isinstance(value, list) else [value]:
            flag = "-f" if name == "file" else Kld.flags[name].spelled
            if each is None:
                continue
            if isinstance(each, bool):
                words.append(flag if each else f"--no-{flag[2:]}")
            elif name == "text" or str(each).startswith("-"):
                words.append(f"{flag}={each}")
            else:
                words += [flag, str(each)]
    return words


def _model(source: str) -> tuple[str, str | None]:
    """A model by a name that means the same elsewhere, and its revision on the hub."""
    if found := on_hub(source):
        return found[0], found[1] or None
    return _last(source), None


def _own_source(checkpoint: Checkpoint) -> str:
    """The model's source, of a mixture without what it takes from others."""
    return (checkpoint.mixture or checkpoint).source


def _mixture(checkpoint: Checkpoint) -> _Given:
    taken = checkpoint.mixture.taken if checkpoint.mixture else []
    swaps = [f"{take.pattern}={_model(take.source)[0]}" for take in taken if not take.is_base]
    return {"keep_dense": [take.pattern for take in taken if take.is_base], "swap": swaps}


def _last(path: str) -> str:
    name = Path(path).name or path
    # Not a flag.
    return f"./{name}" if name.startswith("-") else name


def _tokenizer(record: Done) -> _Given:
    """The tokenizer where it is not the model's own."""
    source, own = record.tokenizer.source, _own_source(record.checkpoint)
    name, of = _model(source)
    if source in (own, record.checkpoint.path) or (name, of) == _model(own):
        return {}
    return {"tokenizer": name}


def _protocol(protocol: str) -> _Given:
    """The preset, and the flags that its name says were changed."""
    name, *changes = protocol.split("+")
    # What is scored without the flag: conversations by `chat`.
    given: _Given = {"protocol": None if name in ("score-mode", "chat") else name}
    for change in changes:
        field, _, value = change.partition("=")
        field = {"max-windows": "limit", "scored": "score"}.get(field, field)
        given[field.replace("-", "_")] = value
    return given


def _text(corpus: Corpus, recorded: Measurement | None) -> _Given:
    """The text: by its own name, by that on the hub, or by its file's."""
    from scoremode.text.presets import TEXTS

    source, name, chats = corpus.source or "", corpus.name, corpus.conversations
    given: _Given = {}
    named = TEXTS.get(corpus.preset or "")
    if named is not None:
        given["preset"] = named.name
        if source.startswith("hub:"):
            revision = _model(source)[1]
            given["dataset_revision"] = revision if revision != named.revision else None
        else:
            given["dataset_file"] = _last(source)
    elif source.startswith("hub:"):
        if name != _USUAL_TEXT:
            repo, revision = _model(source)
            dataset, *parts = name.split(" ")
            given["conversations" if chats else "dataset"] = dataset or repo
            given["dataset_config"] = parts[0] if len(parts) > 1 else None
            given["split"] = parts[-1] if parts and parts[-1] != "test" else None
            given["dataset_revision"] = revision
    elif source == "argument":
        if recorded is not None and recorded.text is not None:
            given["text"] = recorded.text
        else:
            given["file"] = "TEXT"
    elif chats:
        given["conversations"] = _last(source)
    elif corpus.rows is not None:
        given["dataset_file"] = _last(source)
    else:
        files = [file.source for file in corpus.files or ()]
        given["file"] = [_last(file) for file in files or [source or name]]
    if chats:
        given |= _chats(chats)
    elif named is None and corpus.rows is not None:
        # The first records have it in their command line alone.
        field = corpus.text_field or (recorded.text_field if recorded else None)
        given["text_field"] = field if field != "text" else None
    group_by = corpus.group_by or None
    if named is None or group_by != named.group_by:
        given["group_by"] = group_by
    given["num_samples"] = corpus.row_limit
    # Else the protocol's own may be one that draws windows.
    return given if corpus.row_seed is UNSET else given | {"seed": corpus.row_seed}


def _calibration(found: Calibration | UnsetType) -> _Given:
    """The text that was looked for in the scored one."""
    if not found:
        return {}
    source = found.source
    field = {"calibration_field": found.text_field if found.text_field != "text" else None}
    if not source.startswith("hub:"):
        return {"calibration": _last(source)} | field
    repo, revision = _model(source)
    dataset, *parts = found.name.split(" ")
    return {
        "calibration": dataset or repo,
        **field,
        "calibration_config": parts[0] if len(parts) > 1 else None,
        "calibration_split": parts[-1] if parts and parts[-1] != "train" else None,
        "calibration_revision": revision,
    }


def _chats(chats: Conversations) -> _Given:
    """Conversations, by what their section says."""
    skipped: _Given = {"skip_bad_rows": chats.bad_rows or None}
    if (template := chats.template) is None:
        return skipped
    arguments = template.arguments
    return {
        "chat_template": _last(template.source) if template.given else None,
        "chat_template_kwargs": json.dumps(arguments) if arguments else None,
        "chat_date": template.date,
        **skipped,
    }


def _recorded(record: Done) -> Measurement | None:
    """The spec of the record's own command, None where it isn't a single run's."""
    from scoremode.cli.main import parsed_command
    from scoremode.results.record.sections import command_of

    words = command_of(record)
    if words[1:2] not in _RUNS:
        return None
    try:
        spec = parsed_command(words[1:])
    except (ScoremodeError, SystemExit):
        # Another release's, or one that is cut.
        return None
    assert isinstance(spec, Measurement)
    return spec


def _measured_by(record: Done) -> _Given:
    """The engine's flags by what the record says of it, where no command line has them: a sweep's are
    in its file."""
    engine = record.engine
    sure = record.thresholds.confident if record.thresholds else 0.9
    given: _Given = {
        "full": True if "jsd" in record.metrics else None,
        "confident": sure if sure != 0.9 else None,
    }
    if isinstance(engine, VllmEngine):
        given["engine"] = "vllm"
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            given[name] = size if (size := getattr(engine, name)) != 1 else None
    else:
        cache = engine.kv_cache_dtype if engine.arithmetic != "llama.cpp" else None
        given["arithmetic"] = engine.arithmetic
        given["batch_size"] = engine.batch_windows
        given["kv_cache"] = AS_DECLARED if cache and is_declared(cache) else cache
    return given | {"dtype": engine.dtype}


def _tuning(recorded: Measurement) -> _Given:
    """The flags of the run's own command that change how scores are computed."""
    return {
        name: value
        for name, flag in sorted(recorded.flags.items())
        if flag.moves_score and (value := getattr(recorded, name)) != flag.default
    }
