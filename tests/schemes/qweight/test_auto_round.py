import pytest
import torch
from support.families.qweight import Recipe, quantize
from support.schemes import random_weight, write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.auto_round import parse_auto_round
from scoremode.schemes.base import Scratch
from scoremode.schemes.resolve import resolve

# As auto-round 0.16 writes it.
CONFIG = {
    "autoround_version": "0.16.1",
    "bits": 4,
    "block_name_to_quantize": "model.layers",
    "data_type": "int",
    "group_size": 32,
    "packing_format": "auto_round:auto_gptq",
    "quant_method": "auto-round",
    "sym": True,
}
SYMMETRIC = Recipe(symmetric=True, less_one=True)


@pytest.fixture
def scheme(tmp_path):
    def read(recipe: Recipe = SYMMETRIC, module: str = "m", **changes):
        tensors, _ = quantize(random_weight(64, 96, torch.float32), recipe)
        # AutoRound's own packer stores no g_idx.
        named = {f"{module}.{n}": t for n, t in tensors.items() if n != "g_idx"}
        config = {k: v for k, v in (CONFIG | changes).items() if v is not None}
        (found,) = resolve(
            open_checkpoint(write_checkpoint(tmp_path, named, config))
        ).quantized.values()
        return found

    return read


@pytest.mark.parametrize(
    ("packing", "recipe"),
    [
        ("auto_round:auto_gptq", Recipe(less_one=True)),
        ("auto_round:gptq", Recipe(less_one=True)),
        ("auto_round", Recipe()),
        ("auto_round:gptqmodel", Recipe()),
        ("auto_round:exllamav2", Recipe()),
        ("auto_round:auto_awq", Recipe(order="outputs")),
    ],
)
def test_packing_formats(scheme, packing, recipe):
    found = scheme(recipe, packing_format=packing, sym=False)
    assert found.zero_offset == recipe.less_one and found.elements.order == recipe.order
    assert found.label == "AutoRound W4A16 g32 asym"


def test_symmetric_zero_points_tell_where_nothing_else_does(scheme):
    assert scheme(packing_format=None).zero_offset
    assert not scheme(Recipe(symmetric=True), packing_format=None).zero_offset
    with pytest.raises(CheckpointError, match=r"nothing says whether .*\(checkpoint_format gptq\)"):
        scheme(Recipe(), packing_format=None, sym=False)


def test_older_configs(scheme):
    found = scheme(quant_method="intel/auto-round", packing_format=None, backend="auto_round:gptq")
    assert found.label == "AutoRound W4A16 g32"
    # As auto-round 0.2 wrote it, whose packer stores zero points as they are.
    first = {"quant_method": "intel/auto-round", "packing_format": None, "sym": False}
    assert not scheme(Recipe(), **first, backend="autoround:exllamav2").zero_offset
    assert scheme(Recipe(less_one=True), **first, backend="gptq:exllamav2").zero_offset
    assert scheme(packing_format=None, backend="auto").zero_offset


def test_layers_of_their_own(scheme):
    extra = {
        "lm_head": {"bits": 8, "group_size": 48, "data_type": "int"},
        r".*down_proj.*": {"bits": 3},
        "a.dense": {"bits": 16, "data_type": "float"},
    }
    eight = Recipe(8, 48, symmetric=True, less_one=True)
    assert scheme(eight, "lm_head", extra_config=extra).scaling.size == 48
    three = Recipe(3, symmetric=True, less_one=True)
    assert scheme(three, "a.1.down_proj", extra_config=extra).elements.bits == 3
    with pytest.raises(CheckpointError, match=r"a\.dense: stored quantized, and extra_config says"):
        scheme(SYMMETRIC, "a.dense", extra_config=extra)


FLOAT8 = {"bits": 8, "data_type": "fp8", "group_size": [16, 16], "act_bits": 16}


def test_layers_in_blocks_of_float8(tmp_path):
    """As a hybrid of INT4 experts and float8 attention has them."""
    weight = torch.randn(24, 32).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 2) + 0.5
    tensors = {"l.self_attn.q.weight": weight, "l.self_attn.q.weight_scale_inv": scale}
    packed, _ = quantize(random_weight(64, 96, torch.float32), SYMMETRIC)
    tensors |= {f"m.{suffix}": t for suffix, t in packed.items() if suffix != "g_idx"}

    def found(extra: dict[str, object], **more: torch.Tensor):
        config = CONFIG | {"extra_config": extra}
        path = write_checkpoint(tmp_path, tensors | more, config)
        return resolve(open_checkpoint(path)).quantized["l.self_attn.q"]

    for name in (".*self_attn.*", "l.self_attn.q"):
        scheme = found({name: FLOAT8, ".*self_attn": {"bits": 2}})
        assert scheme.label.startswith("FP8") and scheme.inputs is None
        out = torch.empty(24, 32)
        stored = {"weight": weight, "weight_scale_inv": scale}
        scheme.decode(stored, out, Scratch())
        whole = scale.repeat_interleave(16, 0)[:24].repeat_interleave(16, 1)
        assert torch.equal(out, weight.float() * whole)
    words = (
        "l.self_attn.q: stored as float8 of transformers and DeepSeek, and the config says no such"
    )
    for extra in ({}, {".*self_attn.*": FLOAT8, "l.self_attn.q": {"bits": 4}}):
        with pytest.raises(CheckpointError, match=words):
            found(extra)
    with pytest.raises(CheckpointError, match="float8 with input_scale: not decoded"):
        found({"l.self_attn.q": FLOAT8}, **{"l.self_attn.q.input_scale": torch.ones(())})
    with pytest.raises(UnsupportedFormat, match=r"extra_config, l\.self_attn\.q, data_type 'fp8'"):
        found({"l.self_attn.q": FLOAT8 | {"group_size": -1}})


def test_a_list_of_experts_is_looked_up_by_name():
    """Exports of mixed bits have one entry a linear; a name goes before a pattern."""
    extra: dict[str, object] = {r".*experts\.7.*": {"bits": 2}}
    extra |= {f"layers.{n}.experts.7.up": {"bits": 8} for n in range(3000)}
    config = parse_auto_round(CONFIG | {"extra_config": extra})
    found = [config.of(f"layers.{n}.experts.7.{p}") for n in (0, 2999) for p in ("up", "down")]
    assert [d and d.bits for d in found] == [8, 2, 8, 2]
    assert [d.bits for d in config.all] == [4, 2, 8] and len(config.overrides.declared) == 1


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"data_type": "mx_fp"}, UnsupportedFormat, "'auto-round' with data_type 'mx_fp'"),
        ({"act_bits": 8}, UnsupportedFormat, "act_bits 8: not decoded"),
        ({"packing_format": "auto_round:llm_compressor"}, UnsupportedFormat, "llm_compressor"),
        ({"packing_format": "auto_round:fp8_static"}, UnsupportedFormat, "fp8_static"),
        ({"extra_config": {"x": {"data_type": "float"}}}, UnsupportedFormat, "data_type 'float'"),
        ({"extra_config": {"x": {"act_bits": 4}}}, UnsupportedFormat, "act_bits 4"),
        ({"bits": None}, CheckpointError, "bits None is not a number of bits"),
        ({"bits": 8}, CheckpointError, "the config says 8 bits in groups of 32"),
        (
            {"packing_format": "auto_round:auto_awq"},
            CheckpointError,
            "qweight has words of inputs, and packing_format says outputs",
        ),
    ],
)
def test_refused(scheme, changes, error, words):
    with pytest.raises(error) as caught:
        scheme(**changes)
    assert caught.type is error and words in str(caught.value)
