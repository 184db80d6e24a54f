"""The command line that measures a finished run again, made of what its record says.

Model, base, text and protocol are the record's values; what tunes the engine is what its own command
line had, or where that names none of it, as a sweep's, what the engine says of itself. What lay on the
measuring machine is called by its last part, such as `wiki.test.raw`.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from scoremode.cli.flags.parser import flag_of
from scoremode.engines.kv_formats import AS_DECLARED, is_declared
from scoremode.errors import ScoremodeError

__all__ = ["joined", "reproduction"]

# Flags of a run that change no score, or that the record's values give.
_LEFT_OUT = {
    "help", "model", "model_flag", "revision", "reference", "reference_revision", "form", "quiet",
    "verbose", "output_path", "resume", "token_text", "device", "devices", "max_memory", "placement",
    "protocol", "limit", "num_samples", "file",
    "text", "dataset_file", "dataset", "dataset_config", "dataset_revision", "split", "text_field",
    "head", "export_llama_cpp", "export_nats", "llama_cpp_block", "noise_floor", "max_kld",
    "max_kld_p99", "max_ppl_ratio", "min_top1", "gate_on", "tokenizer", "stop_when", "seed",
    "conversations", "score", "group_by", "chat_template", "chat_template_kwargs", "chat_date",
    "skip_bad_rows", "calibration", "calibration_config", "calibration_revision", "calibration_split",
    "calibration_field",
    "preset", "list_presets", "shard", "keep_dense", "swap",
}  # fmt: skip
_RUNS = ("ppl", "kld", "reference")
_USUAL_TEXT = "wikitext wikitext-2-raw-v1 test"


def reproduction(record: Mapping[str, Any]) -> list[str]:
    """The words of the command, without folders: its run goes to where runs go."""
    recorded = _recorded(record)
    name, revision = _model(_own_source(record["checkpoint"]))
    reference = record.get("reference")
    words = ["scoremode", "kld" if reference else "ppl", name, *_flag("revision", revision)]
    if reference:
        source = (reference.get("checkpoint") or {}).get("source") or reference.get("source")
        base, of = _model(str(source))
        words += [*_flag("reference", base), *_flag("reference_revision", of)]
    words += _mixture(record["checkpoint"])
    words += _tokenizer(record)
    words += _protocol(record["protocol"])
    words += _text(record["corpus"], recorded)
    words += _calibration(record.get("calibration"))
    return [*words, *_tuning(recorded, record)]


def joined(commands: Sequence[Sequence[str]]) -> list[list[str]]:
    """Commands that differ in nothing but their model as one, where the command takes several."""
    from scoremode.cli.main import parsed_command

    if len({(*c[:2], *c[3:]) for c in commands}) > 1 or len(commands) < 2:
        return [list(command) for command in commands]
    first = commands[0]
    one = [*first[:2], *(command[2] for command in commands), *first[3:]]
    try:
        parsed_command(one[1:])
    except ScoremodeError:
        return [list(command) for command in commands]
    return [one]


def _model(source: str) -> tuple[str, str | None]:
    """A model by a name that means the same elsewhere, and its revision on the hub."""
    if source.startswith("hub:"):
        name, _, revision = source.removeprefix("hub:").partition("@")
        return name, revision or None
    return _last(source), None


def _own_source(checkpoint: Mapping[str, Any]) -> str:
    """The model's source, of a mixture without what it takes from others."""
    return str((checkpoint.get("mixture") or checkpoint)["source"])


def _mixture(checkpoint: Mapping[str, Any]) -> list[str]:
    """The flags of a mixture."""
    words: list[str] = []
    for take in (checkpoint.get("mixture") or {}).get("taken", ()):
        if take["is_base"]:
            words += _flag("keep_dense", take["pattern"])
        else:
            words += _flag("swap", f"{take['pattern']}={_model(str(take['source']))[0]}")
    return words


def _last(path: str) -> str:
    name = Path(path).name or path
    # Not a flag.
    return f"./{name}" if name.startswith("-") else name


