"""Modules of `quant_method: fp8` checkpoints: read, or refused in one line that names them."""

import random

import pytest
import torch
from float8_blocks import E4M3, config, quantize
from schemes_helpers import random_weight, write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import CheckpointError, ScoremodeError, UnsupportedFormat
from scoremode.schemes.fp8.blocks import BlockFloat8
from scoremode.schemes.resolve import Schemes, resolve
from scoremode.schemes.summary import summarize

BLOCK = (16, 32)
SHAPE = (40, 80)


def stored(module: str = "m", scale: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    tensors = quantize(random_weight(*SHAPE, torch.bfloat16), BLOCK, scale)
    return {f"{module}.{suffix}": tensor for suffix, tensor in tensors.items()}


@pytest.fixture
def resolved(tmp_path):
    def read(tensors, **fields) -> Schemes:
        path = write_checkpoint(tmp_path, tensors, config(BLOCK, **fields))
        return resolve(open_checkpoint(path))

    return read


@pytest.fixture
def refusal(resolved):
    def refuse(tensors, error=CheckpointError, **fields) -> str:
        with pytest.raises(ScoremodeError) as caught:
            resolved(tensors, **fields)
        assert caught.type is error, caught.value
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refuse


@pytest.mark.parametrize("scale", [torch.float32, torch.bfloat16, torch.float16])
def test_a_linear_with_scales_is_quantized_and_others_are_not(resolved, scale):
    tensors = stored(scale=scale) | {"m.bias": torch.zeros(40), "lm_head.weight": torch.zeros(5, 4)}
    schemes = resolved(tensors)
    assert list(schemes.quantized) == ["m"] and schemes.groups == {"m": "fp8"}
    scheme = schemes.quantized["m"]
    assert isinstance(scheme, BlockFloat8) and scheme.shape == SHAPE
    assert scheme.inputs and scheme.inputs.label == "float8 group 32"
    assert schemes.config and schemes.config.kv_cache is None and not schemes.claims("lm_head")


@pytest.mark.parametrize("scale", [torch.uint8, torch.float8_e8m0fnu, torch.float32])
def test_powers_of_two(resolved, refusal, scale):
    scheme = resolved(stored(scale=scale), scale_fmt="ue8m0").quantized["m"]
    assert scheme.label == "FP8 block 16x32 ue8m0"
    if scale != torch.float32:
        words = refusal(stored(scale=scale))
        assert words.startswith("m: its scales are powers of two (") and "scale_fmt" in words


def test_modules_of_one_shape_share_a_scheme(resolved):
    schemes = resolved(stored("a") | stored("b"), modules_to_not_convert=["lm_head"])
    assert schemes.quantized["a"] is schemes.quantized["b"]


def test_bits_per_weight(tmp_path):
    path = write_checkpoint(tmp_path, stored(), config(BLOCK))
    summary = summarize(open_checkpoint(path))
    # A float32 scale for each of 3 x 3 blocks, the last of each short.
    assert summary.body_bits == 8 + 32 * 9 / 3200
    assert summary.parameters == summary.quantized == 3200 and not summary.refusals
    assert summary.formats["FP8 block 16x32"].groups == {"fp8": 1}


def change(**tensors) -> dict[str, torch.Tensor]:
    merged = stored() | {f"m.{suffix}": tensor for suffix, tensor in tensors.items()}
    return {name: tensor for name, tensor in merged.items() if tensor is not None}


ONES = torch.ones(3, 3)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (
            stored("n") | {"m.weight": ONES.to(E4M3)},
            "m: quantized, and its tensor weight_scale_inv is missing",
        ),
        (change(weight=None), "m: quantized, and its tensor weight is missing"),
        (change(weight_scale_inv=torch.ones(3, 2)), "shape [3, 2], expected [3, 3]"),
        (change(weight_scale_inv=torch.ones(9)), "shape [9], expected [3, 3]"),
        (change(weight_scale_inv=torch.ones(())), "shape [], expected [3, 3]"),
        (change(weight_scale_inv=ONES.double()), "dtype F64, expected BF16 or F16 or F32"),
        (change(weight_scale_inv=ONES.int()), "dtype I32, expected"),
        (change(weight_scale_inv=ONES.to(E4M3)), "dtype F8_E4M3, expected"),
        (change(weight=torch.ones(40, 80)), "dtype F32, expected F8_E4M3"),
        (change(weight=torch.ones(40, 80).to(torch.float8_e5m2)), "F8_E5M2, expected F8_E4M3"),
        (change(weight=torch.ones(2, 40, 80).to(E4M3)), "shape [2, 40, 80], not a matrix's"),
        (change(weight=torch.ones(0, 80).to(E4M3)), "shape [0, 80], not a matrix's"),
    ],
)
def test_tensors_that_do_not_fit(refusal, tensors, words):
    assert words in refusal(tensors)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (change(weight_scale=ONES), "m: blocks of float8 with weight_scale are not supported"),
        (
            change(input_scale=ONES.clone(), k_scale=ONES),
            "with input_scale, k_scale are not supported",
        ),
        (change(activation_scale=torch.ones(())), "with activation_scale are"),
        (change(scale=ONES), "m: blocks of float8 with scale are not"),
        (change(weight=torch.ones(40, 80).char()), "m: weight has dtype I8, experts in FP4"),
        (
            {"e.gate_up_proj": torch.ones(2, 4, 4).to(E4M3), "e.gate_up_proj_scale_inv": ONES},
            "e: experts stored fused in float8 (gate_up_proj_scale_inv): not decoded",
        ),
    ],
)
def test_what_is_not_decoded_is_named(refusal, tensors, words):
    assert words in refusal(tensors, UnsupportedFormat)


