"""Forwards in the place of a module's own, and the calls that go to its own all the same."""

import inspect
from functools import wraps

import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

pytest.importorskip("triton", reason="needs Triton")
from support.fused_cases import DEVICE, layer, random, run

from scoremode.engines.torch.fused import modules
from scoremode.engines.torch.fused.modules import fuse_modules

# The interpreter's numpy warns of infinities, which some of the inputs are.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")


def test_weights_are_read_when_a_kernel_runs():
    module = layer()
    with torch.device("meta"):
        empty = LlamaDecoderLayer(module.self_attn.config, 0).half().eval()
    fuse_modules([empty], DEVICE, torch.float16)
    for seed in (1, 2):
        for i, (name, parameter) in enumerate(module.named_parameters()):
            parameter.copy_(random(*parameter.shape, dtype=torch.float16, seed=seed + 9 * i) * 0.2)
            path, _, last = name.rpartition(".")
            empty.get_submodule(path)._parameters[last] = parameter
        difference = (run(empty) - run(module)).abs().max()
        assert difference <= 0.01 * run(module).abs().max()


def test_a_rebound_function_keeps_all_but_one_name():
    inside = 2

    def call(x, y=3, *, z=5):
        return scale(x) * y * z * inside

    other = modules.rebind(call, "scale", lambda x: 10 * x)
    assert other(1) == 300
    assert call(1) == 30


def test_a_wrapper_is_rebound_with_what_it_wraps():
    """As the library wraps a forward whose arguments have other names than before."""

    def renaming(function):
        @wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **{"y" if k == "old" else k: v for k, v in kwargs.items()})

        return wrapper

    @renaming
    @renaming
    def call(x, y=3):
        return scale(x) * y

    other = modules.rebind(call, "scale", lambda x: 10 * x)
    assert (other(1), other(1, old=4), call(1), call(1, old=4)) == (30, 40, 3, 4)
    assert list(inspect.signature(other).parameters) == ["x", "y"]
    call.__closure__[0].cell_contents = scale
    with pytest.raises(modules.NotFused, match="is wrapped"):
        modules.rebind(call, "scale", abs)


def scale(x):
    return x


def test_calls_unlike_those_proven_are_the_librarys():
    norm = LlamaRMSNorm(32).to(DEVICE)
    norm.weight = nn.Parameter(random(32, dtype=torch.float16), False)
    what = fuse_modules([norm], DEVICE, torch.float16)
    assert what.describe() == {"LlamaRMSNorm": "triton"}
    x = random(4, 32, dtype=torch.float32)
    assert torch.equal(norm(x), type(norm).forward(norm, x))
    both = "triton and eager (a call unlike those proven)"
    assert what.describe() == {"LlamaRMSNorm": both}
