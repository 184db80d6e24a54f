import pytest
import torch
from support.schemes import arguments, compress, group, quantization, write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.resolve import dense_of, resolve

ROWS, COLUMNS = 9, 64


def packed(
    module: str = "m",
    bits: int = 4,
    strategy: str = "group",
    size: int | None = 32,
    symmetric: bool = True,
    order: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, torch.Tensor]:
    weight = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)).to(dtype)
    tensors = compress(weight, arguments(bits, strategy, size, symmetric))
    if order is not None:
        tensors["weight_g_idx"] = order
    return {f"{module}.{name}": tensor for name, tensor in tensors.items()}


def in_groups(size: int = 32) -> torch.Tensor:
    order = torch.arange(COLUMNS, dtype=torch.int32) // size
    return order[torch.randperm(COLUMNS, generator=torch.Generator().manual_seed(1))]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("strategy", "size"), [("group", 32), ("group", 16), ("channel", None), ("tensor", None)]
)
def test_what_the_library_writes_resolves(resolved, strategy, size, bits, symmetric, dtype):
    weights = group(num_bits=bits, strategy=strategy, group_size=size, symmetric=symmetric)
    tensors = packed("m", bits, strategy, size, symmetric, dtype=dtype)
    tensors["m.bias"] = torch.zeros(ROWS)
    tensors["n.weight"] = torch.zeros(2, 2)
    schemes = resolved(tensors, quantization({"g": weights}))
    assert list(schemes.quantized) == ["m"]
    scheme = schemes.quantized["m"]
    assert scheme.shape == (ROWS, COLUMNS)
    assert scheme.elements.bits == bits
    assert (scheme.scaling.strategy, scheme.scaling.size) == (strategy, size)
    assert (scheme.zero_point is None) is symmetric
    assert all(f"m.{suffix}" in tensors for suffix in scheme.tensors)


def test_dense_checkpoint_has_no_schemes(resolved):
    schemes = resolved({"m.weight": torch.zeros(2, 2), "norm.weight": torch.zeros(2)}, None)
    assert (schemes.quantized, schemes.config) == ({}, None)
    assert not schemes.claims("m")


def test_each_module_keeps_the_bits_of_its_group(resolved):
    config = quantization(
        {
            "four": group("re:.*mlp.*"),
            "eight": group("re:.*attn.*", num_bits=8, strategy="channel", group_size=None),
        }
    )
    tensors = packed("a.mlp", 4) | packed("a.attn", 8, "channel", None)
    labels = {name: s.label for name, s in resolved(tensors, config).quantized.items()}
    assert labels == {"a.mlp": "W4A16 g32", "a.attn": "W8A16 channel"}


def test_mixed_precision_goes_by_the_format_of_each_group(resolved, refusal):
    config = quantization({"g": group() | {"format": "pack-quantized"}}, "mixed-precision")
    assert resolved(packed(), config).quantized["m"].label == "W4A16 g32"
    config = quantization({"g": group() | {"format": "int-quantized"}}, "mixed-precision")
    assert refusal(packed(), config) == "m: quantized, and its tensor weight is missing"
    message = refusal(packed(), quantization({"g": group()}, "mixed-precision"))
    assert message == "m: quantized with mixed precision, and group g names no format"


def test_config_may_be_nested_in_text_config(resolved):
    config = quantization({"g": group()})
    schemes = resolved(packed(), None, text_config={"quantization_config": config})
    assert schemes.quantized["m"].label == "W4A16 g32"


def test_claims_follow_the_config(resolved):
    schemes = resolved(packed(), quantization({"g": group()}, ignore=["lm_head", "re:.*gate$"]))
    assert schemes.claims("m")
    assert schemes.claims("n")
    assert not schemes.claims("lm_head")
    assert not schemes.claims("a.gate")