def _flag(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    text = str(value)
    flag = flag_of(name)
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _tokenizer(record: Mapping[str, Any]) -> list[str]:
    """The tokenizer where it is not the model's own."""
    source, own = str(record["tokenizer"]["source"]), _own_source(record["checkpoint"])
    name, of = _model(source)
    if source in (own, record["checkpoint"].get("path")) or (name, of) == _model(own):
        return []
    return _flag("tokenizer", name)


def _protocol(protocol: Mapping[str, Any]) -> list[str]:
    """The preset, and the flags that its name says were changed."""
    name, *changes = str(protocol["name"]).split("+")
    # What is scored without the flag: conversations by `chat`.
    words = [] if name in ("score-mode", "chat") else _flag("protocol", name)
    for change in changes:
        field, _, value = change.partition("=")
        field = {"max-windows": "limit", "scored": "score"}.get(field, field)
        words += _flag(field.replace("-", "_"), value)
    return words


def _text(corpus: Mapping[str, Any], recorded: argparse.Namespace | None) -> list[str]:
    """The text: by its own name, by that on the hub, or by its file's."""
    from scoremode.text.presets import TEXTS

    source, name = str(corpus.get("source") or ""), str(corpus["name"])
    words: list[str] = []
    chats = corpus.get("conversations")
    named = TEXTS.get(corpus.get("preset", ""))
    if named is not None:
        words += _flag("preset", named.name)
        if source.startswith("hub:"):
            revision = _model(source)[1]
            words += _flag("dataset_revision", revision) if revision != named.revision else []
        else:
            words += _flag("dataset_file", _last(source))
    elif source.startswith("hub:"):
        repo, revision = _model(source)
        dataset, *parts = name.split(" ")
        if name != _USUAL_TEXT:
            config = parts[0] if len(parts) > 1 else None
            flag = "dataset" if chats is None else "conversations"
            words += _flag(flag, dataset or repo) + _flag("dataset_config", config)
            words += _flag("split", parts[-1]) if parts and parts[-1] != "test" else []
            words += _flag("dataset_revision", revision)
    elif source == "argument":
        text = None if recorded is None else recorded.text
        words += [f"--text={text}"] if text is not None else _flag("file", "TEXT")
    elif chats is not None:
        words += _flag("conversations", _last(source))
    elif corpus.get("rows") is not None:
        words += _flag("dataset_file", _last(source))
    elif corpus.get("files"):
        for file in corpus["files"]:
            words += ["-f", _last(str(file["source"]))]
    else:
        words += ["-f", _last(source or name)]
    if chats is not None:
        words += _chats(chats)
    elif named is None and corpus.get("rows") is not None:
        # The first records have it in their command line alone.
        field = corpus.get("text_field") or (recorded.text_field if recorded else None)
        words += _flag("text_field", field) if field != "text" else []
    if named is None or corpus.get("group_by") != named.group_by:
        words += _flag("group_by", corpus.get("group_by"))
    words += _flag("num_samples", corpus.get("row_limit"))
    return words + _flag("seed", corpus.get("row_seed"))


def _calibration(found: Mapping[str, Any] | None) -> list[str]:
    """The flags of the text that was looked for in the scored one."""
    if found is None:
        return []
    source = str(found["source"])
    words = _flag(
        "calibration_field", found["text_field"] if found["text_field"] != "text" else None
    )
    if not source.startswith("hub:"):
        return _flag("calibration", _last(source)) + words
    repo, revision = _model(source)
    dataset, *parts = str(found["name"]).split(" ")
    words += _flag("calibration_config", parts[0] if len(parts) > 1 else None)
    words += _flag("calibration_split", parts[-1] if parts and parts[-1] != "train" else None)
    return _flag("calibration", dataset or repo) + words + _flag("calibration_revision", revision)


def _chats(chats: Mapping[str, Any]) -> list[str]:
    """The flags of conversations, by what their section says."""
    template = chats["template"] or {}
    words: list[str] = []
    if template.get("given"):
        words += _flag("chat_template", _last(template["source"]))
    if template.get("arguments"):
        words += _flag("chat_template_kwargs", json.dumps(template["arguments"]))
    words += _flag("chat_date", template.get("date"))
    return words + _flag("skip_bad_rows", chats["bad_rows"] or None)


def _recorded(record: Mapping[str, Any]) -> argparse.Namespace | None:
    """The flags of the record's own command, None where it is none of a single run."""
    from scoremode.cli.main import parsed_command
    from scoremode.results.record.sections import command_of

    command = [str(word) for word in command_of(record)]
    if len(command) < 2 or command[1] not in _RUNS:
        return None
    try:
        return parsed_command(command[1:])
    except (ScoremodeError, SystemExit):
        # Another release's, or one that is cut.
        return None


def _measured_by(record: Mapping[str, Any]) -> list[str]:
    """The engine's flags by what the record says of it, where no command line has them: a sweep's are
    in its file."""
    engine = record["engine"]
    words = ["--full"] if "jsd" in record["metrics"] else []
    if (sure := (record.get("thresholds") or {}).get("confident", 0.9)) != 0.9:
        words += _flag("confident", sure)
    if engine.get("engine", "torch") == "torch":
        cache = engine.get("kv_cache_dtype") if engine["arithmetic"] != "llama.cpp" else None
        words += _flag("arithmetic", engine["arithmetic"])
        words += _flag("batch_size", engine.get("batch_windows"))
        words += _flag("kv_cache", AS_DECLARED if cache and is_declared(cache) else cache)
    else:
        words += _flag("engine", engine["engine"])
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            words += _flag(name, engine[name]) if engine.get(name, 1) != 1 else []
    return [*words, *_flag("dtype", engine["dtype"])]


def _tuning(recorded: argparse.Namespace | None, record: Mapping[str, Any]) -> list[str]:
    """What else the run's command said of how to compute."""
    if recorded is None:
        return _measured_by(record)
    from scoremode.cli.main import parsed_command
    from scoremode.results.record.sections import command_of
    from scoremode.text.protocol import Protocol

    # The protocol's name has told its fields.
    told = _LEFT_OUT | {field.name for field in fields(Protocol)}
    command = command_of(record)[1]
    usual = parsed_command([command, "x", *(["--reference", "x"] if command == "kld" else [])])
    words: list[str] = []
    for name, value in sorted(vars(recorded).items()):
        if name in told or value == getattr(usual, name, value):
            continue
        if value is True:
            words.append(flag_of(name))
        elif value is False:
            words.append(f"--no-{name.replace('_', '-')}")
        elif isinstance(value, list):
            words += [word for each in value for word in _flag(name, each)]
        elif isinstance(value, str | int | float):
            words += _flag(name, value)
    return words
