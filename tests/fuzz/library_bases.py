"""The small valid checkpoints of the libraries beside compressed-tensors."""

import json
from typing import Any

import torch
from fuzz.files import MODELOPT, Files, join, split
from fuzz.tiny import COLUMNS, QUANTIZED, ROWS, checkpoint, plain
from support.families import mlx as mlx_models
from support.families.modelopt import FORMATS
from support.families.modelopt import config as modelopt_config
from support.families.modelopt import file as modelopt_file
from support.families.qweight import Recipe
from support.families.qweight import quantize as quantize_words
from support.family import all_cases
from support.golden_libraries import golden

Tensors = dict[str, torch.Tensor]
# Outputs fill whole words at any number of bits.
_HIGH, _WIDE = 32, 96
_AUTO_ROUND = {
    "auto_gptq": Recipe(less_one=True),
    "auto_awq": Recipe(order="outputs"),
    "": Recipe(8, symmetric=True),
}


def library_bases() -> dict[str, Files]:
    return {
        **_cases(),
        "MLX mixed": _mlx_mixed(),
        **_modelopts(),
        **_words(),
        **_torchao(),
        **_wrapped(),
    }


def _cases() -> dict[str, Files]:
    """Two modules as each case stores them, in whole blocks."""
    bases = {}
    for name, case in all_cases():
        tensors, metadata = plain(), {}
        high, wide = (max(ROWS, 8), COLUMNS) if name == "quark" else (ROWS, COLUMNS)
        for module in QUANTIZED:
            weight = torch.randn(high, wide).bfloat16()
            stored = case.quantize(weight)
            tensors |= {f"{module}.{k}": v.contiguous() for k, v in stored.items() if k != "dense"}
            if case.metadata is not None:
                metadata[f"{module}.weight"] = case.metadata(weight)
        # MLX's config names no method, and stands at another place.
        said = {} if "quant_method" in case.config else {"quantization": case.config}
        declared = None if said else case.config
        bases[f"{name} {case.name}"] = checkpoint(tensors, declared, metadata, **said)
    return bases


def _modelopts() -> dict[str, Files]:
    bases = {}
    for algorithm in FORMATS:
        if algorithm.endswith("_AWQ"):
            tensors = _modelopt(dict.fromkeys(QUANTIZED, algorithm))
            tensors[f"{QUANTIZED[0]}.pre_quant_scale"] = torch.rand(COLUMNS).bfloat16() + 0.5
            bases[f"ModelOpt {algorithm}"] = checkpoint(tensors, modelopt_config(algorithm))
        if algorithm in ("NVFP4", "FP8", "W4A16_AWQ", "MXFP8"):
            tensors = _modelopt(dict.fromkeys(QUANTIZED, algorithm))
            alone = checkpoint(tensors, None)
            alone[MODELOPT] = json.dumps(modelopt_file(algorithm, "lm_head", "*.gate")).encode()
            bases[f"ModelOpt {algorithm} alone"] = alone
    return bases | {"ModelOpt mixed": _modelopt_mixed()}


def _modelopt(algorithms: dict[str, str]) -> Tensors:
    """Modules, each as its algorithm stores it."""
    tensors = plain()
    for module, algorithm in algorithms.items():
        stored = FORMATS[algorithm].store(torch.randn(ROWS, COLUMNS).bfloat16())
        tensors |= {f"{module}.{k}": v for k, v in stored.items()}
    return tensors


def _modelopt_mixed() -> Files:
    """A module by its own name, one by that of the module around it; a cache's scales."""
    first, second = QUANTIZED
    tensors = _modelopt({first: "FP8", second: "W4A8_AWQ"})
    tensors[f"{first}.k_scale"] = torch.tensor(0.03)
    tensors[f"{second}.pre_quant_scale"] = torch.rand(COLUMNS).bfloat16() + 0.5
    layers = {first: {"quant_algo": "FP8"}, "model.layers.1.mlp": {"quant_algo": "W4A8_AWQ"}}
    fields = {"quantized_layers": layers, "kv_cache_quant_algo": "FP8"}
    return checkpoint(tensors, modelopt_config("MIXED_PRECISION", **fields))


