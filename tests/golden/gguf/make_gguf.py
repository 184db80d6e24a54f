"""Makes NAME.xz: GGUF files that llama.cpp's converter (commit 0c1e57098) wrote of the tiny models.

That commit is in the source distribution of llama-cpp-python 0.3.36:

    pip install gguf                                   # and scoremode, transformers
    python make_gguf.py --llama-cpp vendor/llama.cpp [NAME …]

The models are `MODELS` of tests/support/gguf/models.py, made again bit for bit wherever a test needs
them. So a golden file says only where in the folder the converter took each row from: `rows`, runs of
[tensor, transposed, begin, step, count] in flat values; or `values`, where it computed something. And
all metadata, as [key, type, type of an array's entries, value].
"""

import argparse
import json
import lzma
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))

from support.gguf.golden import contents, flat, rebuild  # noqa: E402
from support.gguf.models import MODELS, make_folder  # noqa: E402

# Adjacent values that a row is found by.
_KEY = 3
Place = tuple[str, bool, int]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--llama-cpp", required=True, type=Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    for name in arguments.names or MODELS:
        with tempfile.TemporaryDirectory() as made:
            folder, converted = make_folder(Path(made) / "folder", name), Path(made) / "a.gguf"
            command = [HERE / "convert.py", arguments.llama_cpp, folder, converted]
            subprocess.run([sys.executable, *command], check=True, capture_output=True)
            golden = json.dumps(_golden(folder, converted)).encode()
            out = HERE / f"{name}.xz"
            out.write_bytes(lzma.compress(golden, preset=9 | lzma.PRESET_EXTREME))
            _compare(converted, rebuild(folder, name, Path(made) / "b.gguf"))
            print(name, out.stat().st_size)


def _golden(folder: Path, converted: Path) -> dict:
    sources = load_file(folder / "model.safetensors")
    flats = {(n, t): flat(values, t) for n, values in sources.items() for t in (False, True)}
    places: dict[bytes, list[Place]] = {}
    for (name, transposed), values in flats.items():
        for begin in range(len(values) - _KEY + 1):
            key = values[begin : begin + _KEY].tobytes()
            places.setdefault(key, []).append((name, transposed, begin))
    metadata, architecture = [], ""
    for name, (value, types) in contents(converted).items():
        if name == "general.architecture":
            architecture = value
        else:
            kind, *inner = (t.name for t in types)
            metadata.append([name, kind, inner[-1] if inner else None, value])
    tensors = []
    for tensor in gguf.GGUFReader(converted).tensors:
        assert tensor.tensor_type == gguf.GGMLQuantizationType.F32
        data = np.array(tensor.data)
        one = {"name": tensor.name, "shape": data.shape}
        rows = _rows(data.reshape(-1, data.shape[-1]), flats, places)
        tensors.append(
            one | ({"values": data.flatten().tolist()} if rows is None else {"rows": rows})
        )
    return {"architecture": architecture, "metadata": metadata, "tensors": tensors}


def _rows(
    data: np.ndarray, flats: dict[tuple[str, bool], np.ndarray], places: dict[bytes, list[Place]]
) -> list[list] | None:
    """Runs that give `data` [n, m] again; None where a row of it is in no source."""
    runs: list[list] = []
    for row in data:
        own = row.tobytes()
        found = [
            (name, transposed, begin)
            for name, transposed, begin in places.get(row[:_KEY].tobytes(), [])
            if flats[name, transposed][begin : begin + len(row)].tobytes() == own
        ]
        if not found:
            return None
        if not (runs and _continues(runs[-1], found)):
            runs.append([*found[0], 0, 1])
    return runs


def _continues(run: list, found: list[Place]) -> bool:
    """Whether one of the places is the run's next, which it then has."""
    name, transposed, begin, step, count = run
    for other, is_transposed, place in found:
        if (other, is_transposed) == (name, transposed):
            if count == 1:
                run[3:] = [place - begin, 2]
                return True
            if place == begin + step * count:
                run[4] += 1
                return True
    return False


def _compare(converted: Path, again: Path) -> None:
    """Fails unless the golden file gives what the converter wrote."""
    assert contents(converted) == contents(again)
    one, other = gguf.GGUFReader(converted), gguf.GGUFReader(again)
    assert [t.name for t in one.tensors] == [t.name for t in other.tensors]
    for a, b in zip(one.tensors, other.tensors, strict=True):
        assert np.array_equal(a.data, b.data) and a.data.shape == b.data.shape, a.name


if __name__ == "__main__":
    main()
