"""The CUDA decoder of AWQ's `gemv_fast`, on a GPU or interpreted: the bits of plain torch."""

import pytest
import torch
from support.decoding_cases import Random, differing
from support.families.qweight import Recipe, quantize
from support.kernel_twins import by_kernel, by_twin, check_decoder, launches
from support.schemes import DTYPES, random_weight
from support.triton_interpreter import exact_bfloat16

from scoremode.schemes.awq import GemvFast

triton = pytest.importorskip("triton", reason="needs Triton")
pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() and not triton.knobs.runtime.interpret,
    reason="Triton was imported without its interpreter",
)


@pytest.fixture(autouse=True)
def rounding(monkeypatch):
    if not torch.cuda.is_available():
        exact_bfloat16(monkeypatch)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "size"), [((8, 64), 32), ((12, 320), 64), ((20, 256), 256)])
def test_every_size(shape, size, dtype):
    stored, _ = quantize(
        random_weight(shape[0], shape[1], torch.float32), Recipe(4, size, order="gemv_fast")
    )
    check_decoder(GemvFast(shape, size), stored, dtype)


# What overflows on a GPU without a word, numpy warns of.
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_any_bits():
    random = Random(3)
    stored = {
        "qweight": random.bits((4, 192), torch.int16),
        "scales": random.scales((8, 16), torch.float16),
        "qzeros": random.scales((8, 16), torch.float16),
    }
    scheme = GemvFast((16, 192), 192)
    twin = by_twin(scheme, stored, "decode", torch.float32)
    with launches():
        ours = by_kernel(scheme, stored, "decode", torch.float32)
    assert differing(ours, twin) == 0 and twin.isnan().any() and twin.isinf().any()
