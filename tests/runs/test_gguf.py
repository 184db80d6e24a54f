"""Runs of GGUF files: as a model, as a base beside it, and as a kept reference; against the folder that
the file was made of."""

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.gguf.golden import in_blocks, make_pair, with_types
from support.run_requests import request

from scoremode.checkpoint.gguf.header import read_gguf
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.vllm.options import VllmOptions
from scoremode.errors import CheckpointError, EngineError, ReferenceUnusable, RunFolderError
from scoremode.runs.measure import measure
from scoremode.runs.rescore.verify import VerifyRequest, verify
from scoremode.runs.sweep.manifest import SweepRequest
from scoremode.runs.sweep.sweep import run_sweep

TEXT = "It is a truth universally acknowledged, that a single man, " * 20
FLOAT = TorchOptions(device="cpu", dtype="float32", batch_windows=4)


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Path, Path]:
    return make_pair(tmp_path_factory.mktemp("pair"), "llama")


@pytest.fixture(scope="module")
def packed(pair, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "x-Q8_0.gguf"
    return with_types(pair[1], out, lambda name, shape: "Q8_0" if len(shape) > 1 else None)


def ask(model: Path, output: Path, pair: tuple[Path, Path], **more):
    fields = {"options": FLOAT, "tokenizer": str(pair[0])} | more
    return request(model, TEXT, output, **fields)


def test_a_file_and_the_folder_it_was_made_of_score_the_same(pair, tmp_path):
    folder, file = (measure(ask(model, tmp_path / "runs", pair)) for model in pair)
    assert file.record.document["metrics"]["ppl"]["value"] == pytest.approx(
        folder.record.document["metrics"]["ppl"]["value"], rel=1e-6
    )
    assert file.folder.name.split("_")[1] == "llama"
    checkpoint = file.record.document["checkpoint"]
    assert checkpoint["source"] == checkpoint["path"] == str(pair[1])
    assert list(checkpoint["files"]) == ["llama.gguf"]


def test_the_files_own_tokenizer(pair, packed, tmp_path):
    """Of the folder's ids, so that a folder's reference may be compared with."""
    named = measure(ask(packed, tmp_path / "runs", pair))
    own = measure(ask(packed, tmp_path / "runs", pair, tokenizer=None, reference=str(pair[0])))
    assert own.record.document["plan"] == named.record.document["plan"]
    assert own.record.document["metrics"]["ppl"] == named.record.document["metrics"]["ppl"]
    assert own.record.document["tokenizer"]["source"] == str(packed)
    assert own.record.document["tokenizer"]["auto_tokenizer"] is None
    ours, theirs = (
        pq.read_table(ran.folder / "scores.parquet")["token_bytes"] for ran in (own, named)
    )
    assert ours == theirs


def test_bits_and_formats_are_in_the_record(packed, pair, tmp_path):
    record = measure(ask(packed, tmp_path / "runs", pair)).record.document
    assert list(record["checkpoint"]["formats"]) == ["Q8_0"]
    assert record["checkpoint"]["bits_per_weight"]["body"] == 8.5


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_base_beside_the_model(dtype, packed, pair, tmp_path):
    base = tmp_path / f"{dtype}.gguf"
    with_types(pair[1], base, lambda name, shape: dtype if len(shape) > 1 else None)
    record = measure(ask(packed, tmp_path / "runs", pair, reference=str(base))).record.document
    assert record["reference"]["kind"] == "model"
    assert list(record["reference"]["checkpoint"]["files"]) == [f"{dtype}.gguf"]
    assert 0 < record["metrics"]["kld"]["value"] < 0.01
    itself = measure(ask(base, tmp_path / "runs", pair, reference=str(base))).record.document
    assert itself["metrics"]["kld"]["value"] == 0


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_file_is_no_distance_from_its_own_decoded_weights(is_kept, pair, tmp_path, monkeypatch):
    """The one is computed in bfloat16 by itself, the other in float32; together in one dtype."""
    # As on a GPU, and on CPUs that have them.
    monkeypatch.setattr("scoremode.engines.torch.device.has_instructions", lambda *_: True)
    auto = replace(FLOAT, dtype="auto")
    packed = in_blocks(pair[1], tmp_path / "packed.gguf", "Q4_1")
    reference = dense = in_blocks(pair[1], tmp_path / "dense.gguf", "Q4_1", dense=True)
    if is_kept:
        reference = tmp_path / "kept"
        measure(ask(dense, reference, pair, keep="stored", options=auto))
    asked = ask(packed, tmp_path / "runs", pair, reference=str(reference), options=auto)
    record = measure(asked).record.document
    dtypes = [section["engine"]["dtype"] for section in (record, record["reference"])]
    assert dtypes == ["float32" if is_kept else "bfloat16"] * 2
    assert record["metrics"]["kld"]["value"] == 0 and record["metrics"]["top1"]["value"] == 1


def test_a_base_that_is_none_beside_llama_cpps_arithmetic(packed, pair, tmp_path):
    """Kept for a sweep as it runs beside one model: what its weights are, in float32."""
    options = replace(FLOAT, dtype="auto", arithmetic="llama.cpp")
    asked = ask(packed, tmp_path / "runs", pair, reference=str(pair[0]), options=options)
    beside = measure(asked).record.document
    swept = SweepRequest((str(packed),), (asked,), tmp_path / "swept", ())
    (result,) = run_sweep(swept).results
    assert result is not None
    kept = result.record.document
    assert kept["reference"]["engine"]["arithmetic"] == "weights"
    assert kept["metrics"]["kld"]["value"] == beside["metrics"]["kld"]["value"] > 0


@pytest.mark.parametrize("head", ["stored", "checkpoint"])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_kept_reference(dtype, head, packed, pair, tmp_path):
    base = tmp_path / f"{dtype}.gguf"
    with_types(pair[1], base, lambda name, shape: dtype if len(shape) > 1 else None)
    # The head is kept as it is used, in the type that it is stored in.
    options = replace(FLOAT, dtype={"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[dtype])
    kept = measure(ask(base, tmp_path / "kept", pair, keep=head, options=options))
    where = kept.record.document["kept"]["head"]["checkpoint"]
    assert (where is None) == (head == "stored")
    if where is not None:
        assert (where["path"], where["weight"]) == (str(base), "lm_head.weight")
    reference = str(tmp_path / "kept")
    ran = measure(ask(packed, tmp_path / "runs", pair, reference=reference, options=options))
    beside = measure(ask(packed, tmp_path / "runs", pair, reference=str(base), options=options))
    assert ran.record.document["metrics"]["kld"] == beside.record.document["metrics"]["kld"]
    # Its own scores come back, from the kept head.
    again = measure(ask(base, tmp_path / "runs", pair, reference=reference, options=options))
    assert again.record.document["metrics"]["kld"]["value"] == 0


def test_a_quantized_base(packed, pair, tmp_path):
    options = replace(FLOAT, dtype="bfloat16")
    with pytest.raises(RunFolderError, match="keep it in the reference"):
        measure(ask(packed, tmp_path / "none", pair, keep="checkpoint", options=options))
    measure(ask(packed, tmp_path / "kept", pair, keep="stored", options=options))
    record = measure(
        ask(packed, tmp_path / "runs", pair, reference=str(tmp_path / "kept"), options=options)
    ).record.document
    assert record["metrics"]["kld"]["value"] == 0


def test_a_kept_head_in_a_file_that_has_changed(pair, tmp_path):
    base = shutil.copy(pair[1], tmp_path / "base.gguf")
    measure(ask(base, tmp_path / "kept", pair, keep="checkpoint"))
    (head,) = (t for t in read_gguf(base).tensors if t.name == "output.weight")
    with base.open("r+b") as file:
        file.seek(head.begin)
        file.write(b"\0" * 64)
    with pytest.raises(
        ReferenceUnusable, match="its states, its head or its scores are not what they were"
    ):
        measure(ask(pair[1], tmp_path / "runs", pair, reference=str(tmp_path / "kept")))


def test_a_killed_run_goes_on_only_with_the_same_file(packed, pair, tmp_path):
    first = measure(ask(packed, tmp_path / "runs", pair))
    model = Path(shutil.copy(packed, tmp_path / packed.name))
    again = measure(ask(model, first.folder, pair, resume=True))
    assert again.folder == first.folder
    with model.open("r+b") as file:
        file.seek(-100, 2)
        byte = file.read(1)
        file.seek(-100, 2)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(RunFolderError, match=r"x-Q8_0\.gguf has changed"):
        measure(ask(model, first.folder, pair, resume=True))


def test_vllm_is_not_given_one(packed, pair, tmp_path):
    one = ask(packed, tmp_path / "runs", pair, options=VllmOptions())
    check = VerifyRequest(
        one.model, one.corpus, one.protocol, {"vllm": one.options}, FLOAT, tokenizer=one.tokenizer
    )
    for refused in (lambda: measure(one), lambda: verify(check)):
        with pytest.raises(EngineError) as error:
            refused()
        assert str(error.value) == (
            f"{packed}: is a GGUF file, which vLLM is not given here: use --engine torch"
        )


def test_a_base_is_found_missing_first(packed, pair, tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.gguf: no such file"):
        measure(ask(packed, tmp_path / "runs", pair, reference=str(tmp_path / "none.gguf")))
