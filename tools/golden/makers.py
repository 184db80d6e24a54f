"""Texts and random models that are measured, each as the same seed makes it.

The models are made by the tests' own builders (`tests/support`), which are the only modules of the
project that are imported for it.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

VOCABULARY = 1024  # of the demo's tokenizer, which the random models are given

# Name of a random model → the dtypes that it is measured in.
MODELS: dict[str, tuple[str, ...]] = {
    "mixtral": ("float32", "bfloat16"),
    "mixtral-NVFP4": ("bfloat16",),
    "qwen3_moe": ("bfloat16",),
    "gpt_oss": ("bfloat16",),
    "deepseek_v3": ("float32",),
    "bamba": ("bfloat16", "float32"),
    "jamba": ("bfloat16",),
    "gemma2": ("bfloat16", "float32"),
    "gemma4_text": ("bfloat16", "float32"),
    "heads": ("bfloat16", "float32"),
    "heads-tied": ("bfloat16",),
    "presets": ("bfloat16", "float32"),
}
# Architectures that the tests have no settings of.
_GEMMA4 = {
    "num_kv_shared_layers": 1,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "sliding_window": 7,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCABULARY,
}
_BAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "attn_layer_indices": [1],
}
_JAMBA = {
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "head_dim": None,
}
# Name of a model → its builder in `tests/support/families`, and what `make_pair` there is given.
FOREIGN: dict[str, tuple[str, tuple[Any, ...]]] = {
    "hqq-4": ("hqq", ("llama", 4, 16, 1)),
    "hqq-3": ("hqq", ("llama", 3, 16, 0)),
    "hqq-8-experts": ("hqq", ("qwen3_moe", 8, 16, 1)),
    "mlx-4": ("mlx", ("llama", 4, 32)),
    "mlx-6-experts": ("mlx", ("qwen3_moe", 6, 32)),
    "exl3-4": ("exl3", ("llama", 4, "mul1")),
    "exl3-3-tied": ("exl3", ("llama-tied", 3, "mcg")),
    "exl3-2-experts": ("exl3", ("qwen3_moe", 2, "3inst")),
    "torchao-Int8": ("torchao", ("llama", "Int8")),
    "torchao-Int8-dynamic": ("torchao", ("llama", "Int8", True)),
    "torchao-Float8": ("torchao", ("llama", "Float8")),
    "torchao-Float8-dynamic": ("torchao", ("llama", "Float8", True)),
    **{
        f"quark-{kind.replace(' ', '-')}": ("quark", ("llama", kind))
        for kind in ("fp8", "ptpc", "int8", "mxfp4", "mxfp4 weights", "int4", "uint4")
    },
    **{
        f"modelopt-{name}": ("modelopt", ("llama", name))
        for name in ("NVFP4", "W4A16_NVFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "MXFP8",
                     "NVFP4_AWQ", "W4A16_AWQ", "W4A8_AWQ")
    },
    "bitsandbytes-nf4": ("bitsandbytes", ("llama", "nf4")),
    "bitsandbytes-fp4-double": ("bitsandbytes", ("llama", "fp4", True)),
    "bitsandbytes-int8": ("bitsandbytes", ("llama", "int8")),
    "fp8-blocks": ("float8_blocks", ("llama", (16, 16))),
    "fp8-blocks-experts": ("float8_blocks", ("qwen3_moe", (16, 16))),
    "mxfp4": ("mxfp4_experts", ()),
}  # fmt: skip
# Name of a model → the fields of its recipe in `tests/support/families/qweight.py`, and its config.
_GROUPS = {"bits": 4, "group_size": 32}
_AWQ = {"quant_method": "awq", "zero_point": True, "version": "gemm"} | _GROUPS
_GPTQ = {"quant_method": "gptq", "sym": False, "desc_act": True} | _GROUPS
_ROUND = {"quant_method": "auto-round", "sym": True, "packing_format": "auto_round:auto_gptq"}
QWEIGHT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "awq": ({"order": "outputs"}, _AWQ),
    "awq-gemv": ({"order": "gemv"}, _AWQ | {"version": "gemv"}),
    "gptq-ordered": ({"less_one": True, "ordered": True}, _GPTQ),
    "gptq-v2-8": ({"bits": 8}, _GPTQ | {"bits": 8, "checkpoint_format": "gptq_v2"}),
    "auto-round": ({"symmetric": True, "less_one": True}, _ROUND | _GROUPS),
}
FOREIGN |= dict.fromkeys(QWEIGHT, ("qweight", ("llama",)))
# Types of the blocks of one file, by turns.
BLOCKS = {
    "blocks-legacy": ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    "blocks-k": ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    "blocks-i": ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL",
                 "IQ4_XS"),
    "blocks-other": ("TQ1_0", "TQ2_0", "MXFP4", "BF16"),
}  # fmt: skip
GGUF_ARITHMETIC = ("blocks-legacy", "blocks-k")
# Files as llama.cpp's converter writes them, with their own tokenizers.
CONVERTED = ("llama", "gemma3", "qwen3_moe", "gpt_oss", "deepseek_v2")
GGUF = (*BLOCKS, *CONVERTED, "llama-Q8_0")

_REPLIES = (
    "{% for m in messages %}[{{ m.role }}]\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n{% endif %}"
)
TEMPLATES = {
    "plain": "{{ bos_token }}" + _REPLIES,
    # Who generates is marked, as transformers has it.
    "marked": "{{ bos_token }}{% for m in messages %}[{{ m.role }}]\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}",
    # Today's date, thoughts that are left out of earlier turns, and a field of the caller's.
    "chatml": "{% set last = messages | length - 1 %}Today: {{ strftime_now('%d %b %Y') }}\n"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.index0 == last and enable_thinking is not defined %}"
    "<think>\n\n</think>\n\n{% endif %}{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    # Roles as words before each turn, and the end after the last one alone.
    "words": "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n"
    "{% elif m.role == 'user' %}USER: {{ m.content }} {% else %}ASSISTANT: {{ m.content }}"
    "{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}",
}
DOMAINS = ("code", "math", "talk")


def make_texts(work: Path, held: str) -> None:
    """Writes what is read beside models, out of one text."""
    (work / "text.txt").write_text(held[:12_000], encoding="utf-8")
    (work / "small.txt").write_text(held[:3_000], encoding="utf-8")
    (work / "calibration.txt").write_text(held[5_000:7_000] + held[30_000:34_000], encoding="utf-8")
    (work / "prompts.txt").write_text("The same value\nis computed once\n", encoding="utf-8")
    for name, template in TEMPLATES.items():
        (work / f"{name}.jinja").write_text(template, encoding="utf-8")
    words, at = held.split(), 0

    def some(count: int) -> str:
        nonlocal at
        at += count
        return " ".join(words[at - count : at])

    chats = []
    for i in range(12):
        messages = [{"role": "system", "content": "Answer."}] if i % 3 == 0 else []
        for turn in range(1 + i % 3):
            for role in ("user", "assistant"):
                messages.append({"role": role, "content": some(2 + (7 * i + 3 * turn) % 11)})
        chats.append({"messages": messages, "domain": DOMAINS[i % 3]})
    _write_rows(work / "chats.jsonl", chats)
    rows = [{"text": some(20 + 7 * i % 13), "domain": DOMAINS[i % 3]} for i in range(30)]
    _write_rows(work / "rows.jsonl", rows)
    pages = [{"page": some(count), "domain": DOMAINS[count % 3]} for count in (200, 61, 150, 3)]
    _write_rows(work / "pages.jsonl", pages)
    articles = [f" = Title {i} = \n \n {row['page']} \n" for i, row in enumerate(pages)]
    (work / "wiki.raw").write_text(" \n" + "".join(articles), encoding="utf-8")
    (work / "sweep.toml").write_text(_SWEEP, encoding="utf-8")


_SWEEP = """
base = "model"
models = ["demo/models/W4A16-g32", "demo/models/W3A16-g32"]
texts = "small.txt"
flags.device = "cpu"
flags.dtype = "float32"
flags.batch-size = 4
flags.max-memory = "256MiB"
[[protocols]]
protocol = "disjoint"
context-length = 64
[[protocols]]
protocol = "strided"
context-length = 32
stride = 16
"""


def _write_rows(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def make_models(folder: Path, names: Callable[[str], bool]) -> None:
    """Writes the random models: those in formats that are not compressed-tensors' only where `names`
    takes their name."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
    from support import models
    from transformers.utils import logging

    logging.disable_progress_bar()
    models.ARCHITECTURES |= {"gemma4_text": _GEMMA4, "bamba": _BAMBA, "jamba": _JAMBA}
    models._SHAPE["vocab_size"] = VOCABULARY
    _make_compressed(folder)
    for name in filter(names, FOREIGN):
        _make_foreign(folder / "foreign", name)
    (folder / "gguf").mkdir(parents=True)
    for name in filter(names, BLOCKS):
        _make_blocks(folder / "gguf" / f"{name}.gguf", BLOCKS[name])
    _make_converted(folder, names)


