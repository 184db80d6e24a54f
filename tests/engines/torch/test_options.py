"""The torch engine's options, as they are asked before torch is there."""

from dataclasses import fields

import pytest
import torch
from support.engine import make_engine
from support.models import make_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import UsageError

# The options that may move a score, and where an engine's identity says them.
MAY_MOVE = {
    "dtype": "dtype",
    "arithmetic": "arithmetic",
    "kv_cache": "kv_cache_dtype",
    "attention": "attention",
    "device": "device",
    "max_memory": "device.memory_bytes",
    "memory_share": "device.memory_bytes",
    "batch_windows": "batch_windows",
}
# The others, and why none of them does.
MAY_NOT = {
    "beside": "only bounds the schedule, which is stored",
    "keeps": "what is kept is what was scored",
    "place": "a layer is decoded to the same bits from anywhere",
    "trust_remote_code": "its class is in the identity, its code is hashed with the files",
}


def test_every_option_is_in_the_identity_or_moves_no_score(tmp_path):
    """A run that goes on with another value of one that is not would mix two arithmetics."""
    options = {field.name for field in fields(TorchOptions)}
    assert options == MAY_MOVE.keys() | MAY_NOT.keys() and not MAY_MOVE.keys() & MAY_NOT.keys()
    identity = make_engine(make_checkpoint(tmp_path, "llama")).identity()
    for place in MAY_MOVE.values():
        value = identity
        for key in place.split("."):
            assert key in value, place
            value = value[key]


@pytest.mark.parametrize(
    ("device", "local_rank", "gpu"),
    [
        (None, None, 0),
        ("cuda", None, 0),
        ("cuda:3", None, 3),
        ("cpu", None, None),
        ("cuda:x", None, None),
        ("cuda", "2", 2),
        ("cuda:1", "2", 1),
    ],
)
def test_the_gpu_to_open_early_is_the_one_that_will_compute(device, local_rank, gpu, monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert TorchOptions(device=device).gpu == gpu


def test_a_base_in_the_same_process_is_asked_what_it_takes_of_the_device():
    asked = []
    options = TorchOptions(device="cpu", batch_windows=3)
    shared = options.sharing(lambda device: asked.append(device) or 7)
    assert asked == [torch.device("cpu")]
    assert shared == TorchOptions(device="cpu", batch_windows=3, beside=7)
    with pytest.raises(UsageError, match="not a device"):
        TorchOptions(device="gpu").sharing(lambda _: 0)


def test_other_options_are_these_but_for_what_is_named():
    options = TorchOptions(dtype="float32", attention="sdpa", batch_windows=3)
    assert options.keeping() == TorchOptions(
        "float32", attention="sdpa", batch_windows=3, keeps=True
    )
    assert options.computing("bfloat16").attention == "sdpa"
    changed = options.computing("bfloat16", "eager")
    assert (changed.dtype, changed.attention, changed.batch_windows) == ("bfloat16", "eager", 3)


def test_a_base_that_is_no_gguf_is_beside_llama_cpps_arithmetic_what_its_weights_are(tmp_path):
    folder = make_checkpoint(tmp_path / "model", "llama", dtype=torch.bfloat16)
    options = TorchOptions(device="cpu", arithmetic="llama.cpp")
    engine = options.make_base(open_checkpoint(str(folder)), None, 64)
    found = engine.identity()
    assert (found["arithmetic"], found["dtype"]) == ("weights", "float32")


@pytest.mark.parametrize(
    ("own", "computed", "found"),
    [
        ({}, "bfloat16", "bfloat16"),
        ({}, "float32", "float32"),
        # No instructions for it here.
        ({}, "float16", "auto"),
        ({"dtype": "bfloat16"}, "float32", "bfloat16"),
        ({"arithmetic": "llama.cpp"}, "bfloat16", "auto"),
    ],
)
def test_a_model_takes_the_dtype_of_what_it_is_compared_with(own, computed, found, monkeypatch):
    name = "scoremode.engines.torch.device.cpu_has_instructions"
    monkeypatch.setattr(name, lambda dtype: dtype != torch.float16)
    assert TorchOptions(device="cpu", **own).in_dtype(computed).dtype == found
