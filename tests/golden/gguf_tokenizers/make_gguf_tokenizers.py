"""Makes `answers.json.xz`: small vocabularies and the ids that llama.cpp's own llama-tokenize gives
for hard texts, with special tokens and without, for every way of splitting that it has.

    python tests/golden/gguf_tokenizers/make_gguf_tokenizers.py SOURCE BIN

SOURCE is llama.cpp's folder (for the vocabularies of GPT-2, Llama 2, Phi-3 and Gemma 4 in `models/`, of
which the first merges and tokens are taken), BIN the folder of its tools.
"""

from __future__ import annotations

import ast
import json
import lzma
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from support.gguf.vocabularies import (
    BYTE,
    CONTROL,
    NORMAL,
    TEXTS,
    UNKNOWN,
    USER_DEFINED,
    metadata_of,
    write_gguf,
)

from scoremode.checkpoint.gguf.header import read_gguf
from scoremode.checkpoint.gguf.pre_tokenizers import SPLITS

MODEL = {
    "general.architecture": "llama",
    "llama.context_length": 64,
    "llama.embedding_length": 8,
    "llama.block_count": 1,
    "llama.feed_forward_length": 8,
    "llama.attention.head_count": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


def main(source: Path, tools: Path) -> None:
    vocabularies = {
        "gpt2": byte_level(source, 1500),
        "llama": scored(source / "models" / "ggml-vocab-phi-3.gguf", 1500, "Phi3"),
        "unprefixed": scored(source / "models" / "ggml-vocab-llama-spm.gguf", 700, "plain")
        | {"add_space_prefix": False, "add_bos_token": False},
        "gemma4": merged(source, 1500),
    }
    cases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "vocabulary.gguf"
        one_of = {split: name for name, split in SPLITS.items()}
        for pre in (*one_of.values(), None):
            kind = "gemma4" if pre and SPLITS[pre].spelled else "gpt2"
            cases.append({"vocabulary": kind, "pre": pre})
        cases += [{"vocabulary": name, "pre": "default"} for name in ("llama", "unprefixed")]
        for case in cases:
            changes: dict[str, Any] = {"pre": case["pre"]}
            if case["vocabulary"] == "gemma4":
                changes |= {"model": "gpt2"}
            write_gguf(file, MODEL | metadata_of(vocabularies[case["vocabulary"]], **changes))
            for special in (True, False):
                key = "special" if special else "plain"
                case[key] = [answer(tools, file, text, special=special) for text in TEXTS]
            print(case["vocabulary"], case["pre"])
    content = json.dumps({"vocabularies": vocabularies, "cases": cases}, separators=(",", ":"))
    path = Path(__file__).with_name("answers.json.xz")
    path.write_bytes(lzma.compress(content.encode(), preset=9))
    print(path.stat().st_size, "bytes")


def byte_level(source: Path, count: int) -> dict[str, Any]:
    read = read_gguf(source / "models" / "ggml-vocab-gpt-2.gguf").metadata
    merges = read["tokenizer.ggml.merges"][:count]
    # GPT-2's first 256 are the bytes. Two are left out, as vocabularies may: "~" and half of "Ã".
    tokens = [t for t in read["tokenizer.ggml.tokens"][:256] if t not in ("~", "Ą")]
    tokens += [m.replace(" ", "") for m in merges]
    known, kept = {*tokens}, []
    for merge in merges:
        if {*merge.split(" ")} <= known:
            kept.append(merge)
    added = {"<s>": CONTROL, "</s>": CONTROL, "<unk>": UNKNOWN, "<|user|>": USER_DEFINED}
    added |= {"  ": USER_DEFINED, "<|endoftext|>": NORMAL, "unusedthing": NORMAL}
    return {
        "model": "gpt2",
        "tokens": [*tokens, *added],
        "token_type": [NORMAL] * len(tokens) + [*added.values()],
        "merges": kept,
        "bos_token_id": len(tokens),
        "eos_token_id": len(tokens) + 1,
    }


def scored(file: Path, count: int, name: str) -> dict[str, Any]:
    read = read_gguf(file).metadata
    tokens, kinds = read["tokenizer.ggml.tokens"], read["tokenizer.ggml.token_type"].tolist()
    scores = read["tokenizer.ggml.scores"].tolist()
    chosen = [*range(259 + count)]
    chosen += [i for i, t in enumerate(tokens) if len(t) == 1 and i >= len(chosen)][:400]
    chosen += [i for i, t in enumerate(tokens) if i not in chosen and set(t) == {"▁"}]
    if name == "Phi3":
        chosen += [i for i in range(32000, len(tokens)) if i not in chosen]
    assert all(kinds[i] == BYTE for i in range(3, 259))
    return {
        "general.name": name,
        "model": "llama",
        "tokens": [tokens[i] for i in chosen],
        "token_type": [kinds[i] for i in chosen],
        "scores": [scores[i] for i in chosen],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def merged(source: Path, count: int) -> dict[str, Any]:
    read = read_gguf(source / "models" / "ggml-vocab-gemma-4.gguf").metadata
    tokens, kinds = read["tokenizer.ggml.tokens"], read["tokenizer.ggml.token_type"].tolist()
    every = read["tokenizer.ggml.merges"]
    merges = [m for m in every[: count * 3] if "\n" not in m]
    parts = {part for m in merges for part in (*m.split(" "), m.replace(" ", ""))}
    special = [t for t, k in zip(tokens, kinds, strict=True) if k == CONTROL][:40]
    line_ends = [t for t in tokens if t and not t.strip("\n")]
    merges += [m for m in every if not m.replace(" ", "").strip("\n")]
    letters = {chr(c) for c in range(33, 127)} & {*tokens}
    byte_names = {f"<0x{b:02X}>" for b in range(256)}
    wanted = parts | letters | byte_names | {*special} | {*line_ends}
    chosen = [i for i, t in enumerate(tokens) if t in wanted]
    assert wanted == {tokens[i] for i in chosen}
    names = [tokens[i] for i in chosen]
    return {
        "model": "gemma4",
        "tokens": names,
        "token_type": [kinds[i] for i in chosen],
        "scores": np.zeros(len(chosen)).tolist(),
        "merges": merges,
        "bos_token_id": names.index("<bos>"),
        "eos_token_id": names.index("<eos>"),
        "add_bos_token": False,
    }


def answer(tools: Path, file: Path, text: str, *, special: bool) -> list[int]:
    command = [str(tools / "llama-tokenize"), "-m", str(file), "--stdin", "--ids", "--no-escape"]
    if not special:
        command += ["--no-parse-special"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
    return ast.literal_eval(done.stdout.decode().strip().splitlines()[-1])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
