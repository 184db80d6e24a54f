"""MXFP4 experts against transformers' own decoder, to the bit; and what is refused."""

import pytest
import torch
from support.families.mxfp4_experts import CONFIG, random_blocks
from support.schemes import DTYPES, decode, dtype_name, same, write_checkpoint
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.base import Scratch
from scoremode.schemes.fused_experts import Stacked
from scoremode.schemes.mxfp4 import Modules
from scoremode.schemes.resolve import resolve

EXPERTS = "model.layers.0.mlp.experts"
NAME = f"{EXPERTS}.gate_up_proj"


def tensors(experts: int = 3, rows: int = 10, columns: int = 96) -> dict[str, torch.Tensor]:
    blocks, scales = random_blocks(experts, rows, columns)
    return {f"{NAME}_blocks": blocks, f"{NAME}_scales": scales}


@pytest.fixture
def resolved(tmp_path):
    def read(stored, **fields):
        return resolve(open_checkpoint(write_checkpoint(tmp_path, stored, CONFIG | fields)))

    return read


def suffixed(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.rpartition(".")[2]: tensor for name, tensor in stored.items()}


@pytest.mark.parametrize("method", ["mxfp4", "gpt_oss_mxfp4"])
def test_all_experts_are_one_parameter(method, resolved):
    bias = {f"{NAME}_bias": torch.zeros(3, 10)}
    schemes = resolved(tensors() | bias, quant_method=method)
    assert list(schemes.quantized) == [NAME] and schemes.groups == {NAME: "mxfp4"}
    scheme = schemes.quantized[NAME]
    assert isinstance(scheme, Stacked) and scheme.shape == (3, 10, 96)
    assert scheme.label == "MXFP4A16" and scheme.inputs and not scheme.inputs.declared
    assert scheme.inputs.label == "float8 group 32 ue8m0, not declared"
    assert schemes.parameter_of(NAME) == NAME and schemes.home_of(NAME) == EXPERTS
    assert schemes.module_of(NAME) == NAME and schemes.module_of(f"{NAME}_bias") is None


def test_layers_share_a_scheme(resolved):
    other = {k.replace("layers.0", "layers.1"): v for k, v in tensors().items()}
    first, second = resolved(tensors() | other).quantized.values()
    assert first is second


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_equals_the_librarys_decoder(dtype, resolved):
    stored = tensors()
    scheme = resolved(stored).quantized[NAME]
    # [E, I, O], as the library's module multiplies.
    theirs = convert_moe_packed_tensors(stored[f"{NAME}_blocks"], stored[f"{NAME}_scales"])
    same(decode(scheme, suffixed(stored), dtype), theirs.transpose(1, 2).to(dtype))
    for expert in range(3):
        own = {name: tensor[expert] for name, tensor in suffixed(stored).items()}
        same(decode(scheme.one, own, dtype), theirs[expert].T.to(dtype))


def test_every_code_under_every_scale(resolved):
    """Subnormals and what overflows too. 255 is NaN, so that no score of it passes; the library's
    decoder takes it for 2^128."""
    codes = torch.arange(256, dtype=torch.uint8)
    stored = {
        f"{NAME}_blocks": codes.view(1, 1, 16, 16).repeat(1, 256, 1, 1),
        f"{NAME}_scales": codes.view(1, 256, 1).repeat(1, 1, 16),
    }
    ours = decode(resolved(stored).quantized[NAME], suffixed(stored), torch.bfloat16)[0]
    theirs = convert_moe_packed_tensors(stored[f"{NAME}_blocks"], stored[f"{NAME}_scales"])[0].T
    same(ours[:255], theirs[:255])
    assert ours[255].isnan().all() and not theirs[255].isnan().any()


def test_one_expert_needs_its_own_rows_alone(resolved):
    """The entries of the others may be anything."""
    stored = suffixed(tensors())
    scheme = resolved(tensors()).quantized[NAME]
    whole = decode(scheme, stored, torch.float32)
    out = torch.empty(10, 96)
    scheme.one.decode({name: tensor[2].clone() for name, tensor in stored.items()}, out, Scratch())
    assert torch.equal(out, whole[2])


def change(**others) -> dict[str, torch.Tensor]:
    merged = tensors() | {f"{NAME}_{suffix}": tensor for suffix, tensor in others.items()}
    return {name: tensor for name, tensor in merged.items() if tensor is not None}


ONES = torch.ones(3, 10, 3, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        (change(scales=None), f"{NAME}: quantized, and its tensor gate_up_proj_scales is missing"),
        (change(blocks=None), f"{NAME}: quantized, and its tensor gate_up_proj_blocks is missing"),
        (change(scales=ONES[:2]), "gate_up_proj_scales has shape [2, 10, 3], expected [3, 10, 3]"),
        (change(scales=ONES.float()), "has dtype F32, expected U8 or F8_E8M0"),
        (change(blocks=ONES), "gate_up_proj_blocks has shape [3, 10, 3], not [n, n, n, 16]"),
        (change(blocks=ONES.view(3, 10, 3, 1)), "has shape [3, 10, 3, 1], not [n, n, n, 16]"),
        (change(blocks=torch.ones(0, 10, 3, 16).byte()), "has shape [0, 10, 3, 16], not ["),
        (change(blocks=torch.ones(3, 10, 3, 16).char()), "has dtype I8, expected U8"),
    ],
)
def test_tensors_that_do_not_fit(stored, words, refusal):
    assert words in refusal(stored)


def test_both_packed_and_dense(refusal):
    words = f"{NAME} is stored dense (f32), and quantization_config says that it is quantized"
    assert refusal(tensors() | {NAME: torch.ones(3, 96, 10)}) == words


def test_a_dense_layer_is_no_silent_one(refusal, resolved):
    other = "model.layers.1.mlp.experts.down_proj"
    stored = tensors() | {other: torch.ones(3, 4, 4)}
    assert refusal(stored).startswith(f"{other} is stored dense (f32)")
    schemes = resolved(stored, modules_to_not_convert=["model.layers.1.mlp.experts"])
    assert list(schemes.quantized) == [NAME]


def test_what_the_list_names_is_not_packed(refusal):
    words = f"{NAME}: stored quantized, and modules_to_not_convert names it"
    assert refusal(tensors(), modules_to_not_convert=["model.layers.0.mlp.experts"]) == words


def test_surplus_tensors(refusal):
    words = refusal(tensors() | {NAME: torch.ones(3, 4).to(torch.int8)}, error=UnsupportedFormat)
    assert words == f"{NAME}: quantization method 'mxfp4' with gate_up_proj is not supported"


def test_a_dense_checkpoint_is_not_loaded(refusal):
    words = "quantization method 'mxfp4', and no experts have blocks and scales: not decoded"
    assert refusal({"lm_head.weight": torch.ones(2, 2)}, error=UnsupportedFormat) == words


def test_blocks_without_a_config(tmp_path):
    with pytest.raises(CheckpointError, match=r"^model.layers.0.mlp.experts is stored quantized"):
        resolve(open_checkpoint(write_checkpoint(tmp_path, tensors())))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"{NAME}_blocks", (NAME, "gate_up_proj_blocks")),
        (f"{NAME}_scales", (NAME, "gate_up_proj_scales")),
        (NAME, (NAME, "gate_up_proj")),
        (f"{NAME}_bias", (EXPERTS, "gate_up_proj_bias")),
        ("model.norm.weight", ("model.norm", "weight")),
        ("top", ("", "top")),
    ],
)
def test_names(name, expected):
    assert Modules.split(name) == expected
