"""A model, a variant of it and a reference of it, shared by the runs' tests."""

import shutil
from pathlib import Path

import pytest
from support.run_requests import request

from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.torch.options import TorchOptions
from scoremode.runs.measure import measure
from scoremode.runs.request import Request
from scoremode.text.corpus import from_string
from scoremode.text.protocol import preset


@pytest.fixture(scope="session")
def base(demo) -> Path:
    return demo / "model"


@pytest.fixture(scope="session")
def quant(base, tmp_path_factory) -> Path:
    """A variant of it with 3-bit weights."""
    variant = next(v for v in VARIANTS if v.name == "W3A16-g32")
    folder = tmp_path_factory.mktemp("quant") / variant.name
    quantize_folder(base, folder, variant)
    return folder


@pytest.fixture(scope="session")
def text(demo) -> str:
    return (demo / "heldout.txt").read_text(encoding="utf-8")[:6000]


@pytest.fixture(scope="session")
def kept(base, text, tmp_path_factory) -> Path:
    """A reference, in several passes."""
    folder = tmp_path_factory.mktemp("kept") / "reference"
    record = measure(request(base, text, folder, keep="stored")).record.document
    assert len(record["kept"]["states"]["files"]) > 2
    return folder


@pytest.fixture
def copied(kept, tmp_path) -> Path:
    """One that a test may spoil."""
    return shutil.copytree(kept, tmp_path / "copied")


@pytest.fixture
def request_(demo, text, tmp_path) -> Request:
    return Request(
        model=str(demo / "model"),
        corpus=from_string(text),
        protocol=preset("disjoint").override(context_length=64),
        options=TorchOptions(device="cpu", dtype="float32", batch_windows=2),
        output=tmp_path / "runs",
    )
