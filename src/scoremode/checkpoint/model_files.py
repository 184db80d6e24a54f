"""A model's files: found once by its name, on the hub at one commit, and passed on.

Every command calls `resolve_model` once for each model that it names, and hands the `ModelFiles` to
whatever reads the config, the tokenizer, the chat template or the weights: a branch of the hub that
moves meanwhile changes none of them. Safetensors are read, and GGUF. Anything else that a folder may
hold is refused by its name, with what to do instead.
"""

import os
from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any

from scoremode.checkpoint.config import read_json
from scoremode.checkpoint.gguf.names import gguf_parts, is_gguf, listed, model_files, named_gguf
from scoremode.errors import CheckpointError, UnsupportedFormat, words_of

# The files that transformers makes a fast tokenizer from where there is no tokenizer.json.
SLOW_FILES = ("tokenizer.model", "vocab.json", "vocab.txt")
TOKENIZER_FILES = ("tokenizer.json", *SLOW_FILES)
# The files of a repository that are fetched before its weights.
_SMALL = ("*.json", "merges.txt", "vocab.txt", "tokenizer.model", "chat_template.jinja")
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
# Beside its params.json.
_MISTRALS = "consolidated.safetensors"
# Where ModelOpt says what it quantized; of older releases config.json says nothing.
MODELOPT = "hf_quant_config.json"
# Where AutoGPTQ and AutoAWQ say how they quantized; config.json says it too, but for early ones. And
# where AutoRound does, beside a config.json that always says it.
_OWN = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
_BESIDE = (*_OWN, "quantization_config.json")


@dataclass(frozen=True)
class ModelFiles:
    """A model's files, at one place and, on the hub, of one commit.

    - `name`: as the user gave it.
    - `path`: its folder, or its GGUF file; of a tokenizer given by itself its `tokenizer.json`.
    - `source`: its name in a record.
    - `repo`, `commit`: of a model of the hub; its weights are there once `fetch` was called.
    """

    name: str
    path: Path
    source: str
    repo: str | None = None
    commit: str | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def is_gguf(self) -> bool:
        return is_gguf(self.path)

    @property
    def folder(self) -> Path:
        """The folder in which its config, tokenizer and chat template lie."""
        return self.path if self.path.is_dir() else self.path.parent

    def fetch(self, *, code: bool = False) -> None:
        """Downloads the weights of a model of the hub; with `code`, its Python files too. Raises
        CheckpointError."""
        if self.repo is not None and self.commit is not None and not self.is_gguf:
            patterns = [*_SMALL, "*.safetensors", *(["*.py"] if code else [])]
            _snapshot(self.name, self.repo, self.commit, patterns)


def resolve_model(model: "str | Path | ModelFiles", revision: str | None = None) -> ModelFiles:
    """Finds the files of `model`: a folder, a GGUF file, a name on the hub. Files that were found
    already are returned as they are.

    A GGUF file is named itself, or is the only model of a folder that has no safetensors; of the hub's
    `org/repo:FILE.gguf`, or by a quant's name that one file alone has, `org/repo:Q4_K_M`.

    From the hub configuration, tokenizer and chat template are fetched, or that GGUF file, all of the
    commit that `revision` means now. Raises CheckpointError.
    """
    if isinstance(model, ModelFiles):
        return model
    if not os.path.exists(model):  # noqa: PTH110  Path.exists raises for a name too long
        return _from_hub(str(model), revision)
    path = Path(model)
    if revision is not None:
        kind = "folder" if path.is_dir() else "file"
        raise CheckpointError(f"{model} is a {kind}: --revision {revision} has no meaning")
    return resolve_local(path)


def resolve_local(model: str | Path | ModelFiles) -> ModelFiles:
    """Finds the files of a model that lies here, as `resolve_model` does. Raises CheckpointError."""
    if isinstance(model, ModelFiles):
        return model
    path = Path(model)
    if path.is_dir():
        if models := models_in(path):
            if len(models) > 1:
                raise CheckpointError(f"{model}: which of its models? {listed(models)}")
            path = path / models[0] if is_gguf(path / models[0]) else path
    elif not path.exists():
        raise _missing(str(model))
    elif not is_gguf(path):
        raise CheckpointError(no_model(path))
    return ModelFiles(str(model), path, str(path))


def models_in(folder: Path) -> list[str]:
    """The names of models in a folder that is none itself: its GGUF files, those of splits by their
    first, and folders of models; empty for anything else."""
    if not folder.is_dir() or _has_safetensors(folder):
        return []
    files: list[str] = []
    folders: list[Path] = []
    for path in folder.iterdir():
        if path.is_dir():
            folders.append(path)
        else:
            files.append(path.name)
    return sorted([*model_files(files), *(path.name for path in folders if _has_model(path))])


