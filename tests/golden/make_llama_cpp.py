"""Makes llama_cpp/: what llama-perplexity of llama.cpp 0c1e57098 stores and prints of the demo model.

That commit is in the source distribution of llama-cpp-python 0.3.36, tool and converter included:

    pip install llama-cpp-python==0.3.36 gguf        # and scoremode
    cmake -S vendor/llama.cpp -B build -G Ninja && ninja -C build llama-perplexity
    python make_llama_cpp.py --llama-cpp vendor/llama.cpp --work DIR \\
        --perplexity build/bin/llama-perplexity

The demo model is the base. Its variants are quantized by scoremode.demo.quantize, decoded, and run by
llama.cpp as float32 weights, so that both tools have the same ones. All else is float32 there too: the
KV cache, and attention without the flash kernel.

- `base.kld`: the `_logits_` file. `base.txt`, VARIANT.txt: stdout, and the line of the final estimate.
  `base-self.txt`: the base compared with its own file.
- `rows.npz`: `logits` float32 [8, 1024] of the first rows of base.kld, and for each comparison what
  the tool has for each token before it adds up, from the same library's logits in the tool's own types:
  NAME.nll, NAME.base_nll float32, NAME.kld float64, NAME.same_top bool. The script fails unless those
  logits give base.kld's own codes.
"""

import argparse
import json
import runpy
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from scoremode.checkpoint.files import open_checkpoint
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.schemes.base import Scratch
from scoremode.schemes.resolve import resolve

OUT = Path(__file__).with_name("llama_cpp")
COMPARED = ("W4A16-g32", "W2A16-g32")
TEXT_BYTES, CONTEXT, KEPT_ROWS = 1500, 64, 8
FIRST = CONTEXT // 2


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--llama-cpp", "--perplexity", "--work"):
        parser.add_argument(name, type=Path, required=True)
    args = parser.parse_args()
    args.work.mkdir(parents=True)
    OUT.mkdir(exist_ok=True)
    demo = resources.files("scoremode.demo")
    text = args.work / "text.txt"
    text.write_bytes((demo / "heldout.txt").read_bytes()[:TEXT_BYTES])
    with resources.as_file(demo / "model") as model:
        folders = {"base": model}
        for variant in VARIANTS:
            if variant.name in COMPARED:
                packed = args.work / f"{variant.name}-packed"
                quantize_folder(model, packed, variant)
                folders[variant.name] = args.work / variant.name
                decode_folder(packed, folders[variant.name])
        ggufs = {name: args.work / f"{name}.gguf" for name in folders}
        for name, folder in folders.items():
            convert(args.llama_cpp, folder, ggufs[name])
    kld = OUT / "base.kld"
    printed = run(args.perplexity, ggufs["base"], "-f", text, "--kl-divergence-base", kld)
    (OUT / "base.txt").write_text(printed)
    rows = {}
    for name, gguf in {"base-self": ggufs["base"], **ggufs}.items():
        if name != "base":
            flags = ("--kl-divergence", "--kl-divergence-base", kld)
            (OUT / f"{name}.txt").write_text(run(args.perplexity, gguf, *flags))
            logits = logits_of(gguf, kld)
            rows |= {f"{name}.{k}": v for k, v in by_token(logits, kld).items()}
            if name == "base-self":
                check_codes(logits, kld)
                rows["logits"] = logits[:KEPT_ROWS]
    np.savez_compressed(OUT / "rows.npz", **rows)


def decode_folder(packed: Path, out: Path) -> None:
    """Writes the checkpoint in `packed` as float32 weights to `out`."""
    out.mkdir()
    tensors = load_file(packed / "model.safetensors")
    for module, scheme in resolve(open_checkpoint(str(packed))).quantized.items():
        prefix = f"{module}."
        own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        tensors = {k: v for k, v in tensors.items() if not k.startswith(prefix)}
        tensors[f"{module}.weight"] = torch.empty(scheme.shape)
        scheme.decode(own, tensors[f"{module}.weight"], Scratch())
    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((packed / "config.json").read_text())
    del config["quantization_config"]
    (out / "config.json").write_text(json.dumps(config | {"dtype": "float32"}, indent=2))
    for file in packed.glob("tokenizer*.json"):
        shutil.copyfile(file, out / file.name)


def convert(llama_cpp: Path, folder: Path, gguf: Path) -> None:
    """The demo's pre-tokenizer is ByteLevel with its built-in pattern, which is GPT-2's."""
    sys.path.insert(0, str(llama_cpp))
    from conversion.base import TextModel

    TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    sys.argv = ["convert", str(folder), "--outtype", "f32", "--outfile", str(gguf)]
    runpy.run_path(str(llama_cpp / "convert_hf_to_gguf.py"), run_name="__main__")


