"""The CUDA quantizer against its plain-torch twin: on a GPU, or under Triton's interpreter."""

import pytest
import torch

from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.decoding.codes import Quantized
from scoremode.schemes.fields import TensorFormat

triton = pytest.importorskip("triton", reason="needs Triton")
from scoremode.schemes.activations import kernels  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INTERPRETED = DEVICE.type == "cpu"
FLOAT8, INT8 = torch.float8_e4m3fn, torch.int8
STORED = {
    "input_scale": torch.tensor([0.0173]),
    "input_zero_point": torch.tensor([-9], dtype=torch.int8),
    "input_global_scale": torch.tensor([55.0]),
}


def dynamic(bits: int, kind: str, strategy: str = "token", group: int | None = None, **more):
    return Inputs(TensorFormat(bits, kind, strategy, group, dynamic=True, **more), ())


def static(bits: int, kind: str, symmetric: bool = True) -> Inputs:
    tensors = ("input_scale",) if symmetric else ("input_scale", "input_zero_point")
    return Inputs(TensorFormat(bits, kind, "tensor", symmetric=symmetric), tensors)


FORMS = {
    "float8 token": (dynamic(8, "float"), FLOAT8),
    "float8 token as float32": (dynamic(8, "float"), torch.float32),
    "float8 group 128": (dynamic(8, "float", "group", 128), FLOAT8),
    "float8 group 128 ue8m0": (dynamic(8, "float", "group", 128, powers_of_two=True), FLOAT8),
    "float8 token ue8m0": (dynamic(8, "float", powers_of_two=True), torch.float32),
    "float8 tensor": (dynamic(8, "float", "tensor"), FLOAT8),
    "float8 static": (static(8, "float"), FLOAT8),
    "int8 token": (dynamic(8, "int"), INT8),
    "int4 token": (dynamic(4, "int"), INT8),
    "int8 token as float32": (dynamic(8, "int"), torch.float32),
    "int8 group 32": (dynamic(8, "int", "group", 32), torch.float32),
    "int8 group 48": (dynamic(8, "int", "group", 48), torch.float32),
    "int8 tensor": (dynamic(8, "int", "tensor"), INT8),
    "int8 static": (static(8, "int"), INT8),
    "int8 token asymmetric": (dynamic(8, "int", symmetric=False), torch.float32),
    "int4 group 16 asymmetric": (dynamic(4, "int", "group", 16, symmetric=False), torch.float32),
    "int8 static asymmetric": (static(8, "int", symmetric=False), torch.float32),
    "int8 token of torchao": (dynamic(8, "int", inverse=True, rounded=True), INT8),
    "int8 tensor of torchao": (dynamic(8, "int", "tensor", inverse=True, rounded=True), INT8),
    "float8 token of torchao": (dynamic(8, "float", rounded=True), FLOAT8),
    "int8 token of Quark": (dynamic(8, "int", inverse=True), torch.float32),
    "int8 static of Quark": (
        Inputs(TensorFormat(8, "int", "tensor", inverse=True), ("input_scale",)), INT8,
    ),
    "mxfp4": (dynamic(4, "float", "group", 32), torch.float32),
    "mxfp6": (dynamic(6, "float", "group", 32, scale_dtype="uint8"), torch.float32),
    "mxfp8": (dynamic(8, "float", "group", 32, scale_dtype="uint8"), torch.float32),
    "nvfp4": (
        Inputs(TensorFormat(4, "float", "tensor_group", 16, dynamic="local"), ("input_global_scale",)),
        torch.float32,
    ),
    "nvfp4 of ModelOpt": (
        Inputs(TensorFormat(4, "float", "tensor_group", 16, dynamic="local"), ("input_scale",)),
        torch.float32,
    ),
}  # fmt: skip


def random(power: int = 0) -> torch.Tensor:
    """[2, 5, 384] with outliers, zeros of both signs and rows of little."""
    x = torch.randn(2, 5, 384, generator=torch.Generator().manual_seed(power))
    x[..., 3] *= 30
    x[0, 0], x[0, 1], x[1, 2, :64] = 0, -0.0, 0
    x[1, 1] *= 1e-5
    return torch.ldexp(x.clamp(-8, 8).double(), torch.tensor(power)).float() if power else x


