"""Float8 experts stored as one, FP4 experts, and one scale a tensor: whole models against dense ones
of the same weights and the library's forward."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from support.engine import make_engine, score
from support.families.float8_blocks import (
    E4M3,
    LINEAR,
    Tensors,
    config,
    dequantize,
    make_pair,
    quantize,
    transformers_weight,
)
from support.families.mxfp4_experts import mxfp8
from support.models import (
    _SHAPE,
    ARCHITECTURES,
    edit_config,
    edit_tensors,
    library_logprobs,
    library_model,
    make_checkpoint,
    needs,
    random_plan,
)

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.torch.device import choose_device
from scoremode.engines.torch.matmul.linears import QuantizedMatmul, Windows
from scoremode.errors import UnsupportedModel
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.codes import Quantized, Scaling
from scoremode.schemes.fp8 import block_float8, fp4, parse_fp8
from scoremode.schemes.summary import summarize

BLOCK = (16, 16)
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.(\w+)$")


def fuse(tensors: Tensors) -> None:
    """Experts apart → as one, gate before up, as the library's own module has them."""
    apart = {key: EXPERT.fullmatch(key) for key in list(tensors)}
    of = {match.groups(): tensors.pop(key) for key, match in apart.items() if match}
    for experts in {key[0] for key in of}:
        count = len({key[1] for key in of if key[0] == experts})
        for suffix in {key[3] for key in of}:
            own = suffix.removeprefix("weight")

            def stacked(parts, experts=experts, suffix=suffix, count=count):
                each = [
                    torch.cat(
                        [of[experts, str(e), part, suffix].view(torch.uint8) for part in parts]
                    )
                    for e in range(count)
                ]
                return torch.stack(each).view(of[experts, "0", parts[0], suffix].dtype)

            tensors[f"{experts}.gate_up_proj{own}"] = stacked(("gate", "up"))
            tensors[f"{experts}.down_proj{own}"] = stacked(("down",))


@pytest.fixture(scope="module")
def fused(tmp_path_factory):
    """A model with experts as one; with experts apart; and a dense one of the same weights."""
    folder = tmp_path_factory.mktemp("fused")
    apart, dense = make_pair(folder / "apart", "qwen3_moe", BLOCK)
    one, _ = make_pair(folder / "one", "qwen3_moe", BLOCK)
    edit_tensors(one, fuse)
    edit_tensors(dense, fuse)
    return one, apart, dense


@pytest.mark.parametrize("arithmetic", ["weights", "weights+activations"])
def test_as_one_are_as_apart(arithmetic, fused):
    """To rounding: gate and up are one product, or two."""
    one, apart, _ = fused
    plan = random_plan()
    engine = make_engine(one, dtype="float32", arithmetic=arithmetic)
    assert engine.describe()["experts"] == "a layer at a time"
    ours = score(engine, plan).logprob
    theirs = score(make_engine(apart, dtype="float32", arithmetic=arithmetic), plan).logprob
    assert np.median(np.abs(ours - theirs)) < 1e-5 and np.abs(ours - theirs).mean() < 0.02
    assert theirs.std() > 0.5


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_as_one_equal_the_dense_one_to_the_bit(dtype, fused):
    one, _, dense = fused
    if dtype == "float32":
        # bfloat16 holds what float32 has of a product of float8 and float32 only in part.
        edit = decoded_of(one)
        dense = dense.parent / "dense float32"
        make_checkpoint(dense, "qwen3_moe", dtype=torch.float32)
        edit_tensors(dense, edit)
    plan = random_plan()
    ours = score(make_engine(one, dtype=dtype, arithmetic="weights"), plan)
    theirs = score(make_engine(dense, dtype=dtype), plan)
    assert np.array_equal(ours.logprob, theirs.logprob)


def decoded_of(folder: Path):
    """Replaces all tensors by the library's dequantized ones of another folder."""
    from safetensors.torch import load_file

    stored = load_file(folder / "model.safetensors")

    def edit(tensors: Tensors) -> None:
        tensors.clear()
        for name, tensor in stored.items():
            scale = stored.get(f"{name}_scale_inv")
            if not name.endswith("_scale_inv"):
                of = {"weight": tensor, "weight_scale_inv": scale}
                dense = tensor if scale is None else transformers_weight(of, torch.float32)
                tensors[name] = dense.float().contiguous()

    return edit


