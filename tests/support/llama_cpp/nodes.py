"""Nodes of llama.cpp's own graph, by its evaluation's callback (`golden/gguf_layer/nodes.cpp`)."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SOURCE = Path(__file__).parents[2] / "golden" / "gguf_layer" / "nodes.cpp"


def compiled(llama_cpp: Path, folder: Path) -> Path:
    """The program, against the libraries and headers that tools/llama_cpp.py left in `llama_cpp`."""
    program, source, libraries = folder / "nodes", llama_cpp / "source", llama_cpp / "build" / "bin"
    command = ["g++", "-O2", "-std=c++17", f"-I{source}/include", f"-I{source}/ggml/include"]
    command += [SOURCE, "-o", program, f"-L{libraries}", f"-Wl,-rpath,{libraries}"]
    command += [f"-l{name}" for name in ("llama", "ggml", "ggml-base", "ggml-cpu")]
    subprocess.run(command, check=True)
    return program


def run_nodes(
    program: Path, model: Path, ids: NDArray[np.int32], pattern: str, folder: Path, *flags: str
) -> Path:
    """The file of nodes whose names match, of `ids` int32 [windows, width]."""
    given, out = folder / "ids", folder / "nodes.bin"
    ids.astype("<i4").tofile(given)
    sizes = [str(size) for size in ids.shape]
    subprocess.run([program, model, given, *sizes, out, pattern, *flags], check=True)
    return out


def read_nodes(path: Path) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Name and values [.., row] of each node, in the order in which they were computed."""
    with path.open("rb") as file:
        while head := file.read(4):
            name = file.read(int.from_bytes(head, "little")).decode()
            file.read(int.from_bytes(file.read(4), "little"))
            shape = np.fromfile(file, "<i8", 4)[::-1]
            yield name, np.fromfile(file, "<f4", int(shape.prod())).reshape(shape)