def _mlx_mixed() -> Files:
    """Two widths by name, as mlx-lm's recipes have them; and the config twice."""
    tensors, named = plain(), {}
    for module, bits, size in ((QUANTIZED[0], 6, 64), (QUANTIZED[1], 4, 32)):
        stored = mlx_models.quantize(torch.randn(ROWS, COLUMNS).half(), bits, size)
        tensors |= {f"{module}.{k}": v for k, v in stored.items() if k != "dense"}
        named[module] = {"group_size": size, "bits": bits}
    fields = {"group_size": 32, "bits": 4, "mode": "affine", QUANTIZED[0]: named[QUANTIZED[0]]}
    fields |= {"lm_head": False}
    return checkpoint(tensors, None, quantization=fields, quantization_config=fields)


def _of_words(config: dict[str, Any], *recipes: Recipe, g_idx: bool = True) -> Files:
    """The first module by the first recipe, the second by the last; `g_idx` where one is packed."""
    tensors = plain()
    for module, recipe in zip(QUANTIZED, (recipes[0], recipes[-1]), strict=True):
        stored, _ = quantize_words(torch.randn(_HIGH, _WIDE), recipe)
        tensors |= {f"{module}.{k}": v for k, v in stored.items() if g_idx or k != "g_idx"}
    return checkpoint(tensors, config)


def gptq_config(recipe: Recipe, **others: Any) -> dict[str, Any]:
    """As GPTQModel writes it."""
    return {
        "quant_method": "gptq",
        "bits": recipe.bits,
        "group_size": recipe.size,
        "sym": recipe.symmetric,
        "desc_act": recipe.ordered,
        "checkpoint_format": "gptq" if recipe.less_one else "gptq_v2",
        "pack_dtype": "int32",
        "lm_head": False,
        "dynamic": None,
    } | others


def _words() -> dict[str, Files]:
    bases = {}
    for bits in (2, 3, 4, 8):
        recipe = Recipe(bits, less_one=bits != 8)
        bases[f"GPTQ {bits}"] = _of_words(gptq_config(recipe), recipe)
    symmetric = Recipe(symmetric=True, less_one=True)
    bases["GPTQ symmetric"] = _of_words(gptq_config(symmetric), symmetric)
    # One that says the first format and holds the second's zero points.
    second = Recipe(symmetric=True)
    told = gptq_config(second, checkpoint_format="gptq")
    bases["GPTQ of another format"] = _of_words(told, second, g_idx=False)
    for bits in (3, 4):
        ordered = Recipe(bits, ordered=True, scale=torch.bfloat16)
        bases[f"GPTQ ordered {bits}"] = _of_words(gptq_config(ordered), ordered)
    # A last group of 16 inputs.
    short = Recipe(size=40, less_one=True, scale=torch.float32)
    bases["GPTQ short group"] = _of_words(gptq_config(short), short, g_idx=False)
    whole = Recipe(size=-1, less_one=True)
    bases["GPTQ one group"] = _of_words(gptq_config(whole), whole)
    eight = Recipe(8, 48, symmetric=True, less_one=True)
    dynamic = {
        r"+:.*experts\.\d+\.up_proj": {"bits": 8, "group_size": 48, "sym": True},
        "-:.*gate": {},
    }
    some = gptq_config(short, dynamic=dynamic)
    bases["GPTQ dynamic"] = _of_words(some, short, eight)

    for name, recipe in (
        ("AWQ", Recipe(order="outputs")),
        ("AWQ symmetric", Recipe(symmetric=True, order="outputs")),
        ("AWQ one group", Recipe(size=-1, order="outputs", scale=torch.bfloat16)),
    ):
        fields = {"bits": 4, "group_size": recipe.size, "zero_point": not recipe.symmetric}
        fields |= {"quant_method": "awq", "version": "gemm", "modules_to_not_convert": ["lm_head"]}
        bases[name] = _of_words(fields, recipe)
    older = {"w_bit": 4, "q_group_size": 32, "zero_point": True, "version": "GEMM"}
    bases["AWQ of llm-awq"] = _of_words(older, Recipe(order="outputs"))

    for packing, recipe in _AUTO_ROUND.items():
        fields = _auto_round(recipe, f"auto_round:{packing}".removesuffix(":"))
        bases[f"AutoRound {packing}"] = _of_words(fields, recipe, g_idx=False)
    extra = {QUANTIZED[1]: {"bits": 2, "sym": True}, r".*\.gate": {"bits": 16}}
    fields = _auto_round(symmetric, "auto_round:auto_gptq") | {"extra_config": extra}
    two = Recipe(2, symmetric=True, less_one=True)
    bases["AutoRound extra"] = _of_words(fields, symmetric, two, g_idx=False)
    return bases


