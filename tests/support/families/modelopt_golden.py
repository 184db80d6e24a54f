"""What nvidia-modelopt 0.47.0 exported of tiny Llamas and gpt-oss: tests/golden/modelopt."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

FILE = Path(__file__).parents[2] / "golden" / "modelopt" / "modelopt_047.safetensors"
# Whose algorithms are called `gpt_oss/NVFP4`.
EXPERTS = FILE.with_name("experts_047.safetensors")
Tensors = dict[str, torch.Tensor]


def tensors_below(prefix: str, file: Path = FILE) -> Tensors:
    with safe_open(file, framework="pt") as opened:
        names = [name for name in opened.keys() if name.startswith(prefix)]  # noqa: SIM118
        return {name.removeprefix(prefix): opened.get_tensor(name) for name in names}


def configs(algorithm: str, file: Path = FILE) -> dict[str, Any]:
    """`config` and `hf_quant_config`, as it wrote them."""
    with safe_open(file, framework="pt") as opened:
        return json.loads(opened.metadata()[algorithm])


def golden(algorithm: str) -> Iterator[tuple[Tensors, dict[torch.dtype, torch.Tensor]]]:
    """Linears' tensors by suffix, and the library's dense weights by dtype."""
    dense: dict[str, dict[torch.dtype, torch.Tensor]] = {}
    for name, tensor in tensors_below(f"{algorithm}/dense/").items():
        dense.setdefault(name.rpartition(".")[0], {})[tensor.dtype] = tensor
    for module, by_dtype in dense.items():
        yield tensors_below(f"{algorithm}/{module}."), by_dtype


def write_export(folder: Path, algorithm: str, *, alone: bool = False, file: Path = FILE) -> Path:
    """The export as it was; `alone`: as older releases wrote it, config.json without a word."""
    folder.mkdir(parents=True)
    said = configs(algorithm, file)
    if alone:
        del said["config"]["quantization_config"]
    (folder / "config.json").write_text(json.dumps(said["config"]))
    (folder / "hf_quant_config.json").write_text(json.dumps(said["hf_quant_config"]))
    stored = tensors_below(f"{algorithm}/", file)
    stored = {n: t for n, t in stored.items() if not n.startswith("dense/") and n != "logits"}
    save_file(stored, folder / "model.safetensors")
    return folder
