"""Modules of ModelOpt's checkpoints: read, or refused in one line that names them."""

import json
from typing import Any

import pytest
import torch
from support.families.modelopt import E4M3, FORMATS, config, file, int4, int4_weight
from support.families.modelopt_golden import EXPERTS, tensors_below, write_export
from support.schemes import decode, random_weight, same, write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import UnsupportedFormat
from scoremode.schemes.fused_experts import Stacked
from scoremode.schemes.resolve import Schemes, resolve
from scoremode.schemes.summary import summarize

SHAPE = (40, 96)


def stored(algorithm: str, module: str = "m") -> dict[str, torch.Tensor]:
    tensors = FORMATS[algorithm].store(random_weight(*SHAPE, torch.bfloat16))
    return {f"{module}.{suffix}": tensor for suffix, tensor in tensors.items()}


@pytest.fixture
def resolved(tmp_path):
    def read(
        tensors: dict[str, torch.Tensor],
        said: dict[str, Any] | None,
        beside: dict[str, Any] | None = None,
    ) -> Schemes:
        path = write_checkpoint(tmp_path, tensors, said)
        if beside is not None:
            (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
        return resolve(open_checkpoint(path))

    return read


@pytest.mark.parametrize("algorithm", FORMATS)
def test_each_algorithm_by_its_label(resolved, algorithm):
    tensors = stored(algorithm) | {"m.bias": torch.zeros(40), "lm_head.weight": torch.zeros(5, 4)}
    for said, beside in ((config(algorithm), None), (None, file(algorithm, "lm_head"))):
        schemes = resolved(tensors, said, beside)
        assert list(schemes.quantized) == ["m"] and schemes.groups == {"m": algorithm}
        scheme = schemes.quantized["m"]
        assert (scheme.label, scheme.shape) == (FORMATS[algorithm].label, SHAPE)
        assert not schemes.claims("lm_head")


@pytest.mark.parametrize("algorithm", ["W4A16_AWQ", "W4A8_AWQ"])
def test_scales_tell_a_group_size_that_nothing_says(resolved, refusal, algorithm):
    """Said in the file beside config.json alone, in `config_groups` alone, or nowhere; and what is said
    must be what is stored."""
    whole = {"weight_scale_2": torch.ones(()), "input_scale": torch.ones(())}
    tensors = int4(random_weight(40, 192, torch.bfloat16), 64) | {
        name: t for name, t in whole.items() if algorithm == "W4A8_AWQ"
    }
    tensors = {f"m.{suffix}": tensor for suffix, tensor in tensors.items()}
    own, weights = config(algorithm, group_size=None), {"num_bits": 4, "group_size": 64}
    of_groups = own | {"config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}}}
    alone, silent = (file(algorithm, group_size=size) for size in (64, None))
    cases = (own, None), (of_groups, None), (own, silent), (own, alone), (None, alone)
    for said, beside in cases:
        scheme = resolved(tensors, said, beside).quantized["m"]
        assert scheme.label.endswith("AWQ g64") and scheme.scaling.size == 64
        ours = decode(scheme, {n.removeprefix("m."): t for n, t in tensors.items()}, torch.float32)
        if algorithm == "W4A16_AWQ":
            stored = {n.removeprefix("m."): t for n, t in tensors.items()}
            same(ours + 0.0, int4_weight(stored, torch.float32, 64) + 0.0)
    wrong = "weight_scale has shape [40, 3], expected [40, 2]"
    assert wrong in refusal(tensors, own, beside=file(algorithm, group_size=128))
    tensors["m.weight_scale"] = torch.ones(40, 5)
    expected = "m: its 192 inputs have 5 scales, and no config says the group_size"
    assert refusal(tensors, own, beside=silent) == expected
    tensors["m.weight_scale"] = torch.ones(40)
    assert "weight_scale has shape [40], not [40, n]" in refusal(tensors, own, beside=silent)


def test_each_layer_has_its_own(resolved, refusal):
    layers = {
        "model.a": {"quant_algo": "FP8"},
        "model.experts": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
        "model.dense": {"quant_algo": "FP8"},
    }
    said = config("MIXED_PRECISION", "mtp*", quantized_layers=layers)
    names = ("language_model.model.a", "language_model.model.experts.3.up")
    tensors = stored("FP8", names[0]) | stored("W4A16_NVFP4", names[1])
    schemes = resolved(tensors, said)
    assert [schemes.quantized[n].label for n in names] == ["FP8", "NVFP4A16"]
    assert schemes.claims("model.dense") and not schemes.claims("model.other")
    words = "b: stored quantized, and the config's quantized_layers don't name it"
    assert refusal(tensors | stored("FP8", "b"), said) == words


def test_modules_of_one_shape_share_a_scheme(resolved):
    schemes = resolved(stored("NVFP4", "a") | stored("NVFP4", "b"), config("NVFP4"))
    assert schemes.quantized["a"] is schemes.quantized["b"]


def test_bits_per_weight(tmp_path):
    # Scales of a cache, which lie with it, are no part of a weight.
    cache = {"kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}}
    tensors = stored("NVFP4", "k_proj") | {"k_proj.k_scale": torch.ones(())}
    path = write_checkpoint(tmp_path, tensors, config("NVFP4", **cache))
    summary = summarize(open_checkpoint(path))
    # A float8 for each 16, a float32 for all.
    assert summary.body_bits == 4.5 + 32 / 3840
    assert summary.parameters == summary.quantized == 3840 and not summary.refusals


def test_scales_of_a_cache_belong_to_it(resolved, refusal):
    scale = {"kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}}
    tensors = stored("NVFP4", "k_proj") | {"k_proj.k_scale": torch.ones(())}
    schemes = resolved(tensors, config("NVFP4", **scale))
    assert schemes.config and schemes.config.kv_cache and "k_proj" in schemes.quantized
    words = "k_proj: NVFP4 with k_scale is not supported"
    assert refusal(tensors, config("NVFP4"), error=UnsupportedFormat) == words


def test_an_older_export_has_scales_of_inputs_that_it_does_not_quantize(resolved, refusal):
    tensors = stored("W4A16_NVFP4") | {"m.input_scale": torch.ones(())}
    assert resolved(tensors, config("W4A16_NVFP4")).quantized["m"].inputs is None
    words = refusal(tensors | {"m.input_scale": torch.ones(2)}, config("W4A16_NVFP4"))
    assert "m.input_scale has shape [2]" in words


HOME = {
    "gpt_oss": "model.layers.0.mlp.experts",
    "llama4_text": "model.layers.0.feed_forward.experts",
}
OF_ONE = {"NVFP4": "NVFP4", "W4A16_NVFP4": "NVFP4A16", "FP8": "FP8"}


@pytest.mark.parametrize("algorithm", OF_ONE)
@pytest.mark.parametrize("model", HOME)
def test_experts_stored_as_one_are_what_modelopt_decodes(model, algorithm, tmp_path):
    folder = write_export(tmp_path / "export", f"{model}/{algorithm}", file=EXPERTS)
    checkpoint = open_checkpoint(str(folder))
    schemes, home = resolve(checkpoint), HOME[model]
    for part, shape in (("gate_up_proj", (3, 32, 96)), ("down_proj", (3, 48, 32))):
        scheme = schemes.quantized[f"{home}.{part}"]
        assert isinstance(scheme, Stacked) and scheme.shape == shape
        assert scheme.label == OF_ONE[algorithm]
        read = {name: checkpoint.read(f"{home}.{name}") for name in scheme.tensors}
        found = decode(scheme, read, torch.bfloat16)
        expected = tensors_below(f"{model}/{algorithm}/dense/{home}.{part}", EXPERTS)[""]
        # But for the sign of zeros, which its table of NVFP4 doesn't have.
        same(found + 0, expected + 0)
        given = tensors_below(f"{model}/given/{home}.{part}", EXPERTS)[""]
        away = (found.float() - given.float()).norm() / given.float().norm()
        assert away < (0.03 if algorithm == "FP8" else 0.12)
        # Outputs and inputs are not changed for each other.
        assert scheme.one.shape == (shape[2], shape[1])
        own = {n: t if n in scheme.one.shared else t[1] for n, t in read.items()}
        same(decode(scheme.one, own, torch.bfloat16), found[1].T)
    bits = {"FP8": 8, "NVFP4": 4.5, "W4A16_NVFP4": 4.5}[algorithm]
    (found,) = (f for f in summarize(checkpoint).formats.values() if f.schemes)
    assert bits < found.bits < bits + 0.05


def of_experts(algorithm: str, **changes: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """The tensors of gpt-oss' `down_proj`, one of them another, or none."""
    prefix = f"gpt_oss/{algorithm}/model.layers.0.mlp.experts.down_proj"
    tensors = tensors_below(prefix, EXPERTS)
    del tensors["_bias"]
    tensors |= {f"_{name}" if name else "": tensor for name, tensor in changes.items()}
    return {f"m.experts.down_proj{s}": t for s, t in tensors.items() if t is not None}


@pytest.mark.parametrize(
    ("algorithm", "changes", "words"),
    [
        ("NVFP4", {"weight_scale": None}, "its tensor down_proj_weight_scale is missing"),
        ("NVFP4", {"weight_scale_2": None}, "its tensor down_proj_weight_scale_2 is missing"),
        ("NVFP4", {"": None}, "its tensor down_proj is missing"),
        ("NVFP4", {"": torch.zeros(3, 24, 32).int()}, "dtype I32, expected U8"),
        ("NVFP4", {"": torch.zeros(24, 32).byte()}, "shape [24, 32], not [n, n, n]"),
        ("NVFP4", {"": torch.zeros(3, 23, 32).byte()}, "its 46 inputs are quantized in groups of"),
        ("NVFP4", {"": torch.zeros(2, 24, 32).byte()}, "shape [3, 3, 32], expected [2, 3, 32]"),
        ("NVFP4", {"weight_scale_2": torch.ones(3)}, "_weight_scale_2 has shape [3], expected [1]"),
        ("FP8", {"weight_scale": torch.ones(3)}, "_weight_scale has shape [3], expected [1]"),
        ("FP8", {"": torch.zeros(3, 48, 32).byte()}, "dtype U8, expected F8_E4M3"),
    ],
)
def test_experts_stored_as_one_that_do_not_fit(refusal, algorithm, changes, words):
    assert words in refusal(of_experts(algorithm, **changes), config(algorithm))


def test_experts_stored_as_one_that_are_not_decoded(refusal):
    changes = {"pre_quant_scale": torch.ones(48)}
    words = (
        "m.experts: experts stored as one by ModelOpt with down_proj_pre_quant_scale: not decoded"
    )
    assert (
        refusal(of_experts("NVFP4", **changes), config("NVFP4"), error=UnsupportedFormat) == words
    )
    words = "m.experts.down_proj: experts stored as one in MXFP8: not decoded"
    assert refusal(of_experts("FP8"), config("MXFP8"), error=UnsupportedFormat) == words
    words = "m.experts.down_proj: FP8 with down_proj_weight_scale_2 is not supported"
    changes = {"weight_scale_2": torch.ones(())}
    assert refusal(of_experts("FP8", **changes), config("FP8"), error=UnsupportedFormat) == words
    words = "m.experts.down_proj: stored quantized, and the config's exclude_modules name it"
    assert refusal(of_experts("FP8"), config("FP8", "m.experts*")) == words


def test_experts_stored_as_one_that_the_config_names(refusal):
    layers = {"m.experts": {"quant_algo": "FP8"}, "n": {"quant_algo": "FP8"}}
    tensors = {"m.experts.down_proj": torch.zeros(3, 48, 32).bfloat16()} | stored("FP8", "n")
    words = "m.experts.down_proj is stored dense (bf16), and quantization_config says that it is"
    assert words in refusal(tensors, config("MIXED_PRECISION", quantized_layers=layers))


def change(algorithm: str, **tensors: torch.Tensor | None) -> dict[str, torch.Tensor]:
    merged = stored(algorithm) | {f"m.{suffix}": tensor for suffix, tensor in tensors.items()}
    return {name: tensor for name, tensor in merged.items() if tensor is not None}


ONE = torch.ones(())


@pytest.mark.parametrize(
    ("algorithm", "tensors", "words"),
    [
        ("NVFP4", change("NVFP4", weight_scale_2=None), "its tensor weight_scale_2 is missing"),
        ("NVFP4", change("NVFP4", weight=None), "m: quantized, and its tensor weight is missing"),
        ("NVFP4", change("NVFP4", weight_scale=torch.ones(40, 6)), "dtype F32, expected F8_E4M3"),
        ("NVFP4", change("NVFP4", weight_scale_2=ONE.bfloat16()), "dtype BF16, expected F32"),
        ("NVFP4", change("NVFP4", weight_scale_2=torch.ones(2)), "shape [2], expected [1]"),
        ("NVFP4", change("NVFP4", input_scale=ONE.int()), "m.input_scale has dtype I32"),
        (
            "NVFP4",
            change("NVFP4", weight_scale=torch.ones(40, 5).to(E4M3)),
            "shape [40, 5], expected [40, 6]",
        ),
        (
            "NVFP4",
            change(
                "NVFP4",
                weight=torch.zeros(4, 12, dtype=torch.uint8),
                weight_scale=torch.ones(4, 2).to(E4M3),
            ),
            "m: its 24 inputs are quantized in groups of 16",
        ),
        (
            "MXFP8",
            change(
                "MXFP8",
                weight=torch.zeros(4, 40).to(E4M3),
                weight_scale=torch.zeros(4, 2, dtype=torch.uint8),
            ),
            "m: its 40 inputs are quantized in groups of 32",
        ),
        ("NVFP4", stored("FP8"), "m.weight has dtype F8_E4M3, expected U8"),
        ("FP8", stored("NVFP4"), "m.weight has dtype U8, expected F8_E4M3"),
        ("FP8", stored("FP8_PER_CHANNEL_PER_TOKEN"), "m.weight_scale has shape [40], expected [1]"),
        ("FP8_PER_CHANNEL_PER_TOKEN", stored("FP8"), "shape [], expected [40]"),
        ("FP8", change("FP8", weight_scale=ONE.double()), "dtype F64, expected BF16 or F16 or F32"),
        (
            "FP8_PB_WO",
            change("FP8_PB_WO", weight_scale=torch.ones(1, 1, 2, 1)),
            "shape [1, 1, 2, 1]",
        ),
        (
            "MXFP8",
            change("MXFP8", weight_scale=torch.ones(40, 3)),
            "dtype F32, expected U8 or F8_E",
        ),
    ],
)
def test_tensors_that_do_not_fit(refusal, algorithm, tensors, words):
    assert words in refusal(tensors, config(algorithm))


@pytest.mark.parametrize(
    ("algorithm", "tensors", "words"),
    [
        ("FP8", change("FP8", pre_quant_scale=torch.ones(96)), "FP8 with pre_quant_scale is not"),
        ("FP8", change("FP8", weight_scale_2=ONE), "m: FP8 with weight_scale_2 is not supported"),
        ("MXFP8", change("MXFP8", input_scale=ONE), "m: MXFP8 with input_scale is not supported"),
        (
            "NVFP4",
            change("NVFP4", svdquant_lora_a=ONE, svdquant_lora_b=torch.ones(2)),
            "m: NVFP4 with svdquant_lora_a, svdquant_lora_b is not supported",
        ),
        (
            "NVFP4",
            {
                "e.gate_up_proj": torch.zeros(2, 4, 8, dtype=torch.uint8),
                "e.gate_up_proj_weight_scale": torch.ones(2, 4, 1).to(E4M3),
                "e.gate_up_proj_weight_scale_2": torch.ones(2),
            },
            "e: experts stored as one by ModelOpt with gate_up_proj_weight_scale, "
            "gate_up_proj_weight_scale_2: not decoded",
        ),
    ],
)
def test_what_is_not_decoded_is_named(refusal, algorithm, tensors, words):
    assert words in refusal(tensors, config(algorithm), error=UnsupportedFormat)


def test_a_module_that_the_list_names(refusal):
    words = "m: stored quantized, and the config's exclude_modules name it"
    for pattern in ("m", "m*", "*"):
        assert refusal(stored("FP8"), config("FP8", pattern)) == words


def test_a_config_that_quantizes_nothing_but_the_cache(resolved, refusal):
    beside = file(None, kv_cache_quant_algo="FP8")
    schemes = resolved({"m.weight": torch.zeros(4, 4)}, None, beside)
    assert not schemes.quantized and schemes.config and schemes.config.kv_cache
    words = "m: stored quantized, and the config's quant_algo is null"
    assert refusal(stored("FP8"), None, beside=beside) == words


def test_a_dense_checkpoint_with_its_config_is_not_dense(refusal):
    words = "quantization method 'modelopt' with quant_algo NVFP4, and no tensor is a weight_scale"
    tensors = {"m.weight": torch.zeros(4, 4)}
    assert words in refusal(tensors, config("NVFP4"), error=UnsupportedFormat)
    assert words in refusal(tensors, None, file("NVFP4"), error=UnsupportedFormat)


def test_files_that_differ(refusal):
    words = refusal(stored("NVFP4"), config("NVFP4"), beside=file("FP8"))
    assert words == "config.json says quant_algo NVFP4, and hf_quant_config.json beside it FP8"


@pytest.mark.parametrize("method", ["modelopt_fp4", "modelopt_mixed", "ModelOpt", None])
def test_other_names_of_the_method(resolved, method):
    said = config("NVFP4") | {"quant_method": method}
    assert resolved(stored("NVFP4"), said).quantized["m"].label == "NVFP4"


def test_the_old_nesting_within_config_json(resolved):
    said = file("FP8") | {"quant_method": "modelopt"}
    assert resolved(stored("FP8"), said).quantized["m"].label == "FP8"
    assert resolved(stored("FP8"), file("FP8")).quantized["m"].label == "FP8"
