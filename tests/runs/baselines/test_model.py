"""A base that runs beside the model."""

import shutil
from contextlib import nullcontext
from dataclasses import replace

import pytest
from models import edit_tensors
from run_requests import request

from scoremode.engines.torch.engine import TorchEngine
from scoremode.errors import (
    RunFolderError,
)
from scoremode.runs.measure import measure


def test_a_live_bases_other_weights_are_another_run(base, quant, text, tmp_path):
    model = shutil.copytree(base, tmp_path / "model")
    ask = request(quant, text, tmp_path / "runs", reference=str(model), resume=True)
    first = measure(ask)
    edit_tensors(model, lambda tensors: tensors["model.norm.weight"].mul_(1.5))
    second = measure(ask)
    assert second.folder != first.folder
    assert second.record["metrics"]["kld"] != first.record["metrics"]["kld"]
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