def test_equals_the_librarys_forward_of_its_dequantized_weights(fused, tmp_path):
    """Its own load on a CPU leaves the scales of experts that are stored as one aside."""
    one, _, _ = fused
    dense = make_checkpoint(tmp_path, "qwen3_moe", dtype=torch.float32)
    edit_tensors(dense, decoded_of(one))
    plan = random_plan()
    ours = score(make_engine(one, dtype="float32", arithmetic="weights"), plan).logprob
    theirs = library_logprobs(library_model(dense, torch.float32), plan)
    assert np.abs(ours - theirs).max() < 1e-5


def test_inspection_of_experts_as_one(fused):
    one, apart, _ = fused
    ours, theirs = (summarize(open_checkpoint(str(path))) for path in (one, apart))
    assert ours.refusals == {} and ours.body_bits == theirs.body_bits
    assert ours.parameters == theirs.parameters and ours.quantized == theirs.quantized


def test_experts_of_a_module_that_has_them_transposed(tmp_path):
    """Such as gpt-oss', which transformers refuses as well, for their biases."""
    make_checkpoint(tmp_path, "gpt_oss", dtype=torch.bfloat16)

    def pack(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("experts.down_proj")]:
            count, columns, rows = tensors[name].shape
            tensors[name] = torch.zeros(count, rows, columns).to(E4M3)
            tensors[f"{name}_scale_inv"] = torch.ones(count, rows // 16, columns // 16)

    edit_tensors(tmp_path, pack)
    edit_config(tmp_path, quantization_config=config(BLOCK))
    with pytest.raises(UnsupportedModel, match=r"experts.down_proj holds all experts in FP8 block"):
        make_engine(tmp_path)


def static_pair(folder: Path, name: str, *, blocks: bool) -> Path:
    """Every linear with a static scale of its input; as AutoFP8 has it, or with blocks."""
    packed, _ = make_pair(folder, name, BLOCK)
    scale = "weight_scale_inv" if blocks else "weight_scale"

    def add(tensors: Tensors) -> None:
        for key in [key for key in tensors if LINEAR.search(key)]:
            module = key.removesuffix(".weight")
            tensors[f"{module}.input_scale"] = torch.tensor(0.01)
            if not blocks:
                tensors.pop(f"{module}.weight_scale_inv")
                tensors[f"{module}.{scale}"] = torch.tensor(0.0025)

    edit_tensors(packed, add)
    fields = config(BLOCK, activation_scheme="static")
    if not blocks:
        del fields["weight_block_size"]
    edit_config(packed, quantization_config=fields)
    return packed


@pytest.mark.parametrize("blocks", [True, False])
def test_static_inputs_against_a_plain_forward(blocks, tmp_path):
    packed = static_pair(tmp_path, "llama", blocks=blocks)
    from safetensors.torch import load_file

    stored = load_file(packed / "model.safetensors")
    model = library_model(tmp_path / "dense", torch.float32)

    def quantized(module: torch.nn.Linear, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return (args[0] / 0.01).clamp(-448, 448).to(E4M3).float() * 0.01

    for name, module in model.named_modules():
        if not LINEAR.search(f"{name}.weight"):
            continue
        scale = stored.get(f"{name}.weight_scale_inv", torch.tensor([[0.0025]]))
        of = {"weight": stored[f"{name}.weight"], "weight_scale_inv": scale}
        with torch.no_grad():
            module.weight.copy_(transformers_weight(of, torch.float32))
        module.register_forward_pre_hook(quantized)
    plan = random_plan()
    engine = make_engine(packed, dtype="float32")
    (product,) = {p["inputs"] for p in engine.describe()["products"]}
    assert product == "float8 tensor static"
    ours, theirs = score(engine, plan).logprob, library_logprobs(model, plan)
    # A code that falls to the other side in one of them moves what follows.
    assert np.median(np.abs(ours - theirs)) < 1e-4 and np.abs(ours - theirs).mean() < 0.02
    assert theirs.std() > 0.1


def test_static_scales_of_each_expert(fused, tmp_path):
    """Those of experts apart are the same model; one of zero is named."""
    from shutil import copytree

    one, apart, _ = fused
    scales = {}
    for source, name in ((one, "one"), (apart, "apart")):
        copytree(source, tmp_path / name)
        edit_config(tmp_path / name, quantization_config=config(BLOCK, activation_scheme="static"))

    def add_apart(tensors: Tensors) -> None:
        for key in [key for key in tensors if LINEAR.search(key)]:
            match = EXPERT.fullmatch(key)
            value = 0.01 * (1 + int(match[2])) if match else 0.02
            tensors[key.replace(".weight", ".activation_scale")] = torch.tensor(value)

    def add_fused(tensors: Tensors) -> None:
        for key in list(tensors):
            if key.endswith(("experts.gate_up_proj", "experts.down_proj")):
                scales[key] = torch.tensor([0.01 * (1 + e) for e in range(len(tensors[key]))])
                tensors[f"{key}_activation_scale"] = scales[key]
            elif LINEAR.search(key):
                tensors[key.replace(".weight", ".activation_scale")] = torch.tensor(0.02)

    edit_tensors(tmp_path / "one", add_fused)
    edit_tensors(tmp_path / "apart", add_apart)
    plan = random_plan()
    ours = score(make_engine(tmp_path / "one", dtype="float32"), plan).logprob
    theirs = score(make_engine(tmp_path / "apart", dtype="float32"), plan).logprob
    assert np.median(np.abs(ours - theirs)) < 1e-5 and np.abs(ours - theirs).mean() < 0.02


# A layer of every kind: attention in a window, compressed by 4 and by 128; a router by token, by score.
DEEPSEEK_V4 = {
    "head_dim": 32,
    "hidden_size": 64,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 32,
    "o_lora_rank": 32,
    "o_groups": 2,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "hc_mult": 2,
    "num_hash_layers": 1,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 8,
    "sliding_window": 8,
    "compress_ratios": [0, 4, 128],
    "num_nextn_predict_layers": 0,
}


V4_LINEAR = re.compile(r"(experts(\.\d+)?|\.attn)\.w\w+\.weight$")


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory):
    """DeepSeek-V4 as published, with FP4 experts; and the dense one of the same weights."""
    needs("deepseek_v4")
    folder = tmp_path_factory.mktemp("deepseek")
    packed, dense = folder / "packed", folder / "dense"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ARCHITECTURES, "deepseek_v4", DEEPSEEK_V4)
        for target in (packed, dense):
            make_checkpoint(target, "deepseek_v4", dtype=torch.bfloat16)
    draw = torch.Generator().manual_seed(0)
    stored: dict[str, Tensors] = {}

    def of(tensors: Tensors) -> dict[str, Tensors]:
        for key in sorted(tensors):
            if key in stored or not V4_LINEAR.search(key):
                continue
            rows, columns = tensors[key].shape
            if ".experts." in key:
                codes = torch.randint(0, 256, (rows, columns // 2), generator=draw)
                scales = torch.randint(120, 125, (rows, columns // 32), generator=draw)
                scale = scales.to(torch.uint8).view(torch.float8_e8m0fnu)
                stored[key] = {
                    "weight": codes.to(torch.uint8).view(torch.int8),
                    "weight_scale_inv": scale,
                }
            else:
                stored[key] = quantize(tensors[key], (32, 32), torch.float8_e8m0fnu)
        return stored

    def pack(tensors: Tensors) -> None:
        for key, parts in of(tensors).items():
            tensors[key] = parts["weight"]
            tensors[key.replace(".weight", ".scale")] = parts["weight_scale_inv"]
        for key in list(tensors):
            tensors[key.removeprefix("model.")] = tensors.pop(key)

    def decode(tensors: Tensors) -> None:
        for key, parts in of(tensors).items():
            tensors[key] = transformers_weight(parts, torch.bfloat16)

    edit_tensors(packed, pack)
    edit_tensors(dense, decode)
    quantization = config((32, 32), scale_fmt="ue8m0")
    edit_config(packed, quantization_config=quantization, expert_dtype="fp4")
    # Experts, those that all tokens take, attention.
    assert len(stored) == 3 * (4 * 3 + 3 + 5)
    return packed, dense


def test_deepseek_v4_equals_the_dense_one_to_the_bit(deepseek):
    packed, dense = deepseek
    plan = random_plan()
    try:
        library_logprobs(library_model(dense, torch.bfloat16, "eager"), plan)
    except RuntimeError as error:
        # 5.17 multiplies float32 streams by bfloat16 weights.
        pytest.skip(f"transformers {transformers.__version__} does not run it: {error}")
    for dtype in ("bfloat16", "float32"):
        engine = make_engine(packed, dtype=dtype, arithmetic="weights")
        assert engine.describe()["layers"] == "layer by layer"
        ours, theirs = score(engine, plan), score(make_engine(dense, dtype=dtype), plan)
        assert np.array_equal(ours.logprob, theirs.logprob)
    library = library_logprobs(library_model(dense, torch.float32, "eager"), plan)
    assert np.abs(ours.logprob - library).max() < 1e-4


def test_deepseek_v4_inspected(deepseek):
    summary = summarize(open_checkpoint(str(deepseek[0])))
    assert summary.refusals == {}
    assert summary.formats["FP4 g32 ue8m0"].bits == 4.25
    assert summary.formats["FP4 g32 ue8m0"].modules == 3 * 4 * 3


def quantized_v4(dense):
    """transformers' model that rounds the inputs of all linears with scales, experts' too."""
    model = library_model(dense, torch.float32, "eager")

    def forward(experts):
        def run(hidden, index, weights):
            total = torch.zeros_like(hidden)
            for expert in index.unique().tolist():
                token, choice = torch.where(index == expert)
                gate_up = mxfp8(hidden[token]) @ experts.gate_up_proj[expert].T
                y = mxfp8(experts._apply_gate(gate_up)) @ experts.down_proj[expert].T
                total.index_add_(0, token, y * weights[token, choice, None])
            return total

        return run

    for layer in model.model.layers:
        layer.mlp.experts.forward = forward(layer.mlp.experts)
        linears = [m for m in layer.self_attn.children() if isinstance(m, torch.nn.Linear)]
        linears += layer.mlp.shared_experts.children()
        linears = [m for m in linears if isinstance(m, torch.nn.Linear)]
        assert len(linears) == 5 + 3
        for linear in linears:
            linear.register_forward_pre_hook(lambda _, args: mxfp8(args[0]))
    return model


def test_deepseek_v4_with_declared_inputs(deepseek):
    """Those of its grouped output projection, too, in groups of 32."""
    packed, dense = deepseek
    plan = random_plan()
    engine = make_engine(packed, dtype="float32")
    ours = score(engine, plan).logprob
    theirs = library_logprobs(quantized_v4(dense), plan)
    weights = score(make_engine(packed, dtype="float32", arithmetic="weights"), plan).logprob
    # A code that falls to the other side in one of them moves what follows.
    agreeing, other = (np.quantile(np.abs(x - theirs), 0.2) for x in (ours, weights))
    assert agreeing < 1e-4 and other > 20 * agreeing
    products = engine.describe()["products"]
    assert {p["format"]: p["linears"] for p in products} == {
        "FP4 g32 ue8m0": 3 * 4 * 3,
        "FP8 block 32x32 ue8m0": 3 * (5 + 3),
    }


def test_experts_as_one_in_a_wrapper(tmp_path):
    """As a model that also sees has them: Kimi-K2.5's language model is DeepSeek-V3."""
    packed, _ = make_pair(tmp_path, "deepseek_v3", BLOCK)
    vision = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    plan = random_plan()
    expected = score(make_engine(packed, dtype="bfloat16", arithmetic="weights"), plan).logprob
    fields = json.loads((packed / "config.json").read_text())
    whole = {
        "model_type": "kimi_k25",
        "architectures": ["KimiK25ForConditionalGeneration"],
        "vision_config": vision,
        "tie_word_embeddings": False,
        "text_config": fields,
    }

    def rename(tensors: Tensors) -> None:
        fuse(tensors)
        for name in list(tensors):
            tensors[f"language_model.{name}"] = tensors.pop(name)

    edit_tensors(packed, rename)
    (packed / "config.json").write_text(json.dumps(whole))
    engine = make_engine(packed, dtype="bfloat16", arithmetic="weights")
    assert "experts.gate_up_proj" in " ".join(engine.parts.weights.tensors_of_layers()[1])
    ours = score(engine, plan).logprob
    assert np.abs(ours - expected).mean() < 0.05 and expected.std() > 0.5


def make_qwen3_vl_moe(folder: Path) -> None:
    from transformers import AutoConfig, AutoModelForImageTextToText

    text = _SHAPE | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    text["rope_parameters"] = {"rope_type": "default", "mrope_section": [2, 1, 1]}
    vision = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16}
    vision |= {"out_hidden_size": 32, "deepstack_visual_indexes": [0], "num_position_embeddings": 4}
    fields = AutoConfig.for_model("qwen3_vl_moe", text_config=text, vision_config=vision)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(fields, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    model.to(torch.bfloat16).save_pretrained(folder)


@pytest.mark.parametrize("transposed", [True, False])
def test_experts_that_a_rule_of_the_librarys_transposes(transposed, tmp_path):
    """Qwen3-VL has them as [E, D, 2I], which its rule turns where it has to: the whole is converted."""
    for name in ("packed", "dense"):
        make_qwen3_vl_moe(tmp_path / name)

    def stored_of(name: str, weight: torch.Tensor) -> Tensors:
        each = [quantize(one, BLOCK) for one in weight]
        codes = torch.stack([e["weight"].view(torch.uint8) for e in each]).view(E4M3)
        scales = torch.stack([e["weight_scale_inv"] for e in each])
        return {"weight": codes, "weight_scale_inv": scales}

    def pack(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
            weight = tensors[name] if transposed else tensors[name].transpose(1, 2).contiguous()
            stored = stored_of(name, weight)
            tensors[name] = stored["weight"]
            tensors[f"{name}_scale_inv"] = stored["weight_scale_inv"]

    def decode(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
            stored = stored_of(name, tensors[name])
            tensors[name] = transformers_weight(stored, torch.bfloat16)

    edit_tensors(tmp_path / "packed", pack)
    edit_tensors(tmp_path / "dense", decode)
    edit_config(tmp_path / "packed", quantization_config=config(BLOCK))
    plan = random_plan()
    ours = score(make_engine(tmp_path / "packed", dtype="bfloat16", arithmetic="weights"), plan)
    theirs = score(make_engine(tmp_path / "dense", dtype="bfloat16"), plan)
    assert np.array_equal(ours.logprob, theirs.logprob) and theirs.logprob.std() > 0.5
    with pytest.raises(UnsupportedModel, match="--arithmetic weights measures it without"):
        make_engine(tmp_path / "packed")


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("form", ["fp4", "block", "tensor"])
def test_products_of_codes(form, static):
    """Against float64 products of what the codes stand for."""
    draw = torch.Generator().manual_seed(0)
    block = None if form == "tensor" else (16, 128)
    scales = {"activation_scheme": "static"} if static else {"scale_fmt": "ue8m0"}
    fields = parse_fp8(config() | {"weight_block_size": block} | scales)
    inputs = Inputs(fields.inputs, ("input_scale",) if static else ())
    if form == "fp4":
        codes = torch.randint(0, 256, (24, 160), generator=draw).to(torch.uint8).view(torch.int8)
        exponents = torch.randint(100, 140, (24, 10), generator=draw).to(torch.uint8)
        stored = {"weight": codes, "weight_scale_inv": exponents.view(torch.float8_e8m0fnu)}
        scheme = fp4(Scaling((24, 320), "group", 32), inputs=inputs)
    else:
        size = block or (24, 320)
        stored = quantize(torch.randn(24, 320, generator=draw), size)
        scaling = (
            Scaling((24, 320), "block", block=block) if block else Scaling((24, 320), "tensor")
        )
        scheme = block_float8(scaling, inputs=inputs)
    matmul = QuantizedMatmul(scheme, choose_device("cpu", None, None), Windows())
    codes = torch.empty(scheme.shape, dtype=matmul.product.dtype)
    scale = scheme.factor(stored, codes, Scratch())
    given = {"input_scale": torch.tensor(0.01)} if static else {}
    matmul.load(Quantized(codes, scale), given, Scratch())
    x = torch.randn(7, 320, generator=draw)
    if static:
        meant = (x / 0.01).clamp(-448, 448).to(E4M3).double() * given["input_scale"].double()
    else:
        columns = 320 if block is None else 128
        parts = [
            (part / step).to(E4M3).double() * step.double()
            for part in x.split(columns, 1)
            for step in [torch.exp2((part.abs().amax(1, keepdim=True) / 448).log2().ceil())]
        ]
        meant = torch.cat(parts, 1)
    weight = transformers_weight(stored, torch.float32) if form != "block" else None
    if weight is None:
        weight = dequantize(stored, (16, 128), torch.float32)
    expected, bound = meant @ weight.double().T, meant.abs() @ weight.double().abs().T
    assert ((matmul(x, None) - expected).abs() <= 1e-6 * bound).all()