def run(perplexity: Path, gguf: Path, *flags: object) -> str:
    precise = ("-fa", "off", "-ctk", "f32", "-ctv", "f32", "-t", "1", "-c", str(CONTEXT))
    command = [str(x) for x in (perplexity, "-m", gguf, *precise, *flags)]
    # Its logging thread sometimes ends before it has printed everything.
    for _ in range(10):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        final = [s[s.index("Final") :] for s in done.stderr.splitlines() if "Final estimate" in s]
        if final or "Same top p:" in done.stdout:
            return "\n".join([done.stdout.strip("\n"), *final]) + "\n"
    raise SystemExit(f"{gguf}: no end of the output in ten runs")


def read(kld: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens [chunks, CONTEXT], row headers float32 [rows, 2], codes uint16 [rows, entries]."""
    data = kld.read_bytes()
    n_ctx, entries, chunks = np.frombuffer(data, "<i4", 3, 8)
    assert (n_ctx, entries % 2) == (CONTEXT, 0)
    tokens = np.frombuffer(data, "<i4", chunks * n_ctx, 20).reshape(chunks, n_ctx)
    rows = np.frombuffer(data, "<u2", offset=20 + tokens.nbytes).reshape(-1, 4 + entries)
    return tokens, np.ascontiguousarray(rows[:, :4]).view("<f4"), rows[:, 4:]


def logits_of(gguf: Path, kld: Path) -> np.ndarray:
    """float32 [rows, entries]: by libllama, in one batch of all chunks as the tool makes it."""
    import llama_cpp as lib

    tokens = read(kld)[0].copy()
    settings = lib.llama_context_default_params()
    settings.n_batch, settings.n_seq_max = 2048, 2048 // CONTEXT
    settings.n_ctx, settings.n_threads, settings.n_threads_batch = 2048, 1, 1
    settings.flash_attn_type, settings.type_k, settings.type_v = 0, 0, 0
    settings.n_outputs_max = 2048
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(str(gguf).encode(), lib.llama_model_default_params())
    context = lib.llama_init_from_model(model, settings)
    tokens[:, 0] = lib.llama_vocab_bos(lib.llama_model_get_vocab(model))
    batch = lib.llama_batch_init(tokens.size, 0, 1)
    batch.n_tokens = tokens.size
    for i, (chunk, position) in enumerate(np.ndindex(tokens.shape)):
        batch.token[i], batch.pos[i] = tokens[chunk, position], position
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, chunk
        batch.logits[i] = position >= FIRST
    assert lib.llama_decode(context, batch) == 0
    entries = read(kld)[2].shape[1]
    shape = (len(tokens), CONTEXT - FIRST, entries)
    logits = np.ctypeslib.as_array(lib.llama_get_logits(context), shape)[:, :-1].copy()
    lib.llama_free(context)
    lib.llama_model_free(model)
    return logits.reshape(-1, entries)


def log_sums(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each row's largest and ln Σ exp(z - largest), in the tool's types."""
    high = logits.max(1)
    powers = np.exp((logits - high[:, None]).astype(np.float64)).astype(np.float32)
    return high, np.log(powers.astype(np.float64).sum(1)).astype(np.float32)


def check_codes(logits: np.ndarray, kld: Path) -> None:
    """Fails unless `logits` give each row's scale, smallest value and codes, one entry at a time."""
    _, header, codes = read(kld)
    for z, (scale, smallest), stored, high, log_sum in zip(
        logits, header, codes, *log_sums(logits), strict=True
    ):
        low = max(z.min(), high - np.float32(16))
        assert scale == (high - low) / np.float32(65535)
        assert smallest == low - high - log_sum
        inverse = np.float32(1) / scale
        assert all(
            c == (round(float(inverse * (x - low))) if x > low else 0)
            for x, c in zip(z, stored, strict=True)
        )


def by_token(logits: np.ndarray, kld: Path) -> dict[str, np.ndarray]:
    """What the tool has for each token: float32 terms, KLD's summed in float64."""
    tokens, header, codes = read(kld)
    target = tokens[:, FIRST + 1 :].reshape(-1)
    row = np.arange(len(target))
    high, log_sum = log_sums(logits)
    base = header[:, :1] * codes.astype(np.float32) + header[:, 1:]
    p = np.exp(base.astype(np.float64)).astype(np.float32)
    terms = p * (base - logits + (high + log_sum)[:, None])
    return {
        "nll": high + log_sum - logits[row, target],
        "base_nll": -base[row, target],
        "kld": np.where(base > -16, terms, np.float32(0)).astype(np.float64).sum(1),
        "same_top": logits.argmax(1) == base.argmax(1),
    }


if __name__ == "__main__":
    main()
