"""GGUF files as llama.cpp's converter writes them, made again of a folder and a golden file.

A golden file (golden/gguf/NAME.xz, by make_gguf.py there) has a converted file's metadata and, for
each tensor, where in the folder each of its rows lies. What is computed and not moved lies in it.
"""

import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file
from support.gguf.models import make_folder

GOLDEN = Path(__file__).parents[2] / "golden" / "gguf"


def make_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """The folder of MODELS[name], and its GGUF file: metadata and tensors as they were converted."""
    made = make_folder(folder / "folder", name)
    return made, rebuild(made, name, folder / f"{name}.gguf")


def rebuild(folder: Path, name: str, out: Path) -> Path:
    golden = json.loads(lzma.decompress((GOLDEN / f"{name}.xz").read_bytes()))
    writer = gguf.GGUFWriter(out, golden["architecture"])
    for key, kind, inner, value in golden["metadata"]:
        inner = None if inner is None else gguf.GGUFValueType[inner]
        writer.add_key_value(key, value, gguf.GGUFValueType[kind], inner)
    sources = {}
    for source, values in load_file(folder / "model.safetensors").items():
        for transposed in (False, True):
            sources[source, transposed] = flat(values, transposed)
    for tensor in golden["tensors"]:
        writer.add_tensor(tensor["name"], _values(tensor, sources))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def contents(file: Path) -> dict[str, tuple[Any, list[Any]]]:
    """Key → value and types, of a file's metadata."""
    fields = gguf.GGUFReader(file).fields.items()
    return {n: (f.contents(), f.types) for n, f in fields if not n.startswith("GGUF.")}


def flat(values: np.ndarray, transposed: bool) -> np.ndarray:
    """A tensor's values in one row, or those of its transposed matrices."""
    return (values.swapaxes(-1, -2) if transposed and values.ndim > 1 else values).reshape(-1)


def _values(tensor: dict[str, Any], sources: dict[tuple[str, bool], np.ndarray]) -> np.ndarray:
    """float32, of the shape that the file has, outermost first."""
    if "values" in tensor:
        return np.array(tensor["values"], np.float32).reshape(tensor["shape"])
    rows = [
        sources[source, transposed][begin + step * i :][: tensor["shape"][-1]]
        for source, transposed, begin, step, count in tensor["rows"]
        for i in range(count)
    ]
    return np.stack(rows).reshape(tensor["shape"])


Tensors = dict[str, tuple[np.ndarray, str]]


def rewrite(source: Path, out: Path, edit: Callable[[dict[str, Any], Tensors], None]) -> Path:
    """A copy after `edit` of a file's metadata (key → value) and tensors (name → data and type)."""
    fields = contents(source)
    values = {name: value for name, (value, _) in fields.items()}
    tensors = {t.name: (t.data, t.tensor_type.name) for t in gguf.GGUFReader(source).tensors}
    edit(values, tensors)
    writer = gguf.GGUFWriter(out, values.pop("general.architecture"))
    for name, value in values.items():
        types = fields[name][1] if name in fields else [gguf.GGUFValueType.get_type(value)]
        inner = types[-1] if types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, types[0], inner)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def with_types(
    source: Path,
    out: Path,
    type_of: Callable[[str, tuple[int, ...]], str | None],
    *,
    dense: bool = False,
) -> Path:
    """A copy, its tensors in the types that `type_of(name, shape)` gives (None: as they are), packed by
    the gguf package; or, `dense`, in float32 with the values that these stand for."""

    def edit(values: dict[str, Any], tensors: Tensors) -> None:
        for name, (data, _) in tensors.items():
            kind = type_of(name, data.shape)
            if kind is not None:
                number = gguf.GGMLQuantizationType[kind]
                packed = gguf.quantize(data, number)
                made = (gguf.dequantize(packed, number), "F32") if dense else (packed, kind)
                tensors[name] = made

    return rewrite(source, out, edit)


def in_blocks(source: Path, out: Path, kind: str, *, dense: bool = False) -> Path:
    """A copy with all matrices of whole blocks of 32 but routers in blocks of this type, as
    `with_types` packs them."""

    def type_of(name: str, shape: tuple[int, ...]) -> str | None:
        is_matrix = len(shape) > 1 and name.endswith("weight") and "_inp" not in name
        return kind if is_matrix and shape[-1] % 32 == 0 else None

    return with_types(source, out, type_of, dense=dense)
