"""Embeddings of a few rows at a time, held against the whole table."""

import pytest
import torch
from support.gguf.blocks import dequantized, random_blocks
from torch import nn

from scoremode.engines.torch.builder import PackedTable, embed_from
from scoremode.schemes.gguf import Blocks

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs CUDA"))]  # fmt: skip
IDS = torch.tensor([[5, 5, 0, 99], [17, 5, 99, 1]])


def table(dtype=torch.float32) -> torch.Tensor:
    return torch.randn((100, 8), generator=torch.Generator().manual_seed(0)).to(dtype)


def meta_embedding(cls=nn.Embedding) -> nn.Embedding:
    return cls(100, 8, device="meta")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_whole_tables_rows_in_the_compute_dtype(dtype, stored, place, device):
    embedding, where = meta_embedding(), torch.device(device, 0 if device == "cuda" else None)
    embed_from(table(stored).to(where if place == "device" else "cpu"), embedding, dtype, where)
    # Again with other ids: nothing stays of the first ones.
    for ids in (IDS, IDS.flip(1)[:1, :3], torch.tensor([[3]])):
        out = embedding(ids.to(where))
        assert out.dtype == dtype and out.device == where
        assert torch.equal(out.cpu(), nn.functional.embedding(ids, table(stored).to(dtype)))


@pytest.mark.parametrize("padding", [1, 5, 99])
def test_a_padding_id_is_an_entry_like_any_other(padding):
    embedding = nn.Embedding(100, 8, padding_idx=padding, device="meta")
    embed_from(table(), embedding, torch.float32, torch.device("cpu"))
    assert torch.equal(embedding(IDS), table()[IDS])
    assert torch.equal(embedding(torch.tensor([[3]])), table()[[3]][None])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_a_packed_table_the_rows_of_the_ids_are_decoded(dtype, kind, place, device, monkeypatch):
    where = torch.device(device, 0 if device == "cuda" else None)
    packed = random_blocks(kind, 100, 8)
    whole = dequantized(kind, packed).to(dtype)
    stored = {kind: packed.to(where if place == "device" else "cpu")}
    table = PackedTable(Blocks(kind, (100, whole.shape[1])), stored, dtype)
    decoded, decode = [], Blocks.decode

    def noted(self, *args):
        decoded.append(self.shape)
        decode(self, *args)

    monkeypatch.setattr(Blocks, "decode", noted)
    embedding = nn.Embedding(*whole.shape, device="meta")
    embed_from(table, embedding, dtype, where)
    for ids in (IDS, IDS.flip(1)[:1, :3], torch.tensor([[3]])):
        out = embedding(ids.to(where)).cpu()
        assert torch.equal(out.nan_to_num(7), nn.functional.embedding(ids, whole).nan_to_num(7))
    counts = [8, 3, 1] if table.is_cuda else [5, 3, 1]
    assert decoded == [(count, whole.shape[1]) for count in counts]


def test_only_the_rows_of_the_ids_are_in_the_compute_dtype():
    shapes = []

    class Seen(nn.Embedding):
        def forward(self, ids):
            shapes.append(self.weight.shape)
            assert not self.weight.requires_grad
            return super().forward(ids)

    embedding = meta_embedding(Seen)
    embed_from(table(torch.bfloat16), embedding, torch.float32, torch.device("cpu"))
    for _ in range(2):
        # Between look-ups there is a weight to look at, of the right dtype and device, and small.
        assert embedding.weight.dtype == torch.float32 and embedding.weight.device.type == "cpu"
        assert embedding.weight.shape == (1, 8)
        embedding(IDS)
    assert shapes == [(5, 8)] * 2


def test_what_a_models_own_class_does_to_its_rows_stays():
    class Scaled(nn.Embedding):
        def forward(self, ids):
            return super().forward(ids) * 3

    embedding = meta_embedding(Scaled)
    embed_from(table(), embedding, torch.float32, torch.device("cpu"))
    assert torch.equal(embedding(IDS), nn.functional.embedding(IDS, table()) * 3)


def test_an_id_beyond_the_table_is_an_error():
    embedding = meta_embedding()
    embed_from(table(), embedding, torch.float32, torch.device("cpu"))
    with pytest.raises((IndexError, RuntimeError)):
        embedding(torch.tensor([[100]]))
