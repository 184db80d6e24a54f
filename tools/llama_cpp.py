"""Build llama.cpp's own tools from the source that any package index has.

The source distribution of `llama-cpp-python` 0.3.36 on PyPI (77 MB) holds llama.cpp: its converter
(`convert_hf_to_gguf.py`), vocabularies with known answers, and what becomes `llama-quantize`,
`llama-imatrix`, `llama-perplexity` and `llama-tokenize`. pip downloads it; it is held against a sha256,
and built for a CPU in about four minutes on two cores. It needs CMake and a C++ compiler.

GGML_NATIVE is off: on an AMX CPU under virtualization the native build died at its first graph. What
the CPU has up to AVX-512 is asked for by name instead.

    python tools/llama_cpp.py FOLDER    (FOLDER/source, FOLDER/build/bin)
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
SDIST = "llama_cpp_python-0.3.36.tar.gz"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
VENDOR = "llama_cpp_python-0.3.36/vendor/llama.cpp"
TARGETS = ("llama-quantize", "llama-imatrix", "llama-perplexity", "llama-tokenize")
# CPU features as /proc/cpuinfo calls them, and ggml's switches.
FEATURES = {
    "avx": "AVX",
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "bmi2": "BMI2",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="left as it is where the tools are there")
    args = parser.parse_args()
    folder: Path = args.folder.absolute()
    if all((folder / "build" / "bin" / name).exists() for name in TARGETS):
        print(f"{folder}: is there already")
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "source").exists():
        unpack(downloaded(folder), folder)
    build(folder / "source", folder / "build")
    print(f"{folder}: built")


def downloaded(cache: Path) -> Path:
    """The source distribution in `cache`, by pip if it isn't there. Ends the program if its sha256 is
    another."""
    sdist = cache / SDIST
    if not sdist.exists():
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            pip += ["--no-binary", PACKAGE]
            subprocess.run([*pip, "--dest", scratch, f"{PACKAGE}=={VERSION}"], check=True)
            (Path(scratch) / SDIST).replace(sdist)
    found = hashlib.sha256(sdist.read_bytes()).hexdigest()
    if found != SHA256:
        sys.exit(f"{sdist}: its sha256 is {found}, not {SHA256}; delete it to download it again")
    return sdist


def unpack(sdist: Path, folder: Path) -> None:
    """Writes llama.cpp's part of the archive to `folder`/source."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        with tarfile.open(sdist) as archive:
            wanted = [m for m in archive.getmembers() if m.name.startswith(f"{VENDOR}/")]
            archive.extractall(scratch, wanted, filter="data")
        # Last, so that a folder that is there is whole.
        (Path(scratch) / VENDOR).rename(folder / "source")


def build(source: Path, out: Path) -> None:
    """Builds the tools for this CPU."""
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=OFF"]
    options += [f"-DGGML_{name}={'ON' if has else 'OFF'}" for name, has in features().items()]
    for part in ("TESTS", "EXAMPLES", "SERVER"):
        options.append(f"-DLLAMA_BUILD_{part}=OFF")
    options += ["-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF"]
    subprocess.run(["cmake", "-S", source, "-B", out, *options], check=True, stdout=sys.stderr)
    command = ["cmake", "--build", out, "--parallel", "--target", *TARGETS]
    subprocess.run(command, check=True, stdout=sys.stderr)


def features() -> dict[str, bool]:
    """ggml's switches for what this CPU has; none of them on other processors than x86."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return {}
    flags = set(Path("/proc/cpuinfo").read_text(encoding="ascii").split())
    return {name: flag in flags for flag, name in FEATURES.items()}


if __name__ == "__main__":
    main()