def _has_model(folder: Path) -> bool:
    if _has_safetensors(folder):
        return (folder / "config.json").exists()
    return bool(model_files(file.name for file in folder.glob("*") if file.is_file()))


def no_model(file: Path, named: str = "model") -> str:
    """The line on a file that is none of a model, or of what is `named`: a text is often named in a
    model's place."""
    model = f"the {named}'s folder, a .gguf file or a hub id"
    if file.suffix.lower() in (".jsonl", ".parquet"):
        return f"{file} is a file of rows: give {model}, and the rows with --dataset-file {file}"
    if file.suffix.lower() not in (".json", ".yaml", ".toml") and is_text(file):
        return f"{file} is a text: give {model}, and the text with -f {file}"
    return f"{file} is a file: give {model}"


def is_text(file: Path) -> bool:
    """Tells whether a file begins as a text does."""
    if not file.is_file() or not os.access(file, os.R_OK):
        return False
    with file.open("rb") as opened:
        begin = opened.read(4096)
    try:
        # The last character may be cut.
        text = getincrementaldecoder("utf-8")().decode(begin)
    except UnicodeDecodeError:
        return False
    return bool(text) and "\0" not in text


def resolve_tokenizer(place: "str | Path | ModelFiles") -> ModelFiles:
    """Finds the files of a tokenizer: a `tokenizer.json`, or the files of a model. Raises
    CheckpointError."""
    if isinstance(place, ModelFiles):
        return place
    path = Path(place)
    # A folder's own files before those of a GGUF file that lies there, too.
    if path.is_file() or any((path / name).exists() for name in TOKENIZER_FILES):
        return ModelFiles(str(place), path, str(path))
    return resolve_model(place)


def tokenizer_places(
    tokenizer: "str | ModelFiles | None", model: ModelFiles | None
) -> list[ModelFiles]:
    """The files in which a tokenizer and a chat template are looked for, in this order: those given as
    `tokenizer`, then the model's own. Raises CheckpointError."""
    given = [] if tokenizer is None else [resolve_tokenizer(tokenizer)]
    return given if model is None else [*given, model]


def _has_safetensors(folder: Path) -> bool:
    return (folder / INDEX).exists() or any(folder.glob("*.safetensors"))


def _from_hub(model: str, revision: str | None) -> ModelFiles:
    """The small files of a repository, or its GGUF file, of one commit."""
    from scoremode.lib.hub import find_revision

    repo, wanted = named_gguf(model) or (model, None)
    is_file = wanted is None and repo.lower().endswith(".gguf")
    if is_file or repo.count("/") > 1 or repo.startswith((".", "/", "~")) or repo.endswith("/"):
        raise _missing(model)  # no name on the hub
    try:
        there = find_revision(repo, revision)
    except OSError as error:
        raise CheckpointError(_unavailable(model, wanted, error)) from None
    names = [name.lower() for name in there.files]
    is_gguf_repo = any(name.endswith(".gguf") for name in names) and not any(
        name.endswith(".safetensors") for name in names
    )
    parts = gguf_parts(repo, there.files, wanted) if wanted or is_gguf_repo else []
    # By the branch's name, so that the cache knows its commit when the hub can't be reached.
    at = there.commit if there.unreachable else revision
    folder = _snapshot(
        model, repo, at, [escape(part) for part in parts] or _SMALL, wanted, there.unreachable
    )
    if folder.name != there.commit:
        raise CheckpointError(
            f"{repo}: moved from commit {there.commit[:12]} to {folder.name[:12]} while its files were "
            "looked up: run the command again"
        )
    for part in parts:
        if not (folder / part).is_file():
            raise CheckpointError(f"{repo}: its {part} is gone at commit {folder.name}")
    path = folder / parts[0] if parts else folder
    source = f"hub:{repo}:{parts[0]}@{folder.name}" if parts else f"hub:{repo}@{folder.name}"
    return ModelFiles(model, path, source, repo, folder.name)


def _snapshot(
    model: str,
    repo: str,
    revision: str | None,
    patterns: Sequence[str],
    wanted: str | None = None,
    unreachable: OSError | None = None,
) -> Path:
    """The folder of a revision's files in the hub's cache, with those that fit the patterns downloaded;
    `unreachable`: the hub's error, with which the cache alone is asked. Raises CheckpointError."""
    from huggingface_hub import snapshot_download

    from scoremode.lib.hub import downloaded, hub_call

    call = partial(snapshot_download, repo, revision=revision, allow_patterns=list(patterns))
    try:
        if unreachable is not None:
            return Path(hub_call(partial(call, local_files_only=True)))
        return downloaded(call)
    except OSError as error:
        raise CheckpointError(_unavailable(model, wanted, unreachable or error)) from None


