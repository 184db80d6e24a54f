"""What nvidia-modelopt 0.47.0 exported of a tiny Llama: tests/golden/modelopt."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

FILE = Path(__file__).parent / "golden" / "modelopt" / "modelopt_047.safetensors"
Tensors = dict[str, torch.Tensor]


def tensors_below(prefix: str) -> Tensors:
    with safe_open(FILE, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
        return {name.removeprefix(prefix): file.get_tensor(name) for name in names}


def configs(algorithm: str) -> dict[str, Any]:
    """`config` and `hf_quant_config`, as it wrote them."""
    with safe_open(FILE, framework="pt") as file:
        return json.loads(file.metadata()[algorithm])


def golden(algorithm: str) -> Iterator[tuple[Tensors, dict[torch.dtype, torch.Tensor]]]:
    """Linears' tensors by suffix, and the library's dense weights by dtype."""
    dense: dict[str, dict[torch.dtype, torch.Tensor]] = {}
    for name, tensor in tensors_below(f"{algorithm}/dense/").items():
        dense.setdefault(name.rpartition(".")[0], {})[tensor.dtype] = tensor
    for module, by_dtype in dense.items():
        yield tensors_below(f"{algorithm}/{module}."), by_dtype


def write_export(folder: Path, algorithm: str, *, alone: bool = False) -> Path:
    """The export as it was; `alone`: as older releases wrote it, config.json without a word."""
    folder.mkdir(parents=True)
    said = configs(algorithm)
    if alone:
        del said["config"]["quantization_config"]
    (folder / "config.json").write_text(json.dumps(said["config"]))
    (folder / "hf_quant_config.json").write_text(json.dumps(said["hf_quant_config"]))
    stored = tensors_below(f"{algorithm}/")
    stored = {n: t for n, t in stored.items() if not n.startswith("dense/") and n != "logits"}
    save_file(stored, folder / "model.safetensors")
    return folder