def _make_compressed(folder: Path) -> None:
    """Dense models, and of some their copies in compressed-tensors."""
    import torch
    from safetensors.torch import load_file, save_file
    from support import models, quantized

    def dense(name: str, at: str | None = None, **changes: Any) -> Path:
        def change(settings: dict[str, Any]) -> None:
            settings |= changes

        return models.make_checkpoint(
            folder / (at or name), name, dtype=torch.bfloat16, change=change
        )

    def quantize(source: Path, at: str, presets: Mapping[str, str], *, cache: bool = False) -> None:
        """A copy of `source` whose linears, by module name, have a preset's format."""
        tensors, groups, config = load_file(source / "model.safetensors"), {}, {}
        for number, (module, name) in enumerate(presets.items()):
            weight = tensors.pop(f"{module}.weight")
            drawn = torch.randn(
                64, weight.shape[1], generator=torch.Generator().manual_seed(number)
            )
            linear = quantized.LibraryLinear(
                weight, quantized.preset(name), 2 * drawn.to(weight.dtype)
            )
            tensors |= {f"{module}.{suffix}": value for suffix, value in linear.stored().items()}
            config = linear.config()
            (group,) = config["config_groups"].values()
            groups[f"group_{number}"] = group | {"targets": [module]}
        shutil.copytree(source, folder / at)
        if cache:
            config = {"quant_method": "compressed-tensors", "format": "dense"}
            config["kv_cache_scheme"] = {"num_bits": 8, "type": "float", "strategy": "tensor",
                                         "dynamic": True, "symmetric": True}  # fmt: skip
        elif len(set(presets.values())) > 1:
            config["format"] = "mixed-precision"
        save_file(tensors, folder / at / "model.safetensors", metadata={"format": "pt"})
        models.edit_config(folder / at, quantization_config=config | {"config_groups": groups})

    for name in ("qwen3_moe", "gpt_oss", "deepseek_v3", "bamba", "jamba", "gemma2", "gemma4_text"):
        dense(name)
    wide = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
    mixtral = dense("mixtral", hidden_size=64, intermediate_size=128)
    experts = [k.removesuffix(".weight") for k in _tensors_of(mixtral) if ".experts." in k]
    quantize(mixtral, "mixtral-NVFP4", dict.fromkeys(experts, "NVFP4"))
    llama = dense("llama", **wide)
    linears = [k.removesuffix(".weight") for k in _tensors_of(llama) if k.endswith("_proj.weight")]
    # Each linear with the next preset; five layers have 35.
    deep = dense("llama", "llama-deep", **wide, num_hidden_layers=5)
    modules = [k.removesuffix(".weight") for k in _tensors_of(deep) if k.endswith("_proj.weight")]
    kinds = sorted(quantized.PRESETS)
    if len(kinds) > len(modules):
        raise RuntimeError(f"{len(kinds)} presets for {len(modules)} linears")
    quantize(deep, "presets", {m: kinds[i % len(kinds)] for i, m in enumerate(modules)})
    ends = {"model.embed_tokens": "W8A16", "lm_head": "W6A16"}
    quantize(llama, "heads", ends | dict.fromkeys(linears, "W4A16"))
    tied = dense("llama", "llama-tied", **wide, tie_word_embeddings=True)
    quantize(tied, "heads-tied", {"model.embed_tokens": "W8A16"} | dict.fromkeys(linears, "W4A16"))
    quantize(llama, "cache", {}, cache=True)


