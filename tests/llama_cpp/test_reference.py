"""A llama.cpp file as a reference: its tiles, and how it is opened."""

import numpy as np
import pytest
import torch
from support.llama_cpp.files import GOLDEN, logprobs, small

from scoremode.errors import ReferenceUnusable
from scoremode.llama_cpp.reference import LlamaCppReference, LlamaCppSums
from scoremode.reference.base import OnDisk

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs CUDA"))]  # fmt: skip


@pytest.fixture(scope="module")
def golden() -> LlamaCppReference:
    return LlamaCppReference(GOLDEN)


def gathered(reference, spans, tile, device="cpu") -> np.ndarray:
    """All entries of the rows, in tiles, each destroyed once it is copied."""
    logits = reference.logits(spans, torch.device(device), tile)
    count = sum(end - begin for begin, end in spans)
    out = np.full((count, reference.vocabulary), np.nan, np.float32)
    for begin in range(0, reference.vocabulary, tile[1]):
        end = min(begin + tile[1], reference.vocabulary)
        logits.load(begin, end)
        for low in range(0, count, tile[0]):
            block = slice(low, min(low + tile[0], count))
            found = logits(block)
            assert found.dtype == torch.float32 and found.device.type == device
            out[block, begin:end] = found.cpu().numpy()
            found.fill_(torch.nan)
    return out


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tile", [(248, 1024), (31, 100), (7, 1000), (500, 3)], ids=str)
def test_any_tile_has_the_bits_of_the_whole(golden, tile, device):
    whole = logprobs(golden.file, 0, 248, 0, 1024)
    assert np.array_equal(gathered(golden, [(0, 248)], tile, device), whole)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tile", [(248, 1024), (31, 100), (500, 3)], ids=str)
def test_lowered_entries_in_any_tile(golden, tile, device):
    lowered = LlamaCppReference(GOLDEN, lowers=True)
    whole, (codes, _, low) = (
        logprobs(golden.file, 0, 248, 0, 1024),
        golden.file.codes(0, 248, 0, 1024),
    )
    found = gathered(lowered, [(0, 100), (100, 248)], tile, device)
    floors = golden.file.floors(0, 248)
    assert np.array_equal(found, np.where(codes == 0, floors[:, None], whole))
    assert (floors < low).any()


@pytest.mark.parametrize(
    "spans",
    [[(5, 9)], [(40, 90), (3, 4), (4, 30)], [(0, 3), (3, 3), (247, 248)], [(7, 7), (9, 10)]],
)
def test_spans_one_behind_the_other(golden, spans):
    wanted = np.concatenate([logprobs(golden.file, *span, 0, 1024) for span in spans])
    for tile in ((100, 1024), (2, 300)):
        assert np.array_equal(gathered(golden, spans, tile), wanted)


@pytest.mark.parametrize("entries", [5, 6])
def test_rows_with_and_without_padding(tmp_path, entries):
    small(tmp_path / "f", entries=entries)
    reference = LlamaCppReference(tmp_path / "f")
    assert reference.vocabulary == entries and reference.extra_sums is LlamaCppSums
    wanted = logprobs(reference.file, 0, 8, 0, entries)
    for tile in ((1, 1), (3, 2), (8, entries)):
        assert np.array_equal(gathered(reference, [(0, 8)], tile), wanted)


def test_what_is_under_its_path(tmp_path):
    opened = LlamaCppReference(GOLDEN)
    assert isinstance(opened, OnDisk)
    assert opened.path == GOLDEN and opened.sha256 == opened.file.fingerprint
    (tmp_path / "text").write_text("no file of logits")
    with pytest.raises(ReferenceUnusable, match="text is a text: give the base's folder"):
        LlamaCppReference(tmp_path / "text")