def _auto_round(recipe: Recipe, packing: str) -> dict[str, Any]:
    return {
        "quant_method": "auto-round",
        "autoround_version": "0.16.1",
        "bits": recipe.bits,
        "group_size": recipe.size,
        "sym": recipe.symmetric,
        "data_type": "int",
        "packing_format": packing,
        "block_name_to_quantize": "model.layers",
    }


def _torchao() -> dict[str, Files]:
    """The library's own, from the file of its answers."""
    bases = {}
    for case in ("int8-bf16", "int8-dynamic-f16", "float8-f32", "int4-group-f16", "int3-row-f32"):
        tensors, metadata = plain(), {}
        stored = dict(golden("torchao")[case])
        text = bytes(stored.pop("metadata").tolist()).decode()
        del stored["dense"]
        for module in QUANTIZED:
            tensors |= {f"{module}.{name}": tensor.clone() for name, tensor in stored.items()}
            metadata[f"{module}.weight"] = text
        fields = {"quant_method": "torchao", "modules_to_not_convert": ["lm_head"]}
        bases[f"torchao {case}"] = checkpoint(tensors, fields, metadata)
    # One scale for all, float8 inputs.
    tensors, metadata = plain(), {}
    dtype = {"_type": "torch.dtype", "_data": "bfloat16"}
    kind = {"_type": "PerTensor", "_data": {}}
    inputs = {"_type": "QuantizeTensorToFloat8Kwargs", "_data": {"granularity": kind}}
    data = {"block_size": [ROWS, COLUMNS], "dtype": dtype, "act_quant_kwargs": inputs}
    for module in QUANTIZED:
        codes = torch.randn(ROWS, COLUMNS).to(torch.float8_e4m3fn)
        tensors |= {f"{module}._weight_qdata": codes, f"{module}._weight_scale": torch.rand(1, 1)}
        metadata[f"{module}.weight"] = json.dumps({"_type": "Float8Tensor", "_data": data})
    fields = {"quant_method": "torchao"}
    return bases | {"torchao float8 tensor": checkpoint(tensors, fields, metadata)}


def _wrapped() -> dict[str, Files]:
    """As a model with eyes has them: all below `language_model`, the config beside its own."""
    recipe = Recipe(less_one=True)
    dynamic = {r"-:model\.language_model\.embed": {}}
    gptq = _of_words(gptq_config(recipe, dynamic=dynamic), recipe)
    awq = {"bits": 4, "group_size": 32, "quant_method": "awq", "version": "gemm"}
    awq["modules_to_not_convert"] = ["visual"]
    nvfp4 = modelopt_config("NVFP4", "lm_head", "model.visual*")
    bases = {
        "GPTQ": gptq,
        "AWQ": _of_words(awq, Recipe(order="outputs")),
        "ModelOpt": checkpoint(_modelopt(dict.fromkeys(QUANTIZED, "NVFP4")), nvfp4),
    }
    return {
        f"{name} wrapped": _below(files, i == 1) for i, (name, files) in enumerate(bases.items())
    }


def _below(files: Files, is_nested: bool) -> Files:
    header, data = split(files["model.safetensors"])
    header = {
        name.replace("model.layers", "model.language_model.layers"): entry
        for name, entry in header.items()
    }
    inner = json.loads(files["config.json"])
    outer = {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl"}
    outer["text_config"] = inner
    if not is_nested:
        outer["quantization_config"] = inner.pop("quantization_config")
    return {
        "config.json": json.dumps(outer).encode(),
        "model.safetensors": join(json.dumps(header), data),
    }