def _kind(model: str) -> str:
    return "file" if model.lower().endswith(".gguf") else "folder"


def _missing(model: str) -> CheckpointError:
    return CheckpointError(f"{model}: no such {_kind(model)}")


def _unavailable(model: str, wanted: str | None, error: OSError) -> str:
    repo = model.removesuffix(f":{wanted}") if wanted else model
    reason = f"not to be had from the hub ({words_of(error, named=False)})"
    return f"{repo}: {reason}" if wanted else f"{repo}: no such {_kind(repo)}, and {reason}"


def weight_files(path: Path) -> tuple[list[Path], dict[str, str]]:
    """The weight files of a folder, and its index's map of tensors to their names, empty without one.

    Raises CheckpointError.
    """
    index = path / INDEX
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(
            isinstance(name, str) for name in weight_map.values()
        ):
            raise CheckpointError(f"{index}: has no weight_map of tensors to files")
        names = sorted(set(weight_map.values()))
        for name in names:
            # Not one elsewhere: what a hash of this folder says must be all that was read.
            if Path(name).name != name or "\0" in name or len(name) > 255:
                raise CheckpointError(f"{index}: names the file {name!r}, which is none beside it")
            if not (path / name).is_file():
                raise CheckpointError(f"{path / name}: missing weight file, named by {INDEX}")
        if (path / SINGLE).exists() and SINGLE not in names:
            raise CheckpointError(
                f"{path}: holds two models, {SINGLE}, which transformers reads, and the files that "
                f"{INDEX} names, which vLLM reads: remove one of the two"
            )
        return [path / name for name in names], weight_map
    files = sorted(path.glob("*.safetensors"))
    if (path / SINGLE) in files:
        files = [path / SINGLE]
    if [file.name for file in files] == [_MISTRALS] and (path / "params.json").exists():
        raise CheckpointError(
            f"{path}: {_MISTRALS} alone has its tensors under the names of Mistral's own code, which "
            "aren't read: give the folder of the model as transformers stores it"
        )
    if len(files) == 1:
        return files, {}
    if files:
        raise CheckpointError(f"{path}: {len(files)} safetensors files and no {INDEX}")
    pickles = sorted(p.name for g in ("*.bin", "*.pt", "*.pth") for p in path.glob(g))
    if pickles:
        raise CheckpointError(
            f"{path}: weights only as pickle ({pickles[0]}), which is never loaded: convert with "
            "AutoModelForCausalLM.from_pretrained(…).save_pretrained(…) where you trust the file"
        )
    raise CheckpointError(f"{path}: no safetensors files")


def own_config(path: Path) -> tuple[str, dict[str, Any]] | None:
    """The name of GPTQ's or AWQ's own file in a folder, and its content as a `quantization_config` of
    its method; None without one. Raises CheckpointError."""
    found = [name for name in _OWN if (path / name).exists()]
    if not found:
        return None
    if len(found) > 1:
        raise CheckpointError(
            f"{path}: config.json says nothing of quantization, and both {' and '.join(found)} are "
            "there: remove the one that its weights don't follow"
        )
    fields = read_json(path / found[0])
    return found[0], {**fields, "quant_method": fields.get("quant_method") or _OWN[found[0]]}


def own_files(path: Path) -> dict[str, dict[str, Any]]:
    """The contents of quantizers' own files in a folder, by name. Raises CheckpointError."""
    return {name: read_json(path / name) for name in _BESIDE if (path / name).exists()}


def refuse_adapter(path: Path) -> None:
    """Raises UnsupportedFormat if the folder holds an adapter for a model and no model."""
    file = path / "adapter_config.json"
    if not file.exists() or (path / SINGLE).exists() or (path / INDEX).exists():
        return
    if any(not f.name.startswith("adapter_") for f in path.glob("*.safetensors")):
        return
    config = read_json(file)
    kind, base = config.get("peft_type"), config.get("base_model_name_or_path")
    raise UnsupportedFormat(
        f"{path}: a{f' {kind}' if isinstance(kind, str) else 'n'} adapter"
        f"{f' for {base}' if isinstance(base, str) and base else ''}, and no model: merge it into its "
        "base (peft's merge_and_unload, then save_pretrained) and give that folder"
    )