def test_a_module_that_the_list_names(refusal):
    words = "m: stored quantized, and modules_to_not_convert names it"
    assert refusal(stored(), modules_to_not_convert=["m"]) == words


@pytest.mark.parametrize("suffix", ["weight_scale", "scale", "bias"])
def test_a_checkpoint_without_any_scale_is_not_dense(refusal, suffix):
    tensors = {"m.weight": torch.zeros(4, 4), f"m.{suffix}": torch.ones(4)}
    words = "quantization method 'fp8', and no tensor is a weight_scale_inv: not decoded"
    assert refusal(tensors, UnsupportedFormat) == words


def test_whatever_lies_there_is_read_or_refused_in_a_line(tmp_path):
    """Dtypes, shapes, names and fields drawn at random: no other exception, and never a wrong shape."""
    draw = random.Random(0)
    dtypes = [E4M3, torch.uint8, torch.int8, torch.float32, torch.bfloat16, torch.float8_e8m0fnu]
    shapes = [(), (1,), (0, 3), (3, 3), (40, 80), (3, 0), (2, 3, 3), (40,), (1, 1)]
    fields = {
        "scale_fmt": ["ue8m0", "float", None, 3],
        "weight_block_size": [[16, 32], [1, 1], [1 << 30, 7], None, [0, 0], "x"],
        "modules_to_not_convert": [["m"], ["("], [".*"], None, 7, [""]],
    }
    suffixes = ["weight", "weight_scale_inv", "weight_scale", "bias", "up_proj_scale_inv", "scale"]
    read = 0
    for case in range(400):
        tensors = stored(scale=draw.choice([torch.float32, torch.uint8]))
        for _ in range(draw.choice([0, 0, 1, 2])):
            name = f"m.{draw.choice(suffixes)}"
            tensors[name] = torch.zeros(draw.choice(shapes)).to(draw.choice(dtypes))
            if draw.random() < 0.2:
                del tensors[draw.choice(sorted(tensors))]
        changed = {k: draw.choice(v) for k, v in fields.items() if draw.random() < 0.3}
        path = write_checkpoint(tmp_path / str(case), tensors, config(BLOCK) | changed)
        refusals: dict[str, ScoremodeError] = {}
        try:
            schemes = resolve(open_checkpoint(path), refusals)
        except ScoremodeError as error:
            refusals = {"": error}
        else:
            for module, scheme in schemes.quantized.items():
                read += 1
                assert set(scheme.tensors) <= {n.removeprefix(f"{module}.") for n in tensors}
                assert scheme.shape == tuple(tensors[f"{module}.weight"].shape)
        assert all("\n" not in str(error) for error in refusals.values())
    assert 30 < read < 200