def _tensors_of(folder: Path) -> list[str]:
    """The tensors of a checkpoint of one file, sorted."""
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as file:
        return sorted(file.keys())


def _make_foreign(folder: Path, name: str) -> None:
    """One of FOREIGN, at `folder`/NAME."""
    from importlib import import_module

    builder, given = FOREIGN[name]
    module = import_module(f"support.families.{builder}")
    config: dict[str, Any] = {}
    if name in QWEIGHT:
        recipe, config = QWEIGHT[name]
        given = (*given, module.Recipe(**recipe))
    elif builder == "exl3":
        # In whole blocks, and with this vocabulary for all that.
        def change(settings: dict[str, Any]) -> None:
            module.whole_blocks(settings)
            settings["vocab_size"] = VOCABULARY

        config = {"change": change}
    packed, dense = module.make_pair(folder / f"{name}-pair", *given, **config)
    packed.rename(folder / name)
    shutil.rmtree(dense)


def _make_blocks(file: Path, kinds: tuple[str, ...], layers: int = 2, width: int = 256) -> None:
    """A GGUF file of a random llama whose matrices are in blocks of these types by turns."""
    import gguf
    import numpy as np
    from support.gguf.blocks import sizes, tame_blocks

    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(width)
    writer.add_block_count(layers)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    matrices = {"token_embd": VOCABULARY, "output": VOCABULARY}
    for layer in range(layers):
        parts = {"attn_q": width, "attn_k": width // 2, "attn_v": width // 2, "attn_output": width}
        parts |= dict.fromkeys(("ffn_gate", "ffn_up", "ffn_down"), width)
        matrices |= {f"blk.{layer}.{part}": rows for part, rows in parts.items()}
    norms = ["output_norm"]
    norms += [f"blk.{layer}.{part}_norm" for layer in range(layers) for part in ("attn", "ffn")]
    for nth, (name, rows) in enumerate(matrices.items()):
        kind = kinds[nth % len(kinds)]
        number = gguf.GGMLQuantizationType[kind]
        if kind == "BF16":
            values = np.random.default_rng(nth).standard_normal((rows, width), np.float32) / 10
            packed = gguf.quantize(values, number)
        else:
            packed = tame_blocks(kind, rows, width // sizes(kind)[0], seed=nth).numpy()
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=number)
    for nth, name in enumerate(norms):
        drawn = np.random.default_rng(nth).standard_normal(width, np.float32)
        writer.add_tensor(f"{name}.weight", 1 + drawn / 10)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _make_converted(folder: Path, names: Callable[[str], bool]) -> None:
    """Those of CONVERTED, and the first of them in Q8_0."""
    from support.gguf.golden import make_pair, with_types

    for name in CONVERTED:
        if names(name) or (name == CONVERTED[0] and names("llama-Q8_0")):
            _, file = make_pair(folder / "converted" / name, name)
            file.rename(folder / "gguf" / f"{name}.gguf")
    if names("llama-Q8_0"):
        source = folder / "gguf" / f"{CONVERTED[0]}.gguf"
        target = folder / "gguf" / "llama-Q8_0.gguf"
        with_types(source, target, lambda name, shape: "Q8_0" if len(shape) > 1 else None)
