"""Options of a module in memory: it makes itself, and a base beside it on its device."""

from dataclasses import replace

import torch
from support.models import library_model, random_plan

from scoremode.checkpoint.files import open_checkpoint
from scoremode.checkpoint.virtual import ModuleInMemory
from scoremode.engines.torch.engine import TorchEngine
from scoremode.engines.torch.in_memory import InMemoryEngine
from scoremode.engines.torch.options import InMemoryOptions, TorchOptions


def test_it_makes_itself_and_a_base_beside(demo, tmp_path):
    checkpoint = ModuleInMemory.of(library_model(demo / "model", torch.float32), tmp_path)
    options = InMemoryOptions(checkpoint, TorchOptions(batch_windows=3))
    plan = random_plan(24, 4, 0, 500)
    engine = options.make(checkpoint, None, plan, lambda _: None)
    assert isinstance(engine, InMemoryEngine) and engine.schedule(plan).batch_windows == 3
    base = options.make_base(open_checkpoint(str(demo / "model")), None, 24)
    assert isinstance(base, TorchEngine) and base.device.torch.type == "cpu"
    assert options.sharing(lambda _: 1) is options.keeping() is options
    assert options.gpu is None and not options.mixes
    checkpoint = open_checkpoint(str(demo / "model"))
    alike = options.in_dtype_of(checkpoint)
    assert alike.base.dtype == "float32" and alike.checkpoint is options.checkpoint
    told = replace(options, base=replace(options.base, dtype="bfloat16"))
    assert told.in_dtype_of(checkpoint) is told
    assert options.in_dtype("bfloat16") is options
