"""The machine's processor and memory, as the system gives them."""

import os
import platform
from pathlib import Path

import pytest

from scoremode.lib.machine import cpu_name, driver_version, memory_bytes


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("processor\t: 0\nmodel name\t: Xeon: 6 \nmodel name\t: Other\n", "Xeon: 6"),
        ("processor\t: 0\n", "made"),
        (None, "made"),
    ],
)
def test_the_first_processors_name_or_the_platforms(content, name, monkeypatch):
    def read(path: Path, encoding: str) -> str:
        assert str(path) == "/proc/cpuinfo"
        if content is None:
            raise FileNotFoundError(path)
        return content

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(platform, "processor", lambda: "made")
    assert cpu_name() == name


def test_memory_is_all_pages(monkeypatch):
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.__getitem__)
    assert memory_bytes() == 4_096_000


@pytest.mark.parametrize(
    ("content", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 2025\nGCC 12.2.0\n",
            "570.86.15",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n",
            "580.95.05",
        ),
        ("something else\n", None),
        (None, None),
    ],
)
def test_the_drivers_version_is_its_first_lines(content, version, monkeypatch):
    def read(path: Path, encoding: str) -> str:
        assert str(path) == "/proc/driver/nvidia/version"
        if content is None:
            raise FileNotFoundError(path)
        return content

    monkeypatch.setattr(Path, "read_text", read)
    assert driver_version() == version
