"""A base that runs beside the model."""

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from support.gguf.blocks import dequantized, tame_blocks
from support.gguf.packed_models import PACKED
from support.models import edit_config, edit_tensors
from support.run_requests import request

from scoremode.cli.card import card
from scoremode.engines.torch.engine import TorchEngine
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import (
    RunFolderError,
)
from scoremode.report.compare import compare_document
from scoremode.report.run import kld_document
from scoremode.report.terminal import document_text
from scoremode.results.comparison.ranking import ranking
from scoremode.results.folders.finished import load_run
from scoremode.results.record.definition import read_document
from scoremode.runs.measure import measure
from scoremode.runs.request import Request
from scoremode.runs.sweep.manifest import SweepRequest
from scoremode.runs.sweep.sweep import run_sweep


def test_a_live_bases_other_weights_are_another_run(base, quant, text, tmp_path):
    model = shutil.copytree(base, tmp_path / "model")
    ask = request(quant, text, tmp_path / "runs", reference=str(model), resume=True)
    first = measure(ask)
    edit_tensors(model, lambda tensors: tensors["model.norm.weight"].mul_(1.5))
    second = measure(ask)
    assert second.folder != first.folder
    assert second.record.document["metrics"]["kld"] != first.record.document["metrics"]["kld"]
    with pytest.raises(RunFolderError, match=r"model\.safetensors has changed"):
        measure(replace(ask, output=first.folder))


def test_a_model_is_told_what_its_base_takes(base, quant, text, tmp_path, monkeypatch):
    """Of a GPU they share; the base comes first."""
    told, own = [], TorchEngine.__init__

    def noted(self, parts):
        told.append(parts.options.beside)
        own(self, parts)

    monkeypatch.setattr(TorchEngine, "__init__", noted)
    monkeypatch.setattr(TorchEngine, "held_bytes", lambda self, plan: 12_345)
    measure(request(quant, text, tmp_path / "runs", reference=str(base)))
    assert told == [0, 12_345]


@pytest.mark.parametrize("fails", [False, True])
def test_a_base_ends_with_its_run(base, quant, text, tmp_path, monkeypatch, fails):
    """What feeds a GPU has files open, which a process that measures on would never close."""
    made, closed, own = [], [], TorchEngine.__init__

    def noted(self, parts):
        made.append(self)
        own(self, parts)

    def interrupted(self, work):
        raise KeyboardInterrupt

    monkeypatch.setattr(TorchEngine, "__init__", noted)
    monkeypatch.setattr(TorchEngine, "close", lambda self: closed.append(self))
    if fails:
        monkeypatch.setattr(TorchEngine, "launch", interrupted)
    with pytest.raises(KeyboardInterrupt) if fails else nullcontext():
        measure(request(quant, text, tmp_path / "runs", reference=str(base)))
    assert len(made) == 2
    assert closed == made[::-1]


@pytest.fixture
def packed_and_dense(base, tmp_path, monkeypatch) -> tuple[Path, Path]:
    """The demo with its matrices in Q4_1, to be computed in bfloat16, and its own decoded weights."""
    # As on a GPU, and on CPUs that have them.
    monkeypatch.setattr("scoremode.engines.torch.device.has_instructions", lambda *_: True)
    packed, dense = (shutil.copytree(base, tmp_path / name) for name in ("packed", "dense"))

    def stored(tensors, *, pack: bool) -> None:
        for seed, name in enumerate(sorted(name for name in tensors if PACKED.search(name))):
            rows, width = tensors.pop(name).shape
            blocks = tame_blocks("Q4_1", rows, width // 32, seed=seed)
            if pack:
                tensors[name.replace(".weight", ".Q4_1")] = blocks.view(rows, -1)
            else:
                tensors[name] = dequantized("Q4_1", blocks).view(rows, width)

    edit_tensors(packed, lambda tensors: stored(tensors, pack=True))
    edit_config(packed, dtype="bfloat16", quantization_config={"quant_method": "gguf"})
    edit_tensors(dense, lambda tensors: stored(tensors, pack=False))
    edit_config(dense, dtype="float32")
    return packed, dense


AUTO = TorchOptions(device="cpu", batch_windows=4)
UNLIKE = "base in float32, model in bfloat16: part of the divergence is arithmetic"


def test_a_model_is_no_distance_from_its_own_decoded_weights(packed_and_dense, text, tmp_path):
    """A base runs in its model's dtype, whatever its config says, unless told otherwise."""
    packed, dense = map(str, packed_and_dense)
    asked = request(Path(packed), text[:1500], tmp_path / "runs", options=AUTO, reference=dense)
    record = measure(asked).record.document
    assert record["engine"]["dtype"] == record["reference"]["engine"]["dtype"] == "bfloat16"
    assert record["metrics"]["kld"]["value"] == 0 and record["metrics"]["top1"]["value"] == 1
    assert record["reference"]["arithmetic"] is None
    assert "OTHER DTYPE" not in document_text(kld_document(read_document(record), tmp_path))


def test_all_models_of_a_command_compute_in_one_dtype(packed_and_dense, text, tmp_path):
    """That of the first where the base's own has more than 16 bits."""
    packed, dense = map(str, packed_and_dense)
    asked = request(Path(packed), text[:1500], tmp_path / "runs", options=AUTO, reference=dense)
    swept = SweepRequest(
        (str(tmp_path / "missing"), packed, dense), (asked,), tmp_path / "swept", ()
    )
    missing, *others = run_sweep(swept).results
    assert missing is None
    for result in others:
        assert result is not None
        record = result.record.document
        assert record["engine"]["dtype"] == record["reference"]["engine"]["dtype"] == "bfloat16"
        assert record["metrics"]["kld"]["value"] == 0 and record["reference"]["arithmetic"] is None


def kept_and_asked(packed_and_dense, text, tmp_path) -> Request:
    """The packed model against a reference that was kept in float32."""
    packed, dense = packed_and_dense
    plain = request(dense, text[:1500], tmp_path / "kept", options=AUTO, keep="stored")
    reference = str(measure(plain).folder)
    return replace(
        plain, model=str(packed), output=tmp_path / "runs", keep=None, reference=reference
    )


def test_a_model_computes_in_the_dtype_of_a_kept_reference(packed_and_dense, text, tmp_path):
    asked = kept_and_asked(packed_and_dense, text, tmp_path)
    record = measure(asked).record.document
    assert record["engine"]["dtype"] == record["reference"]["engine"]["dtype"] == "float32"
    assert record["metrics"]["kld"]["value"] == 0 and record["metrics"]["top1"]["value"] == 1
    assert record["reference"]["arithmetic"] is None


def test_a_dtype_beside_a_kept_reference_of_another_is_named(packed_and_dense, text, tmp_path):
    asked = kept_and_asked(packed_and_dense, text, tmp_path)
    run = measure(replace(asked, options=replace(AUTO, dtype="bfloat16")))
    record = load_run(run.folder)[0].document
    assert record["metrics"]["kld"]["value"] > 0
    assert record["reference"]["arithmetic"] == UNLIKE
    for shown in (
        document_text(kld_document(read_document(record), run.folder)),
        document_text(compare_document(ranking([run.folder]))),
    ):
        assert UNLIKE in " ".join(shown.split())
    assert UNLIKE in card([run.folder])
