"""Modules of `quant_method: fp8` checkpoints: read, or refused in one line that names them."""

import random

import pytest
import torch
from support.families.float8_blocks import E4M3, config, quantize, transformers_weight
from support.schemes import DTYPES, decode, random_weight, same, write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import CheckpointError, ScoremodeError, UnsupportedFormat
from scoremode.schemes.fused_experts import Stacked, input_tensors
from scoremode.schemes.packed import Packed
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


@pytest.mark.parametrize("scale", [torch.float32, torch.bfloat16, torch.float16])
def test_a_linear_with_scales_is_quantized_and_others_are_not(resolved, scale):
    tensors = stored(scale=scale) | {"m.bias": torch.zeros(40), "lm_head.weight": torch.zeros(5, 4)}
    schemes = resolved(tensors)
    assert list(schemes.quantized) == ["m"] and schemes.groups == {"m": "fp8"}
    scheme = schemes.quantized["m"]
    assert isinstance(scheme, Packed) and scheme.label.startswith("FP8") and scheme.shape == SHAPE
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
        (change(weight=torch.ones(2, 40, 80).to(E4M3)), "shape [2, 40, 80], not [n, n]"),
        (change(weight=torch.ones(0, 80).to(E4M3)), "shape [0, 80], not [n, n]"),
    ],
)
def test_tensors_that_do_not_fit(refusal, tensors, words):
    assert words in refusal(tensors)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (change(weight_scale=ONES), "m: float8 with weight_scale is not supported"),
        (
            change(input_scale=ONES.clone(), k_scale=ONES),
            "m: float8 with input_scale, k_scale is not",
        ),
        (change(activation_scale=torch.ones(())), "with activation_scale is not"),
        (change(scale=ONES), "m: float8 with scale is not"),
        (
            change(weight=torch.ones(40, 80).char()),
            "m: weight has dtype I8, and expert_dtype is not",
        ),
        (
            {"e.gate_proj": torch.ones(2, 4, 4).to(E4M3), "e.gate_proj_scale_inv": ONES},
            "e: float8 with gate_proj, gate_proj_scale_inv is not supported",
        ),
    ],
)
def test_what_is_not_decoded_is_named(refusal, tensors, words):
    assert words in refusal(tensors, error=UnsupportedFormat)


def test_a_module_that_the_list_names(refusal):
    words = "m: stored quantized, and modules_to_not_convert names it"
    assert refusal(stored(), modules_to_not_convert=["m"]) == words


@pytest.mark.parametrize("suffix", ["scale", "bias"])
def test_a_checkpoint_without_any_scale_is_not_dense(refusal, suffix):
    tensors = {"m.weight": torch.zeros(4, 4), f"m.{suffix}": torch.ones(4)}
    words = "quantization method 'fp8', and no tensor is a weight_scale_inv: not decoded"
    assert refusal(tensors, error=UnsupportedFormat) == words


EXPERTS = "model.layers.0.mlp.experts"