def both(name: str, x: torch.Tensor) -> tuple[Quantized, Quantized]:
    """The kernel's and the twin's."""
    inputs, dtype = FORMS[name]
    stored = {s: STORED[s] for s in inputs.tensors}
    twin = inputs.quantize(x, stored, dtype)
    rows = x.reshape(-1, x.shape[-1])
    known = inputs._known(rows, len(x), stored)
    given = known.scale if known.whole is None else known.whole
    codes = torch.empty(rows.shape, dtype=dtype, device=DEVICE)
    scale = None
    is_code = inputs.format.is_mx or known.whole is not None
    if not is_code and (known.scale is None or dtype == INT8):
        scale = torch.empty(twin.scale.shape, device=DEVICE)
    kernels.quantize_lines(
        rows.to(DEVICE), inputs.format,
        None if given is None else given.to(DEVICE),
        None if known.zero_point is None else known.zero_point.to(DEVICE), codes, scale,
        multiplies=known.multiplies,
    )  # fmt: skip
    own = twin.scale if scale is None else scale.cpu()
    return Quantized(codes.cpu(), own), twin


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.float().view(torch.int32), b.float().view(torch.int32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FORMS)
def test_equals_the_twin(name, dtype):
    kernel, twin = both(name, random().to(dtype))
    assert same_bits(kernel.codes, twin.codes)
    assert same_bits(kernel.scale, twin.scale)


@pytest.mark.parametrize("power", [-130, -126, -82, -78, 78, 82, 120])
@pytest.mark.parametrize("name", FORMS)
def test_huge_and_tiny(name, power):
    """Where quotients are divided, since float32's range is near, and where they aren't any more."""
    kernel, twin = both(name, random(power))
    assert same_bits(kernel.codes, twin.codes)
    assert same_bits(kernel.scale, twin.scale)


@pytest.mark.parametrize(
    "name", ["float8 token", "int8 token", "int8 token asymmetric", "int8 static"]
)
def test_a_long_line_is_taken_in_pieces(name, monkeypatch):
    monkeypatch.setattr(kernels, "_TILE", 128)
    x = random()
    x[0, 3, 383], x[0, 4, 200] = 77, -99
    kernel, twin = both(name, x)
    assert same_bits(kernel.codes, twin.codes)
    assert same_bits(kernel.scale, twin.scale)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", FORMS)
def test_what_is_not_finite_stays_so(name, value):
    """A row that has it is no number in both; the others are the same."""
    if INTERPRETED and FORMS[name][1] == FLOAT8 and value != value:
        pytest.skip("Triton's interpreter has no NaN in float8")
    x = random()
    x[0, 2, 70], x[1, 4, 383] = value, value
    kernel, twin = both(name, x)
    group = FORMS[name][0].codes.group
    finite = twin.dense(group).isfinite().all(1)
    assert torch.equal(kernel.dense(group).isfinite().all(1), finite)
    assert same_bits(kernel.codes[finite], twin.codes[finite])


@pytest.mark.parametrize("name", [name for name in FORMS if "static" in name])
def test_static_scales_clamp_all_bfloat16(name):
    """Every bfloat16 that is a number, of which most are clamped, or nothing."""
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = x.nan_to_num(0.0).view(1, 64, 1024)
    kernel, twin = both(name, x)
    assert same_bits(kernel.codes, twin.codes)


@pytest.mark.parametrize("name", ["int8 static", "float8 static"])
def test_a_scale_of_zero_marks_what_it_marks_in_the_twin(name, monkeypatch):
    """A zero over it is no number, and there are only some; nothing past a line's end counts."""
    if INTERPRETED and FORMS[name][1] == FLOAT8:
        pytest.skip("Triton's interpreter has no NaN in float8")
    monkeypatch.setitem(STORED, "input_scale", torch.zeros(1))
    kernel, twin = both(name, random())
    assert torch.equal(kernel.scale.isnan(), twin.scale.isnan()) and not twin.scale.isnan().all()
    assert torch.equal(kernel.codes.float().isnan(), twin.codes.float().isnan())


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_ties_go_to_even(bits):
    """Halfway between two codes, under scales of one."""
    steps = torch.arange(0, 512) / {4: 128, 6: 128, 8: 64}[bits]
    x = torch.cat((steps, -steps)).view(1, 8, 128)
    x[:, :, ::16] = {4: 4.0, 6: 4.0, 8: 256.0}[bits]
    name = f"mxfp{bits}"
    kernel, twin = both(name, x)
    assert same_bits(kernel.codes, twin.codes)


@pytest.mark.parametrize("name", ["float8 group 128 ue8m0", "float8 token ue8m0"])
def test_powers_of_two_stay_as_they_are(name):
    """A scale that is one is not raised, its neighbours above are, down to float32's subnormals."""
    powers = torch.ldexp(torch.ones(128), torch.arange(-140, -12))
    exact = (powers.double() * 448).float()
    largest = torch.stack((exact, exact.nextafter(torch.tensor(torch.inf)), -exact * 0.9999))
    x = torch.zeros(1, 3 * 128, 128)
    x[0, :, 5] = largest.flatten()
    kernel, twin = both(name, x)
    assert same_bits(kernel.scale, twin.scale) and same_bits(kernel.codes, twin.codes)
    usual = powers >= 2.0**-126
    assert torch.equal(twin.scale[:128, 0][usual], powers[usual])