def test_stored_quantized_and_not_claimed(refusal):
    for config in (
        quantization({"g": group("re:other")}),
        quantization({"g": group()}, ignore=["m"]),
    ):
        message = refusal(packed(), config)
        assert message == "m is stored quantized, and no quantization group claims it"


def test_stored_quantized_and_no_config(refusal):
    message = refusal(packed(), None)
    assert "m is stored quantized (weight_packed, weight_scale, weight_shape)" in message


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_a_weight_that_is_no_float_is_quantized(refusal, dtype):
    tensors = {"m.weight": torch.zeros(2, 2, dtype=dtype)}
    assert "m is stored quantized (weight)" in refusal(tensors, None)


def test_claimed_by_a_group_that_quantizes_no_weights(refusal):
    message = refusal(packed(), quantization({"acts": {"targets": ["Linear"], "weights": None}}))
    assert message == "m is stored quantized, and group acts quantizes no weights"


def test_two_groups_that_differ_are_refused(refusal):
    config = quantization({"four": group(), "eight": group(num_bits=8)})
    assert "four and eight both claim m and differ" in refusal(packed(), config)


ASYMMETRIC = {"symmetric": False}
ORDERED = {"order": in_groups()}
TENSOR = {"strategy": "tensor", "size": None}


@pytest.mark.parametrize(
    ("settings", "suffix"),
    [
        ({}, "weight_packed"),
        ({}, "weight_scale"),
        ({}, "weight_shape"),
        (ASYMMETRIC, "weight_zero_point"),
        (ORDERED, "weight_g_idx"),
    ],
)
def test_missing_tensor(refusal, settings, suffix):
    config = quantization(
        {
            "g": group(
                symmetric=settings.get("symmetric", True),
                actorder="group" if "order" in settings else None,
            )
        }
    )
    tensors = packed(**settings)
    del tensors[f"m.{suffix}"]
    assert refusal(tensors, config) == f"m: quantized, and its tensor {suffix} is missing"


@pytest.mark.parametrize(
    ("settings", "suffix", "dtype"),
    [
        ({}, "weight_packed", torch.int64),
        ({}, "weight_scale", torch.float64),
        ({}, "weight_scale", torch.uint8),
        ({}, "weight_scale", torch.float8_e4m3fn),
        ({}, "weight_shape", torch.float32),
        (ASYMMETRIC, "weight_zero_point", torch.int8),
        (ASYMMETRIC | TENSOR, "weight_zero_point", torch.bfloat16),
        (ORDERED, "weight_g_idx", torch.int16),
    ],
)
def test_wrong_dtype(refusal, settings, suffix, dtype):
    tensors = packed(**settings)
    tensors[f"m.{suffix}"] = tensors[f"m.{suffix}"].to(dtype)
    message = refusal(tensors, config_of(settings))
    assert f"tensor m.{suffix} has dtype" in message
    assert "expected" in message


def config_of(settings: dict) -> dict:
    """The config that goes with the settings of `packed`."""
    strategy = settings.get("strategy", "group")
    weights = group(
        strategy=strategy,
        group_size=32 if strategy == "group" else None,
        symmetric=settings.get("symmetric", True),
        actorder="group" if "order" in settings else None,
    )
    return quantization({"g": weights})