def fused(
    block: tuple[int, int] | None = BLOCK, scale: torch.dtype = torch.float32, rows: int = 48
) -> dict[str, torch.Tensor]:
    """Three experts' projections; without blocks as transformers' FP8Experts has them."""
    result = {}
    for part, shape in (("gate_up", (rows, 64)), ("down", (64, rows // 2))):
        size = block or (shape[0] // 2 if part == "gate_up" else shape[0], shape[1])
        weights = [random_weight(*shape, torch.bfloat16, seed) for seed in range(3)]
        each = [quantize(weight, size, scale) for weight in weights]
        for suffix, own in (("weight", ""), ("weight_scale_inv", "_scale_inv")):
            name = f"{EXPERTS}.{part}_proj{own}"
            # Some torch can't stack what it has no arithmetic for.
            bits = [e[suffix].view(torch.uint8) for e in each]
            result[name] = torch.stack(bits).view(each[0][suffix].dtype)
    return result


def of_all_experts(tensors: dict[str, torch.Tensor], part: str) -> dict[str, torch.Tensor]:
    own = f"{EXPERTS}.{part}_proj"
    names = {"weight": own, "weight_scale_inv": f"{own}_scale_inv"}
    return {suffix: tensors[name] for suffix, name in names.items()}


@pytest.mark.parametrize("rows", [48, 16])
@pytest.mark.parametrize("scale", [torch.float32, torch.float8_e8m0fnu], ids=str)
@pytest.mark.parametrize("block", [BLOCK, None], ids=str)
def test_experts_stored_as_one_equal_the_librarys_dequantizer(block, scale, rows, resolved):
    tensors = fused(block, scale, rows)
    of_two = {"scale_fmt": "ue8m0"} if scale != torch.float32 else {}
    schemes = resolved(tensors, weight_block_size=block, **of_two)
    assert set(schemes.quantized) == {f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.down_proj"}
    for part in ("gate_up", "down"):
        scheme = schemes.quantized[f"{EXPERTS}.{part}_proj"]
        assert isinstance(scheme, Stacked) and not scheme.untransposes
        by_suffix = {n.rpartition(".")[2]: t for n, t in tensors.items()}
        stored = of_all_experts(tensors, part)
        assert scheme.shape == tuple(stored["weight"].shape)
        same(decode(scheme, by_suffix, torch.float32), transformers_weight(stored, torch.float32))
        assert scheme.inputs and scheme.inputs.format.dynamic is True
        assert scheme.inputs.label.startswith("float8 group 32" if block else "float8 token")


def test_gate_and_up_of_less_than_a_block_have_a_scale_each(resolved):
    """FP8Experts makes room for both halves, however few rows they have."""
    tensors = fused(None, rows=48)
    wide = {"weight_block_size": [128, 128]}
    scheme = resolved(tensors, **wide).quantized[f"{EXPERTS}.gate_up_proj"]
    stored = of_all_experts(tensors, "gate_up")
    assert stored["weight_scale_inv"].shape == (3, 2, 1)
    by_suffix = {n.rpartition(".")[2]: t for n, t in tensors.items()}
    same(decode(scheme, by_suffix, torch.float32), transformers_weight(stored, torch.float32))


def drop(name: str):
    return lambda tensors: tensors.pop(f"{EXPERTS}.{name}")


def put(name: str, tensor: torch.Tensor):
    return lambda tensors: tensors.update({f"{EXPERTS}.{name}": tensor})


@pytest.mark.parametrize(
    ("edit", "error", "words"),
    [
        (drop("down_proj_scale_inv"), CheckpointError, "its tensor down_proj_scale_inv is missing"),
        (drop("down_proj"), CheckpointError, "its tensor down_proj is missing"),
        (put("down_proj", torch.ones(3, 64, 24)), CheckpointError, "dtype F32, expected F8_E4M3"),
        (
            put("down_proj_scale_inv", torch.ones(3, 2)),
            CheckpointError,
            "down_proj_scale_inv has shape [3, 2], expected [3, 4, 1]",
        ),
        (put("down_proj", torch.ones(64, 24).to(E4M3)), CheckpointError, "not [n, n, n]"),
        (
            put("down_proj_activation_scale", torch.ones(3)),
            UnsupportedFormat,
            "down_proj: float8 with down_proj_activation_scale is not supported",
        ),
        (
            put("down_proj", torch.ones(3, 64, 12).char()),
            UnsupportedFormat,
            "down_proj: weight has dtype I8, and expert_dtype is not fp4: not decoded",
        ),
    ],
)
def test_fused_experts_that_do_not_fit(edit, error, words, refusal):
    tensors = fused()
    edit(tensors)
    assert words in refusal(tensors, error=error)


def test_fused_experts_that_the_list_names(refusal):
    words = refusal(fused(), modules_to_not_convert=["mlp.experts"])
    assert words.endswith("_proj: stored quantized, and modules_to_not_convert names it")


def test_static_scales_of_experts(resolved):
    tensors = fused()
    for part in ("gate_up", "down"):
        tensors[f"{EXPERTS}.{part}_proj_activation_scale"] = torch.rand(3) + 0.5
    scheme = resolved(tensors, activation_scheme="static").quantized[f"{EXPERTS}.down_proj"]
    assert input_tensors(scheme) == {"activation_scale": "down_proj_activation_scale"}
    assert scheme.label == "FP8 block 16x32 static"


def one_scale(shape: tuple[int, ...], name: str = "weight_scale_inv") -> dict[str, torch.Tensor]:
    """A tensor's, or each row's own where there is room for it."""
    weight = random_weight(*SHAPE, torch.float32)
    rows = shape[:1] == (40,)
    scale = weight.abs().amax(1) / 448 if rows else weight.abs().amax() / 448
    codes = (weight / scale.view(-1, 1)).to(E4M3)
    return {"m.weight": codes, f"m.{name}": scale.reshape(shape)}


@pytest.mark.parametrize("name", ["weight_scale_inv", "weight_scale"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (40,), (40, 1)], ids=str)
def test_one_scale_a_tensor_or_a_row(shape, name, resolved):
    tensors = one_scale(shape, name)
    scheme = resolved(tensors, weight_block_size=None).quantized["m"]
    assert scheme.label == ("FP8 channel" if 40 in shape else "FP8 tensor")
    assert scheme.inputs and scheme.inputs.label == "float8 token"
    stored = {n.removeprefix("m."): t for n, t in tensors.items()}
    scale = stored[name].reshape(-1, 1)
    same(decode(scheme, stored, torch.float32), stored["weight"].float() * scale)
    if shape == ():
        of_library = {"weight": stored["weight"], "weight_scale_inv": stored[name]}
        theirs = transformers_weight(of_library, torch.float32)
        same(decode(scheme, stored, torch.float32), theirs)


@pytest.mark.parametrize("scale", ["input_scale", "activation_scale"])
def test_static_inputs(scale, resolved, refusal):
    tensors = one_scale(()) | {f"m.{scale}": torch.tensor(0.25)}
    fields = {"activation_scheme": "static", "weight_block_size": None}
    scheme = resolved(tensors, **fields).quantized["m"]
    assert scheme.inputs and scheme.inputs.tensors == (scale,)
    assert scheme.label == "FP8 tensor static" and scheme.inputs.label == "float8 tensor static"
    x = random_weight(5, 80, torch.float32)
    q = scheme.inputs.quantize(x, {scale: torch.tensor(0.25)}, E4M3)
    assert q.scale.tolist() == [[0.25]]
    same(q.codes, (x / 0.25).clamp(-448, 448).to(E4M3))
    # Weights alone don't need it.
    assert resolved(one_scale(()), **fields).quantized["m"].inputs.tensors == ("input_scale",)
    wrong = tensors | {f"m.{scale}": torch.ones(2)}
    assert f"{scale} has shape [2], expected []" in refusal(wrong, **fields)
    assert f"with {scale} is not supported" in refusal(
        tensors, error=UnsupportedFormat, weight_block_size=None
    )


def test_autofp8_says_no_block(tmp_path, refusal):
    """And means one scale a tensor, where transformers' default is a block of 128."""
    written = config(BLOCK, activation_scheme="static", ignored_layers=["lm_head"])
    del written["weight_block_size"], written["fmt"]
    tensors = one_scale((), "weight_scale") | {"m.input_scale": torch.tensor(0.5)}
    path = write_checkpoint(tmp_path / "auto", tensors, written)
    assert resolve(open_checkpoint(path)).quantized["m"].label == "FP8 tensor static"
    words = "m: weight_scale is no block's, and weight_block_size is given"
    assert refusal(one_scale((), "weight_scale")) == words


FP4 = {"expert_dtype": "fp4", "scale_fmt": "ue8m0"}


def pairs(scale: str = "scale", columns: int = 96) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 256, (10, columns // 2), generator=draw)
    scales = torch.randint(100, 130, (10, -(-columns // 32)), generator=draw)
    weight = codes.to(torch.uint8).view(torch.int8)
    return {"m.weight": weight, f"m.{scale}": scales.to(torch.uint8).view(torch.float8_e8m0fnu)}


@pytest.mark.parametrize("scale", ["scale", "weight_scale_inv"])
def test_experts_in_fp4_equal_the_librarys_dequantizer(scale, resolved):
    tensors = pairs(scale)
    scheme = resolved(tensors, **FP4).quantized["m"]
    assert scheme.shape == (10, 96) and scheme.label == "FP4 g32 ue8m0"
    assert scheme.inputs and scheme.inputs.label == "float8 group 32 ue8m0"
    stored = {n.removeprefix("m."): t for n, t in tensors.items()}
    theirs = {"weight": stored["weight"], "weight_scale_inv": stored[scale]}
    for dtype in DTYPES:
        same(decode(scheme, stored, dtype), transformers_weight(theirs, dtype))


@pytest.mark.parametrize(
    ("edit", "error", "fields", "words"),
    [
        ({}, UnsupportedFormat, {"scale_fmt": "ue8m0"}, "dtype I8, and expert_dtype is not fp4"),
        ({"m.scale": torch.ones(10, 3)}, CheckpointError, FP4, "dtype F32, expected U8 or F8_E8M0"),
        ({"m.scale": torch.ones(10, 2).byte()}, CheckpointError, FP4, "[10, 2], expected [10, 3]"),
    ],
)
def test_fp4_that_does_not_fit(edit, error, fields, words, refusal):
    assert words in refusal(pairs() | edit, error=error, **fields)


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
                assert tensors[f"{module}.weight"].dtype == E4M3
                assert scheme.shape == tuple(tensors[f"{module}.weight"].shape)
        assert all("\n" not in str(error) for error in refusals.values())
    assert 30 < read < 200
