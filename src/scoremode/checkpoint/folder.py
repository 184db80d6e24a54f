"""A model's place: its folder or its GGUF file, which files are the weights, and what is no model here.

Safetensors are read, and GGUF. What else a folder may hold is refused by its name, with what to do
instead.
"""

from functools import partial
from pathlib import Path
from typing import Any

from scoremode.checkpoint.config import read_json
from scoremode.checkpoint.gguf.names import (
    download_gguf,
    has_gguf_alone,
    is_gguf,
    named_gguf,
    only_gguf,
)
from scoremode.errors import CheckpointError, UnsupportedFormat, words_of
from scoremode.text.hub_client import asked

__all__ = [
    "INDEX",
    "MODELOPT",
    "locate",
    "own_config",
    "own_files",
    "refuse_adapter",
    "weight_files",
]

INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
# Beside its params.json.
_MISTRALS = "consolidated.safetensors"
# Where ModelOpt says what it quantized; of older releases config.json says nothing.
MODELOPT = "hf_quant_config.json"
# Where AutoGPTQ and AutoAWQ say how they quantized; config.json says it too, but for early ones. And
# where AutoRound does, beside a config.json that always says it.
_OWN = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
_BESIDE = (*_OWN, "quantization_config.json")


def locate(
    model: str, revision: str | None = None, *, weights: bool = True, code: bool = False
) -> tuple[Path, str]:
    """The folder of `model`, or its GGUF file, and what to call it in a record.

    A GGUF file is named itself, or is the only one of a folder that has no safetensors; of the hub's
    `org/repo:FILE.gguf`, or by a quant's name that one file alone has, `org/repo:Q4_K_M`.

    From the hub only configuration, tokenizer and, with `weights`, safetensors files are fetched,
    and Python files with `code`; or that GGUF file alone. Raises CheckpointError.
    """
    path = Path(model)
    if path.exists():
        if revision is not None:
            kind = "folder" if path.is_dir() else "file"
            raise CheckpointError(f"{model} is a {kind}: --revision {revision} has no meaning")
        if path.is_dir():
            path = _inside(path)
        elif not is_gguf(path):
            raise CheckpointError(
                f"{model} is a file: give the model's folder, a .gguf file or a hub id"
            )
        return path, str(path)
    if (found := named_gguf(model)) is not None:
        return download_gguf(found[0], revision, found[1])
    path = _download(model, revision, weights, code)
    if not _has_safetensors(path) and has_gguf_alone(model, revision):
        return download_gguf(model, revision, None)
    return path, f"hub:{model}@{path.name}"


def _inside(folder: Path) -> Path:
    """The folder, or the GGUF file that is its model."""
    return folder if _has_safetensors(folder) else only_gguf(folder) or folder


def _has_safetensors(folder: Path) -> bool:
    return (folder / INDEX).exists() or any(folder.glob("*.safetensors"))


def _download(model: str, revision: str | None, weights: bool, code: bool) -> Path:
    from huggingface_hub import snapshot_download

    if model.count("/") > 1 or model.startswith((".", "/", "~")):  # no name on the hub
        what = "file" if model.lower().endswith(".gguf") else "folder"
        raise CheckpointError(f"{model}: no such {what}")
    patterns = [
        "*.json",
        "merges.txt",
        "vocab.txt",
        "tokenizer.model",
        "chat_template.jinja",
        *(["*.safetensors"] if weights else []),
        *(["*.py"] if code else []),
    ]
    try:
        call = partial(snapshot_download, model, revision=revision, allow_patterns=patterns)
        return Path(asked(call))
    except OSError as error:
        raise CheckpointError(
            f"{model}: no such folder, and not to be had from the hub ({words_of(error, named=False)})"
        ) from None


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
                raise CheckpointError(f"{path / name}: missing shard, named by {INDEX}")
        if (path / _SINGLE).exists() and _SINGLE not in names:
            raise CheckpointError(
                f"{path}: holds two models, {_SINGLE}, which transformers reads, and the files that "
                f"{INDEX} names, which vLLM reads: remove one of the two"
            )
        return [path / name for name in names], weight_map
    files = sorted(path.glob("*.safetensors"))
    if (path / _SINGLE) in files:
        files = [path / _SINGLE]
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
    """The name of GPTQ's or AWQ's own file in a folder and what it says, as a `quantization_config` of
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
    """What quantizers' own files in a folder say, by name. Raises CheckpointError."""
    return {name: read_json(path / name) for name in _BESIDE if (path / name).exists()}


def refuse_adapter(path: Path) -> None:
    """Raises UnsupportedFormat if the folder holds an adapter for a model and no model."""
    file = path / "adapter_config.json"
    if not file.exists() or (path / _SINGLE).exists() or (path / INDEX).exists():
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
