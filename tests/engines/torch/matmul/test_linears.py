"""Products of quantized weights and inputs against compressed-tensors' fake-quantized forward."""

import weakref

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from support.families.llm_int8 import LIBRARY_UNIT, one_window
from support.golden_libraries import golden
from support.quantized import ACTIVATION_PRESETS, LibraryLinear, preset

from scoremode.engines.torch.device import choose_device
from scoremode.engines.torch.matmul import products
from scoremode.engines.torch.matmul.linears import (
    InputFactor,
    QuantizedMatmul,
    Windows,
    groups_of,
    multiply_input,
    quantize_forward,
)
from scoremode.errors import UnsupportedModel
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import Scratch
from scoremode.schemes.bitsandbytes import LlmInt8
from scoremode.schemes.decoding.codes import Quantized
from scoremode.schemes.fields import TensorFormat

CPU = choose_device("cpu", None, None)
EPS = torch.finfo(torch.float32).eps


def inputs(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """float32 with outliers, a row of zeros and a row of one value."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator)
    x[:, 3] *= 30
    x[0] = 0
    x[-1] = 0.5
    return x


def library(name: str, rows: int, columns: int) -> LibraryLinear:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)) * 0.05
    return LibraryLinear(weight, preset(name), inputs(50, columns, seed=2))


def loaded(linear: LibraryLinear, folder, scratch: Scratch) -> QuantizedMatmul:
    scheme, stored = linear.resolved(folder)
    matmul = QuantizedMatmul(scheme, CPU, Windows())
    codes = torch.empty(scheme.shape, dtype=matmul.product.dtype)
    scale = scheme.factor({s: stored[s] for s in scheme.tensors}, codes, scratch)
    assert scheme.inputs
    static = {s: stored[s] for s in scheme.inputs.tensors}
    matmul.load(Quantized(codes, scale), static, scratch)
    return matmul


def exact_sums(linear: LibraryLinear, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float64: the library's fake-quantized forward without rounding a sum, and the sums of the
    magnitudes, which bound what rounding can do."""
    doubled: list[torch.Tensor] = []

    def keep(input: torch.Tensor, weight: torch.Tensor, bias: object) -> torch.Tensor:
        doubled.extend((input[0].double(), weight.double()))
        return torch.zeros(1, input.shape[1], len(weight))

    original = torch.nn.functional.linear
    torch.nn.functional.linear = keep
    try:
        linear.forward(x)
    finally:
        torch.nn.functional.linear = original
    xq, wq = doubled
    return xq @ wq.T, xq.abs() @ wq.abs().T


@pytest.mark.parametrize("shape", [(1, 128), (40, 256), (129, 640)])
@pytest.mark.parametrize("name", ACTIVATION_PRESETS)
def test_equals_the_fake_quantized_forward(name, shape, tmp_path):
    linear = library(name, *shape)
    matmul = loaded(linear, tmp_path, Scratch())
    x = inputs(70, shape[1])
    ours, theirs = matmul(x, None), linear.forward(x)
    exact, magnitude = exact_sums(linear, x)
    assert ours.dtype == torch.float32 and theirs.abs().max() > 0.1
    # Scales are two factors of the epilogue here and rounded into each operand there: a few
    # roundings each, and those of the sums.
    limit = (4 + shape[1] ** 0.5) * EPS * magnitude + 1e-30
    assert ((ours - exact).abs() <= limit).all()
    assert ((ours - theirs).abs() <= 2 * limit).all()


@pytest.mark.parametrize("name", ["W8A8", "NVFP4", "MXFP4", "MXFP8", "FP8_DYNAMIC"])
def test_is_no_less_exact_than_the_library_in_float32(name, tmp_path):
    linear = library(name, 96, 2048)
    x = inputs(200, 2048)
    exact, magnitude = exact_sums(linear, x)

    def error(y: torch.Tensor) -> float:
        return float(((y - exact).abs() / (magnitude + 1e-30)).square().mean().sqrt())

    ours = error(loaded(linear, tmp_path, Scratch())(x, None))
    theirs = error(linear.forward(x))
    # Which order a CPU sums in is its library's: MXFP8 took 1.23 times theirs with AVX-512 and AMX, and
    # 1 elsewhere. Sums in bf16 would take 10^5 times as much.
    assert ours <= theirs * 1.5 and ours < EPS / 4
    if name == "W8A8":
        # Integer sums are exact: what is left are the roundings of two scales.
        assert ours < theirs / 1.5 and ours < EPS


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("strategy", ["token", "tensor"], ids=["dynamic", "static"])
def test_asymmetric_integers_of_every_width(strategy, symmetric, bits, tmp_path):
    weights = QuantizationArgs(num_bits=bits, strategy="channel", symmetric=symmetric)
    args = QuantizationArgs(
        num_bits=bits, strategy=strategy, dynamic=strategy == "token", symmetric=False
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=weights, input_activations=args)
    weight = torch.randn(24, 64, generator=torch.Generator().manual_seed(1))
    x = inputs(70, 64)[1:]
    linear = LibraryLinear(weight, scheme, x)
    ours = loaded(linear, tmp_path, Scratch())(x, None)
    exact, magnitude = exact_sums(linear, x)
    assert ((ours - exact).abs() <= (4 + 64**0.5) * EPS * magnitude + 1e-30).all()


def test_batches_and_bias_and_dtype(tmp_path):
    linear = library("W8A8", 24, 64)
    matmul = loaded(linear, tmp_path, Scratch())
    x = inputs(30, 64).view(2, 15, 64)
    bias = torch.randn(24)
    flat = matmul(x.view(30, 64), None)
    assert torch.equal(matmul(x, bias), (flat + bias).view(2, 15, 24))
    halves = matmul(x.bfloat16(), bias)
    assert halves.dtype == torch.bfloat16
    # Quantized from what the input is, and rounded once.
    assert torch.equal(halves, matmul(x.bfloat16().float(), bias).bfloat16())


def test_scratch_is_reused_and_results_are_not(tmp_path):
    linear = library("FP8_BLOCK", 300, 256)
    scratch = Scratch()
    matmul = loaded(linear, tmp_path, scratch)
    first = matmul(inputs(600, 256), None)
    kept = first.clone()
    matmul(inputs(600, 256, seed=9), None)
    assert torch.equal(first, kept)


def counting(matmuls: list[QuantizedMatmul], monkeypatch) -> list[torch.Tensor]:
    """What is quantized from now on; the matmuls share their latest input."""
    seen: list[torch.Tensor] = []
    quantize = Inputs.quantize

    def counted(self: Inputs, x: torch.Tensor, *args):
        seen.append(x)
        return quantize(self, x, *args)

    monkeypatch.setattr(Inputs, "quantize", counted)
    for matmul in matmuls:
        matmul._windows = matmuls[0]._windows
    return seen


def test_the_same_input_is_quantized_once(tmp_path, monkeypatch):
    q, k = (loaded(library("W8A8", n, 64), tmp_path, Scratch()) for n in (24, 8))
    other = loaded(library("FP8_DYNAMIC", 24, 64), tmp_path, Scratch())
    x = inputs(30, 64)
    alone = [m(x.clone(), None) for m in (q, k, other)]
    seen = counting([q, k, other], monkeypatch)
    assert torch.equal(q(x, None), alone[0])
    assert torch.equal(k(x, None), alone[1])
    assert len(seen) == 1
    # Another format, another tensor of the same values, the same linear again.
    assert torch.equal(other(x, None), alone[2])
    q(x, None)
    k(x.clone(), None)
    k(x, None)
    q(x, None)
    q(x, None)
    assert len(seen) == 6


def test_an_input_that_was_written_to_is_another(tmp_path, monkeypatch):
    q, k = (loaded(library("W8A8", n, 64), tmp_path, Scratch()) for n in (24, 8))
    x = inputs(30, 64)
    seen = counting([q, k], monkeypatch)
    q(x, None)
    x.view(-1)[7] = 3.0
    assert torch.equal(k(x, None), k(x.clone(), None))
    assert len(seen) == 3
    q(x, None)
    torch.autograd.graph.increment_version(x)
    k(x, None)
    assert len(seen) == 5
    with torch.inference_mode():
        # Nobody counts there what is written.
        y = x * 2
        q(y, None)
        k(y, None)
    assert len(seen) == 7


def test_nothing_is_kept_of_an_unloaded_layer(tmp_path):
    q, k = (loaded(library("W8A8", n, 64), tmp_path, Scratch()) for n in (24, 8))
    k._windows = q._windows
    x = inputs(30, 64)
    kept = weakref.ref(x)
    q(x, None)
    del x
    assert kept() is not None
    k.unload()
    assert kept() is None


@pytest.mark.parametrize("same", [True, False])
def test_static_scales_are_shared_by_value(same, tmp_path, monkeypatch):
    q, k = (loaded(library("FP8", n, 64), tmp_path, Scratch()) for n in (24, 8))
    assert q._loaded and k._loaded
    scale = q._loaded[1]["input_scale"]
    weight, _, scratch = k._loaded
    k.load(weight, {"input_scale": scale.clone() if same else scale * 1.5}, scratch)
    x = inputs(30, 64)
    alone = [m(x.clone(), None) for m in (q, k)]
    seen = counting([q, k], monkeypatch)
    assert all(torch.equal(m(x, None), y) for m, y in zip((q, k), alone, strict=True))
    assert len(seen) == (1 if same else 2)
    # Loaded again with another scale.
    k.load(weight, {"input_scale": scale * 2}, scratch)
    q(x, None)
    assert not torch.equal(k(x, None), alone[1])


def test_windows_apart_and_together_are_other_inputs(tmp_path):
    scheme = QuantizationScheme(
        targets=["Linear"],
        weights=QuantizationArgs(num_bits=8, type="float", strategy="channel"),
        input_activations=QuantizationArgs(
            num_bits=8, type="float", strategy="tensor", dynamic=True
        ),
    )
    x = inputs(30, 64)
    q, k = (
        loaded(LibraryLinear(torch.randn(n, 64), scheme, x), tmp_path, Scratch()) for n in (24, 24)
    )
    k._windows = q._windows
    x = x.view(2, 15, 64)
    apart = k(x.clone(), None)
    with q._windows.together():
        q(x, None)
    assert torch.equal(k(x, None), apart)


LLM_INT8 = golden("llm_int8")


def llm_int8(case: dict[str, torch.Tensor], threshold: float, device=CPU) -> QuantizedMatmul:
    declared = TensorFormat(8, "int", "token", dynamic=True, outliers=threshold)
    rows, columns = case["weight"].shape
    scheme = LlmInt8((rows, columns), Inputs(declared, ()))
    matmul = QuantizedMatmul(scheme, device, Windows())
    stored = {s: case[s].to(device.torch) for s in scheme.tensors}
    codes = torch.empty(scheme.shape, dtype=matmul.product.dtype, device=device.torch)
    weight = Quantized(codes, scheme.factor(stored, codes, Scratch()))
    matmul.load(weight, {}, Scratch(), stored)
    return matmul


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", [name for name in LLM_INT8 if "19x64" in name])
def test_llm_int8_on_a_gpu(name):
    case, threshold = LLM_INT8[name], LLM_INT8[name]["threshold"].item()
    x, bias = case["x"], case.get("bias")
    ours = llm_int8(case, threshold, choose_device("cuda", None, None))
    found = ours(x.cuda(), None if bias is None else bias.cuda()).cpu()
    expected = llm_int8(case, threshold)(x, bias)
    step = {torch.float32: 2**-18, torch.bfloat16: 2**-7, torch.float16: 2**-10}[x.dtype]
    largest = expected.abs().nan_to_num().max().item()
    assert torch.allclose(found, expected, rtol=step, atol=step * largest, equal_nan=True)


@pytest.mark.parametrize("name", LLM_INT8)
def test_llm_int8_equals_bitsandbytes_but_for_its_constant(name):
    """Its portable code multiplies by 6.200124e-05, which is no 1 / 127²."""
    case, threshold = LLM_INT8[name], LLM_INT8[name]["threshold"].item()
    x, bias = case["x"], case.get("bias")
    stored = case["weight"], case["SCB"], bias, threshold
    theirs, ours = one_window(x[0], *stored, LIBRARY_UNIT), one_window(x[0], *stored)
    step = {torch.float32: 2**-23, torch.bfloat16: 2**-7, torch.float16: 2**-10}[x.dtype]
    # Magnitudes that are added up: those of 70,000 are float32's alone to round.
    dense = case["weight"].double() * case["SCB"].double().view(-1, 1) / 127
    near = 3 * step * (ours.y.abs().double() + 1) + 2**-22 * (x[0].double().abs() @ dense.abs().T)
    for y, expected in ((case["y"], theirs.y), (llm_int8(case, threshold)(x, bias), ours.y)):
        assert y.dtype == x.dtype and y.shape == (1, *expected.shape)
        assert ((y[0].double() - expected.double()).abs() <= near).all()
    if x.dtype == torch.float32 and not threshold:
        assert not torch.allclose(ours.y, theirs.y, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", [name for name in LLM_INT8 if "1x40" not in name])
def test_llm_int8_emulated_is_the_native_one_to_the_bit(name, monkeypatch):
    case, threshold = LLM_INT8[name], LLM_INT8[name]["threshold"].item()
    default = llm_int8(case, threshold)(case["x"], case.get("bias"))
    monkeypatch.setattr(products, "multiplies_int8", lambda *_: False)
    matmul = llm_int8(case, threshold)
    assert not matmul.product.native
    emulated = matmul(case["x"], case.get("bias"))
    assert torch.equal(default.nan_to_num(), emulated.nan_to_num())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_llm_int8s_windows_are_apart(dtype):
    """To the bit where as many tokens are multiplied: only one window's outliers differ."""
    case = LLM_INT8["f32-19x64x24-from6"]
    matmul = llm_int8(case, 6.0)
    x = case["x"].to(dtype).repeat(3, 1, 1)
    x[1:] *= 0.1
    together = matmul(x.clone(), None)
    x[0, :, 20:40] = 60
    assert torch.equal(matmul(x.clone(), None)[1:], together[1:])
    with matmul._windows.together():
        shared = matmul(x.clone(), None)
    assert not torch.equal(shared[1:], together[1:])
    rows = one_window(x.view(-1, 64), case["weight"], case["SCB"], None, 6.0).y
    assert torch.allclose(shared.view(-1, 24), rows, rtol=1e-2, atol=1e-3)


def test_llm_int8s_tokens_have_to_tell_their_windows():
    case = LLM_INT8["f32-19x64x24-from6"]
    linear = torch.nn.Linear(64, 24)
    quantize_forward(linear, "x.y", llm_int8(case, 6.0))
    words = (
        r"x\.y gets its tokens as \[19, 64\], its windows not apart, and its input \(int8 token, "
        r"outliers from 6 apart, dynamic\) has its outliers by the window: not supported; --arith"
    )
    with pytest.raises(UnsupportedModel, match=words):
        linear(case["x"][0])
    case = LLM_INT8["f32-19x64x24-from0"]
    quantize_forward(linear := torch.nn.Linear(64, 24), "x.y", llm_int8(case, 0.0))
    with torch.no_grad():
        assert torch.equal(linear(case["x"][0]), linear(case["x"])[0])


class GroupedLinear(torch.nn.Linear):
    """As DeepSeek-V4's: [..., G, I] by G parts of its rows."""

    def __init__(self, inputs: int, outputs: int, groups: int, bias: bool = False):
        super().__init__(inputs, outputs, bias)
        self.n_groups = groups

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight = self.weight.view(self.n_groups, -1, input.shape[-1])
        return torch.einsum("...gi,goi->...go", input, weight)


class OtherGroupedLinear(GroupedLinear):
    """Called so, and with its groups in another order."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.flip(-2))


@pytest.mark.parametrize(
    ("module", "groups"),
    [
        (torch.nn.Linear(64, 24), 1),
        (GroupedLinear(64, 24, 3), 3),
        (GroupedLinear(64, 24, 5), None),
        (GroupedLinear(64, 24, 3, bias=True), None),
        (OtherGroupedLinear(64, 24, 3), None),
        (torch.nn.Bilinear(4, 4, 4), None),
    ],
)
def test_groups_are_told_by_what_a_linear_computes(module, groups):
    before = module.weight
    assert groups_of(module) == groups
    assert module.weight is before


@pytest.mark.parametrize("name", ["W8A8", "FP8", "FP8_BLOCK", "NVFP4", "MXFP4"])
def test_groups_are_linears_of_their_own(name, tmp_path):
    """Each multiplies its own inputs by its own rows, whatever the others have."""
    linear = library(name, 384, 256)
    scheme, stored = linear.resolved(tmp_path)
    whole = QuantizedMatmul(scheme, CPU, Windows(), 3)
    codes = torch.empty(scheme.shape, dtype=whole.product.dtype)
    scale = scheme.factor({s: stored[s] for s in scheme.tensors}, codes, Scratch())
    assert scheme.inputs
    static = {s: stored[s] for s in scheme.inputs.tensors}
    whole.load(Quantized(codes, scale), static, Scratch())
    module = GroupedLinear(256, 384, 3)
    quantize_forward(module, "x.y", whole)
    x = inputs(30, 256).view(2, 5, 3, 256)
    with torch.no_grad():
        found = module(x)
    assert found.shape == (2, 5, 3, 128)
    one = loaded(linear, tmp_path, Scratch())
    for group in range(3):
        every = one(x[:, :, group].contiguous(), None)
        expected = every[..., 128 * group : 128 * (group + 1)]
        assert torch.allclose(found[:, :, group], expected, rtol=1e-5, atol=1e-5)


def test_groups_that_share_blocks_are_refused(tmp_path):
    linear = library("FP8_BLOCK", 192, 256)
    scheme, _ = linear.resolved(tmp_path)
    module = GroupedLinear(256, 192, 2)
    words = r"^x\.y has groups of 96 rows, and scales for blocks of 128: .*--arithmetic weights"
    with pytest.raises(UnsupportedModel, match=words):
        quantize_forward(module, "x.y", QuantizedMatmul(scheme, CPU, Windows(), 2))


def test_only_plain_linears_are_replaced(tmp_path):
    matmul = loaded(library("W8A8", 24, 64), tmp_path, Scratch())

    class Own(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * 2

    for module in (torch.nn.Embedding(3, 4), Own(64, 24)):
        with pytest.raises(UnsupportedModel, match=r"x\.y is a (Embedding|Own)"):
            quantize_forward(module, "x.y", matmul)
        with pytest.raises(UnsupportedModel, match=r"^m is a \w+, and the checkpoint has factors"):
            multiply_input(module, "m", InputFactor())
    linear = torch.nn.Linear(64, 24)
    quantize_forward(linear, "x.y", matmul)
    x = inputs(5, 64)
    with torch.no_grad():
        assert torch.equal(linear(x), matmul(x, linear.bias))
    matmul.unload()
    with pytest.raises(AssertionError, match="without its weight"), torch.no_grad():
        linear(x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_factors_multiply_an_input_in_its_own_dtype(dtype):
    linear, x = torch.nn.Linear(64, 8, dtype=dtype), inputs(5, 64).to(dtype)
    plain, factor = torch.nn.functional.linear, InputFactor()
    drawn = torch.rand(64, generator=torch.Generator().manual_seed(3)) + 0.5
    multiply_input(linear, "m", factor)
    factor.load(drawn)
    with torch.no_grad():
        expected = plain((x * drawn.to(dtype)), linear.weight, linear.bias)
        assert linear(x).dtype == dtype and torch.equal(linear(x), expected)
    factor.unload()
    with pytest.raises(AssertionError, match="without its input's factors"):
        linear(x)