@pytest.mark.parametrize(
    ("settings", "suffix", "shape"),
    [
        ({}, "weight_packed", (ROWS, COLUMNS // 8 + 1)),
        ({}, "weight_packed", (ROWS, COLUMNS // 8 - 1)),
        ({}, "weight_packed", (ROWS - 1, COLUMNS // 8)),
        ({}, "weight_packed", (COLUMNS // 8, ROWS)),
        ({}, "weight_packed", (ROWS * COLUMNS // 8,)),
        ({}, "weight_scale", (ROWS, 1)),
        ({}, "weight_scale", (2, ROWS)),
        ({}, "weight_scale", (ROWS,)),
        ({}, "weight_scale", (1,)),
        (TENSOR, "weight_scale", (ROWS, 1)),
        (TENSOR, "weight_scale", (ROWS,)),
        ({"strategy": "channel", "size": None}, "weight_scale", (1, ROWS)),
        ({"strategy": "channel", "size": None}, "weight_scale", (1,)),
        (ASYMMETRIC, "weight_zero_point", (ROWS, 2)),
        (ASYMMETRIC, "weight_zero_point", (1, 2)),
        (ASYMMETRIC | TENSOR, "weight_zero_point", (2,)),
        (ORDERED, "weight_g_idx", (COLUMNS - 1,)),
        (ORDERED, "weight_g_idx", (1, COLUMNS)),
        ({}, "weight_shape", (3,)),
        ({}, "weight_shape", ()),
    ],
)
def test_wrong_shape(refusal, settings, suffix, shape):
    tensors = packed(**settings)
    tensors[f"m.{suffix}"] = torch.ones(shape, dtype=tensors[f"m.{suffix}"].dtype)
    message = refusal(tensors, config_of(settings))
    assert f"tensor m.{suffix} has shape {list(shape)}, expected [" in message


@pytest.mark.parametrize("shape", [(ROWS, COLUMNS + 8), (ROWS + 1, COLUMNS), (COLUMNS, ROWS)])
def test_weight_shape_that_the_packed_weight_contradicts(refusal, shape):
    tensors = packed() | {"m.weight_shape": torch.tensor(shape)}
    assert "tensor m.weight_packed has shape" in refusal(tensors, config_of({}))


@pytest.mark.parametrize("shape", [(0, COLUMNS), (ROWS, -1)])
def test_weight_shape_without_elements(refusal, shape):
    tensors = packed() | {"m.weight_shape": torch.tensor(shape)}
    assert f"m.weight_shape is {shape[0]} x {shape[1]}" in refusal(tensors, config_of({}))


@pytest.mark.parametrize("shape", [(1,), (1, 1), ()])
def test_scale_of_a_tensor_may_have_any_rank(resolved, shape):
    tensors = packed(**ASYMMETRIC | TENSOR)
    for suffix in ("weight_scale", "weight_zero_point"):
        tensors[f"m.{suffix}"] = tensors[f"m.{suffix}"].reshape(shape)
    assert resolved(tensors, config_of(ASYMMETRIC | TENSOR)).quantized[
        "m"
    ].scaling.stored_shape == (1, 1)


def test_zero_points_of_symmetric_weights(refusal):
    message = refusal(packed(**ASYMMETRIC), config_of({}))
    assert message == "m: has zero points, and the config says symmetric"


def test_group_without_a_size(refusal):
    message = refusal(packed(), quantization({"g": group(group_size=None)}))
    assert message == "m: quantized by group, and its group size is not given"


def test_another_tensor_that_could_change_the_weight(refusal):
    tensors = packed() | {"m.weight_global_scale": torch.ones(1)}
    message = refusal(tensors, config_of({}), error=UnsupportedFormat)
    assert message == "m: pack-quantized with weight_global_scale is not supported"


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_activation_order(resolved, dtype):
    schemes = resolved(packed(order=in_groups().to(dtype)), config_of(ORDERED))
    assert schemes.quantized["m"].label == "W4A16 g32 g_idx"


def test_activation_order_that_only_the_tensors_know(refusal):
    message = refusal(packed(**ORDERED), config_of({}))
    assert message == "m: has weight_g_idx, and the config says no actorder group"


@pytest.mark.parametrize("order", ["weight", "static", None])
def test_order_of_calibration_alone_needs_no_index(resolved, order):
    schemes = resolved(packed(), quantization({"g": group(actorder=order)}))
    assert schemes.quantized["m"].label == "W4A16 g32"


def test_activation_order_without_groups(refusal):
    weights = group(strategy="channel", group_size=None, actorder="group")
    tensors = packed(strategy="channel", size=None, order=in_groups())
    assert "has no groups" in refusal(tensors, quantization({"g": weights}))


@pytest.mark.parametrize(
    "change",
    [
        lambda order: order.clone().fill_(-1),
        lambda order: order + 1,
        lambda order: order - 1,
        lambda order: torch.zeros_like(order),
        lambda order: in_groups(16),
        lambda order: torch.where(torch.arange(COLUMNS) == 5, 1 - order, order),
    ],
)
def test_activation_order_that_is_none(refusal, change):
    message = refusal(packed(order=change(in_groups())), config_of(ORDERED))
    assert message == "m.weight_g_idx doesn't put 64 inputs into groups of 32"


FP8 = {"m.weight": torch.zeros(4, 32).to(torch.float8_e4m3fn), "m.weight_scale": torch.ones(4, 1)}


@pytest.mark.parametrize("nested", [False, True], ids=["format", "group's format"])
@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("sparse-bitmask", "sparse format 'sparse-bitmask': not supported"),
        ("sparse-24-bitmask", "sparse format 'sparse-24-bitmask': not supported"),
        ("marlin-24", "sparse format 'marlin-24': not supported"),
        ("dense", "format dense: not known, or not one of packed weights"),
        ("fakequant", "format fakequant: not known, or not one of packed weights"),
        ("pack-quantised", "format pack-quantised: not known, or not one of packed weights"),
    ],
)
def test_formats_that_are_not_decoded_are_named(refusal, form, words, nested):
    settings = group() | ({"format": form} if nested else {})
    config = quantization({"g": settings}, "pack-quantized" if nested else form)
    assert refusal(packed(), config, error=UnsupportedFormat).startswith(f"m: {words}")


def test_no_format_at_all(refusal):
    config = quantization({"g": group()})
    del config["format"]
    assert "m: format None: not known" in refusal(packed(), config, error=UnsupportedFormat)


@pytest.mark.parametrize(
    ("suffixes", "library"),
    [
        (("qweight", "qzeros", "scales"), "GPTQ or AWQ"),
        (("qweight", "qzeros", "scales", "g_idx"), "GPTQ or AWQ"),
        (("weight", "weight.absmax", "weight.quant_map"), "bitsandbytes"),
        (("weight", "SCB"), "bitsandbytes"),
        (("W_q", "scale", "zero"), "HQQ"),
        (("weight", "weight_scale_inv"), "float8 of transformers and DeepSeek"),
        (("trellis", "suh", "svh"), "EXL3"),
        (("weight", "weight_scale", "weight_scale_2"), "ModelOpt"),
        (("weight", "scales", "biases"), "MLX"),
        (("weight_packed", "weight_scale"), "compressed-tensors"),
        (("_weight_qdata", "_weight_scale"), "torchao"),
    ],
)
def test_tensors_of_other_libraries_without_a_config(refusal, suffixes, library):
    tensors = {f"m.{suffix}": torch.zeros(4, dtype=torch.uint8) for suffix in suffixes}
    assert refusal(tensors, None).endswith(f"config.json says nothing; it looks like {library}")


OTHERS = {
    "GPTQ or AWQ": ("qweight", "qzeros", "scales"),
    "bitsandbytes": ("weight", "weight.absmax", "weight.quant_map"),
    "HQQ": ("W_q", "scale", "zero"),
    "float8 of transformers and DeepSeek": ("weight", "weight_scale_inv"),
    "compressed-tensors": ("weight_packed", "weight_shape"),
    "MLX": ("biases", "weight"),
    "torchao": ("_weight_qdata", "_weight_scale"),
}
CONFIGS = {
    "awq": ({"bits": 4}, "GPTQ or AWQ"),
    "gptq": ({"bits": 4}, "GPTQ or AWQ"),
    "auto-round": ({"bits": 4}, "GPTQ or AWQ"),
    "bitsandbytes": ({"load_in_4bit": True}, "bitsandbytes"),
    "hqq": ({}, "HQQ"),
    "fp8": ({}, "float8 of transformers and DeepSeek"),
    "modelopt": ({"quant_algo": "FP8"}, None),
    "quark": ({"export": {}}, None),
    "torchao": ({}, "torchao"),
    "mxfp4": ({}, None),
    "compressed-tensors": (quantization({"g": group()}), "compressed-tensors"),
    "mlx": ({"bits": 4, "group_size": 64}, "MLX"),
}


@pytest.mark.parametrize("method", CONFIGS)
def test_one_librarys_config_over_anothers_tensors(refusal, method):
    fields, own = CONFIGS[method]
    for library, suffixes in OTHERS.items():
        # MLX's scales are called as GPTQ's are.
        if library == own or (method, library) == ("mlx", "GPTQ or AWQ"):
            continue
        tensors = {f"a.m.{suffix}": torch.zeros(4, dtype=torch.uint8) for suffix in suffixes}
        tensors["a.norm.weight"] = torch.ones(4)
        words = refusal(tensors, fields | {"quant_method": method})
        assert words.startswith(f"a.m is stored as {library} (its ")
        assert words.endswith(f"), and the config says quantization method {method!r}")


@pytest.mark.parametrize("groups", [{"g": {"targets": ["m"]}}, {"UNQUANTIZED": ["m"]}])
def test_group_without_weights(resolved, groups):
    """A preset that quantizes nothing wants its linears dense."""
    assert not resolved({"m.weight": torch.zeros(2, 2)}, quantization(groups)).claims("m")


def test_refusals_can_be_collected(tmp_path):
    tensors = packed("good") | packed("bad") | packed("worse", symmetric=False)
    del tensors["bad.weight_scale"]
    path = write_checkpoint(tmp_path, tensors, config_of({}))
    refusals = {}
    schemes = resolve(open_checkpoint(path), refusals)
    assert list(schemes.quantized) == ["good"]
    assert {name: type(error) for name, error in refusals.items()} == {
        "bad": CheckpointError,
        "worse": CheckpointError,
    }


def test_dense_of_takes_floats_only(tmp_path):
    tensors = {"m.bias": torch.zeros(3, dtype=torch.float16), "n.weight": torch.zeros(3).long()}
    infos = open_checkpoint(write_checkpoint(tmp_path, tensors)).tensors
    dense = dense_of(infos["m.bias"])
    assert (dense.label, dense.tensors, dense.shape) == ("f16", ("bias",), (3,))
    with pytest.raises(CheckpointError, match=r"tensor n\.weight has dtype I64, not a float's"):
        dense_of(infos["n.weight"])


def test_modelopt_without_a_word_in_config_json(tmp_path):
    path = write_checkpoint(tmp_path, FP8)
    file = tmp_path / "hf_quant_config.json"
    file.write_text("{}")
    with pytest.raises(
        CheckpointError, match=r"^m is stored quantized .* config.json says nothing"
    ):
        resolve(open_checkpoint(path))
    file.write_text('{"quantization": {"quant_algo": "W8A16"}}')
    with pytest.raises(UnsupportedFormat, match=r"'modelopt' with quant_algo 'W8A16': not decoded"):
        resolve(open_checkpoint(path))


@pytest.mark.parametrize("config", ["compressed-tensors", [1], 4])
def test_quantization_config_must_be_an_object(refusal, config):
    assert "its quantization_config is not an object" in refusal(packed(), config)


@pytest.mark.parametrize("config", ["compressed-tensors", [1], 4])
def test_compression_config_must_be_an_object(tmp_path, config):
    path = write_checkpoint(tmp_path, {}, compression_config=config)
    with pytest.raises(CheckpointError, match="its compression_config is not an object"):
        open_checkpoint(path)


def test_a_methods_name_is_read_in_any_case(resolved):
    config = quantization({"g": group()}) | {"quant_method": "Compressed-Tensors"}
    assert set(resolved(packed(), config).quantized) == {"m"}
