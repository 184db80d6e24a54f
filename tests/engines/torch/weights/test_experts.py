"""Mixtures of experts in the torch engine: packed, in groups, and what can be wrong with them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from engine_helpers import make_engine, score
from models import (
    edit_config,
    edit_tensors,
    library_logprobs,
    library_model,
    make_checkpoint,
    random_plan,
)
from quantized import LibraryLinear, config_of, preset
from schemes_helpers import arguments, compress, decompress, group, quantization

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.base import Schedule
from scoremode.errors import CheckpointError
from scoremode.schemes.summary import summarize

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Format:
    """One way to store a linear: a dense weight → the library's tensors and what they stand for."""

    name: str
    pack: Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]
    config: dict[str, Any]

    def __str__(self) -> str:
        return self.name


def pack_int4(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    arguments_ = arguments(4, "group", 32, True)
    stored = compress(weight, arguments_)
    return stored, decompress(stored, arguments_)


def pack_nvfp4(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """e2m1 in groups of 16: the tensors by suffix, and the library's dense weight of them."""
    linear = LibraryLinear(weight, preset("NVFP4A16"), weight)
    return linear.stored(), linear.decompressed()


FORMATS = [
    Format("W4A16", pack_int4, quantization({"group_0": group("Linear")})),
    Format("NVFP4A16", pack_nvfp4, config_of("NVFP4A16")),
]
# Families that differ in their experts' names, gates, biases or layout.
PACKED = ["mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3", "qwen2_moe", "nemotron_h"]
EXPERT = re.compile(r"\.experts\.\d+\.\w+\.weight$")


def unroll(tensors: Tensors) -> None:
    """gpt-oss' fused experts → a linear each, as llm-compressor calibrates and stores them."""
    for name in [n for n in tensors if n.endswith("gate_up_proj")]:
        experts = name.removesuffix(".gate_up_proj")
        gate_up, gate_up_bias = tensors.pop(name), tensors.pop(f"{name}_bias")
        down, down_bias = (tensors.pop(f"{experts}.down_proj{s}") for s in ("", "_bias"))
        for e in range(len(down)):
            for part, weight, bias in (
                ("gate_proj", gate_up[e, :, 0::2], gate_up_bias[e, 0::2]),
                ("up_proj", gate_up[e, :, 1::2], gate_up_bias[e, 1::2]),
                ("down_proj", down[e], down_bias[e]),
            ):
                tensors[f"{experts}.{e}.{part}.weight"] = weight.T.contiguous()
                tensors[f"{experts}.{e}.{part}.bias"] = bias.contiguous()


def fuse(tensors: Tensors) -> None:
    """The inverse of `unroll`."""
    layers = {n.partition(".experts.")[0] for n in tensors if ".experts.0." in n}
    for layer in layers:
        count = len([n for n in tensors if re.match(rf"{layer}\.experts\.\d+\.down_proj\.bias", n)])

        def take(part: str, suffix: str, layer: str = layer, count: int = count) -> torch.Tensor:
            names = [f"{layer}.experts.{e}.{part}.{suffix}" for e in range(count)]
            values = [tensors.pop(name) for name in names]
            return torch.stack([v.T if suffix == "weight" else v for v in values])

        for suffix, end in (("weight", ""), ("bias", "_bias")):
            gate, up = take("gate_proj", suffix), take("up_proj", suffix)
            together = torch.stack((gate, up), dim=-1).flatten(-2)
            tensors[f"{layer}.experts.gate_up_proj{end}"] = together
            tensors[f"{layer}.experts.down_proj{end}"] = take("down_proj", suffix).contiguous()


def make_packed(folder, name: str, form: Format, dtype=torch.bfloat16):
    """A checkpoint with packed experts, and a dense one of the weights that they stand for."""
    packed, dense = folder / "packed", folder / "dense"
    for target in (packed, dense):
        make_checkpoint(target, name, dtype=dtype)
        if name == "gpt_oss":
            edit_tensors(target, unroll)
    others: set[str] = set()

    def pack(tensors: Tensors) -> None:
        for key in list(tensors):
            if not EXPERT.search(key):
                if ".experts." not in key:
                    others.add(key.rpartition(".")[0])
                continue
            stored, _ = form.pack(tensors.pop(key))
            tensors |= {f"{key.removesuffix('.weight')}.{s}": t for s, t in stored.items()}

    def decode(tensors: Tensors) -> None:
        for key in tensors:
            if EXPERT.search(key):
                tensors[key] = form.pack(tensors[key])[1].to(dtype)
        if name == "gpt_oss":
            fuse(tensors)

    edit_tensors(packed, pack)
    edit_tensors(dense, decode)
    edit_config(packed, quantization_config=form.config | {"ignore": sorted(others)})
    return packed, dense


def attention_of(name: str) -> str:
    return "eager" if name == "gpt_oss" else "sdpa"


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("name", PACKED)
def test_packed_experts_equal_the_library_on_their_decoded_weights(name, form, tmp_path):
    packed, dense = make_packed(tmp_path, name, form)
    plan = random_plan()
    engine = make_engine(packed, dtype="float32")
    ours = score(engine, plan)
    assert engine.describe()["experts"] == "a layer at a time"
    theirs = library_logprobs(library_model(dense, torch.float32, attention_of(name)), plan)
    assert np.abs(ours.logprob - theirs).max() < 1e-5
    original = make_checkpoint(tmp_path / "original", name, dtype=torch.bfloat16)
    before = library_logprobs(library_model(original, torch.float32, attention_of(name)), plan)
    assert np.abs(before - theirs).max() > 1e-3


# An expert takes 24 KiB in float32: a quarter of the memory holds this many.
@pytest.mark.parametrize(("memory", "places"), [(64 * 2**10, 1), (220 * 2**10, 2), (2**20, None)])
@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
@pytest.mark.parametrize("form", [*FORMATS, None], ids=str)
def test_groups_of_experts_change_no_bit(form, name, memory, places, tmp_path):
    if form is None:
        # Stored in another dtype than computed in, so that experts have to be decoded too.
        folder = make_checkpoint(tmp_path, name, dtype=torch.bfloat16)
    else:
        folder, _ = make_packed(tmp_path, name, form)
    plan = random_plan()
    schedule = Schedule(pass_windows=4, batch_windows=2)
    roomy = score(make_engine(folder, dtype="float32"), plan, schedule)
    engine = make_engine(folder, dtype="float32", max_memory=memory)
    tight = score(engine, plan, schedule)
    assert np.array_equal(roomy.logprob, tight.logprob)
    said = f"{places} at a time" if places else "a layer at a time"
    assert engine.describe()["experts"] == said


def test_experts_stay_within_the_budget_and_layers_share_their_memory(tmp_path):
    folder, _ = make_packed(tmp_path, "mixtral", FORMATS[0])
    held = {}
    for places, memory in ((1, 2**16), (2, 220 * 2**10), (6, 2**30)):
        engine = make_engine(folder, dtype="float32", max_memory=memory)
        before = engine._parts.slot.bytes
        score(engine, random_plan(windows=20), Schedule(2, 2))
        experts = [
            b for (role, *_), b in engine._parts.slot._buffers.items() if ".experts." in role
        ]
        held[places] = sum(b.nbytes for b in experts)
        assert engine._parts.slot.bytes == before
    one = 3 * 32 * 64 * 4
    assert held == {1: one, 2: 2 * one, 6: 6 * one}


def test_dense_experts_in_the_compute_dtype_are_used_where_they_lie(tmp_path):
    for name in ("mixtral", "gpt_oss"):
        folder = make_checkpoint(tmp_path / name, name)
        engine = make_engine(folder, max_memory=2**16)
        score(engine, random_plan(), Schedule(2, 2))
        assert engine.describe()["experts"] == "a layer at a time"
        assert not [role for role, *_ in engine._parts.slot._buffers if ".experts." in role]


def test_experts_of_one_layer_may_differ_in_format(tmp_path):
    folder, dense = make_packed(tmp_path, "mixtral", FORMATS[0])
    plan, schedule = random_plan(), Schedule(2, 2)
    packed = score(make_engine(folder, dtype="bfloat16"), plan, schedule)
    weights = open_checkpoint(str(dense))

    def unpack(tensors: Tensors) -> None:
        for key in [k for k in tensors if ".experts.0." in k]:
            del tensors[key]
            name = f"{key.rpartition('.')[0]}.weight"
            tensors[name] = weights.read(name).clone()

    edit_tensors(folder, unpack)
    config = open_checkpoint(str(folder)).config["quantization_config"]
    config["ignore"].append(r"re:.*experts\.0\..*")
    edit_config(folder, quantization_config=config)
    # An expert takes 12 KiB in bfloat16, the first one nothing.
    engine = make_engine(folder, dtype="bfloat16", max_memory=110 * 2**10)
    assert np.array_equal(score(engine, plan, schedule).logprob, packed.logprob)
    assert engine.describe()["experts"] == "2 at a time"


def test_unrolled_gpt_oss_equals_the_fused_one(tmp_path):
    plan = random_plan()
    fused = score(make_engine(make_checkpoint(tmp_path, "gpt_oss")), plan)
    edit_tensors(tmp_path, unroll)
    unrolled = score(make_engine(tmp_path), plan)
    assert np.abs(fused.logprob - unrolled.logprob).max() < 1e-5


def test_a_float32_routing_bias_stays_float32_in_a_bfloat16_model(tmp_path):
    folder = make_checkpoint(tmp_path, "deepseek_v3", dtype=torch.bfloat16)

    def set_bias(tensors: Tensors) -> None:
        for key in tensors:
            if key.endswith("e_score_correction_bias"):
                # In bfloat16 all of these are 64: the differences decide the routing.
                tensors[key] = 64 + torch.linspace(0, 0.12, len(tensors[key]))

    edit_tensors(folder, set_bias)
    plan = random_plan()
    ours = score(make_engine(folder, dtype="bfloat16"), plan)
    theirs = library_logprobs(library_model(folder, torch.bfloat16), plan)
    assert np.abs(ours.logprob - theirs).mean() < 1e-2


def test_routers_and_shared_experts_may_be_packed_like_any_linear(tmp_path):
    folder, dense = make_packed(tmp_path, "qwen2_moe", FORMATS[0])
    shared = re.compile(r"\.mlp\.shared_expert\.\w+\.weight$")

    def pack(tensors: Tensors) -> None:
        for key in [k for k in tensors if shared.search(k)]:
            stored, _ = pack_int4(tensors.pop(key))
            tensors |= {f"{key.removesuffix('.weight')}.{s}": t for s, t in stored.items()}

    def decode(tensors: Tensors) -> None:
        for key in [k for k in tensors if shared.search(k)]:
            tensors[key] = pack_int4(tensors[key])[1]

    edit_tensors(folder, pack)
    edit_tensors(dense, decode)
    ignored = ["re:.*self_attn", "re:.*gate$", "re:.*shared_expert_gate", "lm_head"]
    edit_config(folder, quantization_config=FORMATS[0].config | {"ignore": ignored})
    plan = random_plan()
    ours = score(make_engine(folder, dtype="float32"), plan)
    theirs = library_logprobs(library_model(dense, torch.float32), plan)
    assert np.abs(ours.logprob - theirs).max() < 1e-5


def remove(name: str) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        del tensors[name]

    return edit


def copy(name: str, new: str) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        tensors[new] = tensors[name].clone()

    return edit


def shorten(name: str) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        tensors[name] = tensors[name][:-1].clone()

    return edit


MIXTRAL = "model.layers.1.block_sparse_moe.experts"
OSS = "model.layers.1.mlp.experts"
DAMAGE = {
    "missing": ("mixtral", remove(f"{MIXTRAL}.3.w3.weight"), r"experts\.3\.w3\.weight .*expert 3"),
    "first missing": ("mixtral", remove(f"{MIXTRAL}.0.w2.weight"), r"experts\.0\.w2\.weight"),
    "last missing": ("mixtral", remove(f"{MIXTRAL}.5.w2.weight"), r"experts\.5\.w2\.weight"),
    "one too many": (
        "mixtral",
        copy(f"{MIXTRAL}.5.w1.weight", f"{MIXTRAL}.6.w1.weight"),
        r"1\.block_sparse_moe\.experts\.6\.w1\.weight is of expert 6, .* 6 experts",
    ),
    "shape": (
        "mixtral",
        shorten(f"{MIXTRAL}.2.w1.weight"),
        r"experts\.2\.w1\.weight has shape \[63, 32\], the model needs \[64, 32\]",
    ),
    "stray": (
        "mixtral",
        copy(f"{MIXTRAL}.2.w1.weight", f"{MIXTRAL}.2.w4.weight"),
        r"experts\.2\.w4\.weight belongs to a layer",
    ),
    "fused shape": (
        "gpt_oss fused",
        shorten(f"{OSS}.down_proj"),
        r"experts\.down_proj has shape \[5, 64, 32\], the model needs \[6, 64, 32\]",
    ),
    "fused bias missing": ("gpt_oss fused", remove(f"{OSS}.down_proj_bias"), "down_proj_bias"),
    "unrolled missing": ("gpt_oss", remove(f"{OSS}.4.up_proj.weight"), r"experts\.4\.up_proj"),
    "unrolled first missing": (
        "gpt_oss",
        remove(f"{OSS}.0.gate_proj.weight"),
        r"experts\.0\.gate_proj\.weight",
    ),
    "unrolled bias missing": (
        "gpt_oss",
        remove(f"{OSS}.4.down_proj.bias"),
        r"experts\.4\.down_proj\.bias",
    ),
    "unrolled one too many": (
        "gpt_oss",
        copy(f"{OSS}.4.down_proj.weight", f"{OSS}.6.down_proj.weight"),
        r"experts\.6\.down_proj\.weight belongs to a layer",
    ),
    "both": (
        "gpt_oss fused",
        copy(f"{OSS}.down_proj", f"{OSS}.0.down_proj.weight"),
        r"experts\.0\.down_proj\.weight belongs to a layer",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_experts_are_one_clear_error(damage, tmp_path):
    name, edit, message = DAMAGE[damage]
    family, _, fused = name.partition(" ")
    folder = make_checkpoint(tmp_path, family)
    if family == "gpt_oss" and not fused:
        edit_tensors(folder, unroll)
    edit_tensors(folder, edit)
    with pytest.raises(CheckpointError, match=message) as error:
        make_engine(folder)
    assert "\n" not in str(error.value)


def test_an_expert_that_is_stored_dense_and_declared_packed_is_refused(tmp_path):
    folder, _ = make_packed(tmp_path, "qwen3_moe", FORMATS[0])
    name = "model.layers.2.mlp.experts.4.up_proj"

    def unpack(tensors: Tensors) -> None:
        for suffix in ("weight_packed", "weight_scale", "weight_shape"):
            del tensors[f"{name}.{suffix}"]
        tensors[f"{name}.weight"] = torch.zeros(64, 32, dtype=torch.bfloat16)

    edit_tensors(folder, unpack)
    with pytest.raises(CheckpointError, match=rf"{re.escape(name)} is stored dense \(bf16\)"):
        make_engine(folder)


def test_fewer_experts_in_the_config_than_in_the_files_is_an_error(tmp_path):
    folder = make_checkpoint(tmp_path, "qwen3_moe")
    edit_config(folder, num_local_experts=4)
    with pytest.raises(CheckpointError, match=r"experts\.4\.\w+\.weight is of expert 4, .* has 4"):
        make_engine(folder)


def test_bits_per_weight_count_experts_and_leave_routers_out(tmp_path):
    folder, _ = make_packed(tmp_path, "mixtral", FORMATS[0])
    summary = summarize(open_checkpoint(str(folder)))
    assert summary.formats["W4A16 g32"].modules == 3 * 6 * 3
    experts = 3 * 6 * 3 * 32 * 64
    attention = 3 * (2 * 32 * 32 + 2 * 16 * 32)
    bits = (experts * 4.5 + attention * 16) / (experts + attention)
    assert summary.body_bits == pytest.approx(bits)
