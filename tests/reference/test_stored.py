"""A kept head on its way to a GPU, beside what computes there."""

import json
import shutil
import threading

import pytest
import torch
from support.hostile_files import KINDS, put, snapshot

from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import ReferenceUnusable, RunFolderError
from scoremode.reference.base import OnDisk
from scoremode.reference.stored import StoredReference
from scoremode.results.folders.store import read_record, seal_of
from scoremode.runs.measure import measure
from scoremode.runs.request import Request
from scoremode.text.corpus import from_string
from scoremode.text.protocol import preset

GPU = torch.device("cuda", 0)
# None of its rows.
NO_ROWS = [(0, 0)]


@pytest.fixture(scope="module")
def folder(demo, tmp_path_factory):
    output = tmp_path_factory.mktemp("kept") / "reference"
    measure(
        Request(
            model=str(demo / "model"),
            corpus=from_string((demo / "heldout.txt").read_text()[:2000]),
            protocol=preset("disjoint").override(context_length=64),
            options=TorchOptions(device="cpu", dtype="float32"),
            output=output,
            keep="stored",
        )
    )
    return output


def test_its_path_is_all_that_opens_it(folder, tmp_path):
    opened = StoredReference(folder)
    assert isinstance(opened, OnDisk) and opened.path == folder and opened.extra_sums is None
    for nothing in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RunFolderError, match="no readable record"):
            StoredReference(nothing)


def test_it_is_sent_once_from_when_the_first_rows_are_expected(folder, monkeypatch):
    kept, threads, go = StoredReference(folder), [], threading.Event()

    def send(device):
        go.wait(10)
        threads.append(threading.current_thread())
        kept._heads[kept._whole(device)] = kept.head(torch.device("cpu"))

    monkeypatch.setattr(kept, "_send_head", send)
    kept.expect(NO_ROWS, GPU)
    kept.expect(NO_ROWS, GPU)
    go.set()
    # Waits for the other thread, which has what no CUDA device here could.
    assert kept._arrived_head(GPU) is kept.head(torch.device("cpu"))
    kept.expect(NO_ROWS, GPU)
    kept._arrived_head(GPU)
    assert len(threads) == 1 and threads[0] is not threading.main_thread()


def test_after_a_lack_of_memory_it_is_sent_again(folder, monkeypatch):
    kept, attempts = StoredReference(folder), []

    def send(device):
        attempts.append(device)
        if len(attempts) == 1:
            raise torch.cuda.OutOfMemoryError("out of memory")
        kept._heads[kept._whole(device)] = kept.head(torch.device("cpu"))

    monkeypatch.setattr(kept, "_send_head", send)
    kept.expect(NO_ROWS, GPU)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        kept._arrived_head(GPU)
    kept.expect(NO_ROWS, GPU)
    kept._arrived_head(GPU)
    assert len(attempts) == 2


def test_on_a_cpu_nothing_is_sent(folder):
    kept = StoredReference(folder)
    kept.expect([(0, 5)], torch.device("cpu"))
    assert not kept._arriving


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_a_gpu_it_is_the_files(folder, monkeypatch):
    """It comes by a stream of its own: behind the queue it would wait for what is computed."""
    streams, own = [], StoredReference.head

    def head(kept, device, *entries):
        streams.append(torch.cuda.current_stream(device))
        return own(kept, device, *entries)

    monkeypatch.setattr(StoredReference, "head", head)
    kept = StoredReference(folder)
    torch.cuda._sleep(100_000_000)
    kept.expect([(0, 5)], GPU)
    arrived = kept._arrived_head(GPU)
    assert streams[0] != torch.cuda.current_stream(GPU)
    assert torch.equal(arrived.weight.cpu(), kept._tensors[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["states/00000.safetensors", "head.safetensors", "tokens.i32"])
def test_nothing_else_is_read_in_a_files_place(name, kind, folder, tmp_path):
    here = shutil.copytree(folder, tmp_path / "kept")
    put(here / name, kind, tmp_path / "outside")
    before = snapshot(tmp_path)
    for use in (StoredReference.check_files, StoredReference.plan, StoredReference.reader):
        kept = StoredReference(here)
        if name == "head.safetensors" and use is not StoredReference.check_files:
            continue
        if (name == "tokens.i32") == (use is StoredReference.reader):
            continue
        with pytest.raises(ReferenceUnusable, match=f"{name}: (is a|has )"):
            use(kept)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "states/00001.safetensors"])
@pytest.mark.parametrize("where", ["states", "head", "tokens"])
def test_a_record_that_names_other_files_is_refused(where, name, folder, tmp_path):
    here = shutil.copytree(folder, tmp_path / "kept")
    record = read_record(here)
    kept = record["kept"]
    {"states": kept["states"]["files"][0], "head": kept["head"], "tokens": kept["tokens"]}[where][
        "file" if where == "head" else "name"
    ] = name
    (here / "record.json").write_text(json.dumps(record | {"sha256": seal_of(record)}))
    with pytest.raises(ReferenceUnusable, match=f"was changed: its {where} are in '{name}'"):
        StoredReference(here)
