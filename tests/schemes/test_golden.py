"""Weights of other libraries against what these dequantize them to, to the bit."""

import pytest
import torch
from support.families import bitsandbytes, hqq
from support.golden_libraries import golden
from support.kernel_twins import check_decoder, require_triton
from support.schemes import DTYPES, decode, factor, same, write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.schemes import mlx, quark
from scoremode.schemes.base import Scheme
from scoremode.schemes.bitsandbytes import FourBit, LlmInt8
from scoremode.schemes.decoding import unpack
from scoremode.schemes.decoding.codes import Scaling
from scoremode.schemes.fields import Fields, TensorFormat
from scoremode.schemes.hqq import PACKINGS
from scoremode.schemes.resolve import resolve
from scoremode.schemes.torchao import ao_weight

LIBRARIES = ("bitsandbytes", "hqq", "mlx", "quark", "torchao")
CASES = [(library, name) for library in LIBRARIES for name in golden(library)]


@pytest.fixture
def build(tmp_path):
    """The Scheme of a case: of its tensors and config, or by its name."""

    def read(library: str, name: str) -> Scheme:
        case = golden(library)[name]
        shape = tuple(case["dense"].shape)
        if library in ("bitsandbytes", "hqq"):
            tensors = {f"m.{suffix}": t for suffix, t in case.items() if suffix != "dense"}
            config = hqq.config() | {"quant_config": {}}
            if library == "bitsandbytes":
                config = bitsandbytes.config("int8" if "int8" in name else "nf4")
            path = write_checkpoint(tmp_path, tensors, config)
            return resolve(open_checkpoint(path)).quantized["m"]
        if library == "mlx":
            if "biases" not in case:
                return mlx.floats(shape, mlx._mode(Fields({"mode": name})))
            bits, size, _ = name.split("-")
            return mlx.Affine(shape, int(bits), int(size))
        if library == "torchao":
            scaling = Scaling(shape, *(("group", 32) if "group" in name else ("channel",)))
            bits = None if name.startswith("float8") else int(name[3])
            return ao_weight(scaling, bits, case["dense"].dtype)
        kind, by = f"{name}-".split("-")[:2]
        if kind == "mxfp4":
            return quark.weight(Scaling(shape, "group", 32), TensorFormat(4, "float", "group", 32))
        if kind in ("int4", "uint4"):
            symmetric = kind == "int4" and by != "asym"
            form = TensorFormat(4, kind.removesuffix("4"), "group", 32, symmetric)
            shuffled = "-reorder-" in name
            return quark.weight(Scaling(shape, "group", 32), form, shuffled=shuffled)
        form = TensorFormat(8, "int" if kind == "int8" else "float", by)
        return quark.weight(Scaling(shape, by), form)

    return read


@pytest.mark.parametrize(("library", "name"), CASES)
def test_equals_the_golden_file(library, name, build, monkeypatch):
    case, scheme = golden(library)[name], build(library, name)
    own = case["dense"].dtype
    # Quark's are rounded in float32 and then once more; LLM.int8 has nothing in between.
    dtypes = {"quark": DTYPES}.get(library, (own, torch.float32))
    if isinstance(scheme, LlmInt8):
        dtypes = (own,)
    for dtype in dtypes:
        same(decode(scheme, case, dtype), case["dense"])
    assert scheme.shape == tuple(case["dense"].shape)
    # A few rows or blocks at a time.
    monkeypatch.setitem(unpack.BLOCK_ELEMENTS, "cpu", 200)
    same(decode(scheme, case, dtypes[-1]), case["dense"])


@pytest.mark.parametrize(("library", "name"), CASES)
# What overflows on a GPU without a word, numpy warns of.
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_the_cuda_decoder_gives_the_same_bits(library, name, build, monkeypatch):
    require_triton(monkeypatch)
    case, scheme = golden(library)[name], build(library, name)
    check_decoder(scheme, {n: case[n] for n in scheme.tensors}, case["dense"].dtype)


@pytest.mark.parametrize("name", golden("torchao"))
def test_codes_times_scales_are_the_weight(name, build):
    """Also where a product takes the codes as they are stored, on a GPU that multiplies them itself."""
    # A file's tensors can begin anywhere; a GPU's are aligned.
    case = {suffix: tensor.clone() for suffix, tensor in golden("torchao")[name].items()}
    scheme, stored, dense = build("torchao", name), case["_weight_qdata"], case["dense"]
    codes, scales = factor(scheme, case, torch.float32)
    same((codes.double() * scales).float().to(dense.dtype), dense)
    codes, _ = factor(scheme, case, stored.dtype)
    same(codes.float(), stored.float())
    found = scheme.stored_factors(case, stored.dtype)
    assert found is not None and found.codes is stored
    same(found.dense(scheme.codes.group).to(dense.dtype), dense)
    assert scheme.stored_factors(case, torch.float32) is None


def test_one_scale_for_all():
    stored = {"_weight_qdata": torch.arange(-64, 64).char().view(2, 64)}
    stored["_weight_scale"] = torch.tensor([[0.37]])
    scheme = ao_weight(Scaling((2, 64), "tensor"), 8, torch.bfloat16)
    expected = (stored["_weight_qdata"].float() * stored["_weight_scale"]).bfloat16()
    same(decode(scheme, stored, torch.bfloat16), expected)
    assert scheme.label == "W8A16 tensor"


def test_a_scale_in_bfloat16_does_not_round_the_product():
    case = golden("quark")["fp8-channel-bf16"]
    assert case["weight_scale"].dtype == torch.bfloat16
    dense = case["dense"]
    assert dense.dtype == torch.float32 and (dense != dense.bfloat16().float()).any()


def test_every_packing_of_hqq_has_a_case():
    cases = golden("hqq")
    packings = {bytes(case["packing"].tolist()).decode() for case in cases.values()}
    assert packings == set(PACKINGS)
    assert any(case["W_q"].is_floating_point() for case in cases.values())
    # A last word that holds less than ten codes.
    assert any("3-axis" in name and len(c["W_q"]) * 10 > 32 for name, c in cases.items())


def test_mlx_rounds_product_and_sum_apart():
    """Else these would be others, in every dtype."""
    cases = {name: case for name, case in golden("mlx").items() if "biases" in case}
    for of in ("bf16", "f32", "f16"):
        case = next(c for n, c in cases.items() if n.split("-")[2] == of)
        dtype = case["dense"].dtype
        exact = case["scales"].double().unsqueeze(2) * 3 + case["biases"].double().unsqueeze(2)
        apart = case["scales"].unsqueeze(2) * 3 + case["biases"].unsqueeze(2)
        assert (exact.to(dtype) != apart).any()


def test_labels(build):
    labels = {build(library, name).label for library, name in CASES}
    assert labels >= {"HQQ 4 bits g32", "HQQ 1.58 bits g32 axis 0", "MLX 4-bit g64", "MLX NVFP4"}
    assert labels >= {"NF4 g64", "LLM.int8", "W8A16 channel", "FP8 W8A16 channel", "MXFP4A16"}
    assert isinstance(build("bitsandbytes", "int8-f32"), LlmInt8)
    assert isinstance(build("bitsandbytes", "nf4-bf16-6x128"), FourBit)
