"""One model of a sweep: its engine is gone before the next one's is made."""

import weakref

import pytest
from support.sweeps import pair, sweep_request

from scoremode.engines.base import OutOfMemory
from scoremode.engines.torch import engine as torch_engine
from scoremode.engines.torch.engine import TorchEngine
from scoremode.runs.sweep import model as module
from scoremode.runs.sweep.sweep import run_sweep


def test_an_engine_is_gone_before_the_next_one_is_made(base, quant, text, tmp_path, monkeypatch):
    made: list[weakref.ref] = []
    alive: list[int] = []
    build = torch_engine.build_engine

    def noted(*args):
        alive.append(sum(ref() is not None for ref in made))
        engine = build(*args)
        made.append(weakref.ref(engine))
        return engine

    monkeypatch.setattr(torch_engine, "build_engine", noted)
    models = [quant, base]
    outcome = run_sweep(sweep_request(tmp_path / "out", models, pair(base, text[:1500])))
    assert outcome.failed == 0 and alive == [0, 0, 0]


def test_one_that_runs_out_of_memory_fails_alone_and_holds_nothing(
    base, quant, text, tmp_path, monkeypatch
):
    engines: list[weakref.ref] = []
    score, calls = TorchEngine.score, []

    def failing(self, *args):
        calls.append(1)
        # The base's, then the quant's, whose second try with half the windows fails as well.
        if len(calls) in (2, 3):
            engines.append(weakref.ref(self))
            raise OutOfMemory("CUDA has too little memory")
        return score(self, *args)

    monkeypatch.setattr(TorchEngine, "score", failing)
    free, left = module.free_device, []

    def noted():
        free()
        left.append([ref() is not None for ref in engines])

    monkeypatch.setattr(module, "free_device", noted)
    outcome = run_sweep(sweep_request(tmp_path / "out", [quant, base], pair(base, text[:1500])))
    first, second = outcome.manifest["entries"]
    assert first["status"] == "failed" and "too little memory" in str(first["error"])
    assert second["status"] == "done"
    assert left[-1] == [False, False]


def test_an_error_that_nobody_expected_is_a_line_too(base, quant, text, tmp_path, monkeypatch):
    build = torch_engine.build_engine

    def failing(checkpoint, *args):
        if checkpoint.path.name == quant.name:
            raise KeyError("swish2")
        return build(checkpoint, *args)

    monkeypatch.setattr(torch_engine, "build_engine", failing)
    outcome = run_sweep(sweep_request(tmp_path / "out", [quant], pair(base, text[:1500])))
    (entry,) = outcome.manifest["entries"]
    assert str(entry["error"]).startswith("KeyError: 'swish2' (line ")


def test_ctrl_c_ends_the_sweep(base, quant, text, tmp_path, monkeypatch):
    calls = []

    def stopped(self, *args):
        calls.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(TorchEngine, "score", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep_request(tmp_path / "out", [quant], pair(base, text[:1500])))
    assert calls == [1]
    monkeypatch.undo()
    outcome = run_sweep(sweep_request(tmp_path / "out", [quant], pair(base, text[:1500])))
    assert outcome.failed == 0
