"""Scoring in vLLM with the plugin against vLLM's own ways, in one run.

Random weights of a real shape (right for speed, meaningless for quality). Each side runs in a process
of its own, sides alternate, and every side gets a warm-up of one scheduler step:

- `plugin`: `ScoringLLM`, its defaults.
- `stock`: `prompt_logprobs=0, flat_logprobs=True, detokenize=False`, vLLM's fastest exact way.
- `prefill`: the same prompts without logprobs, which runs the head for one token a prompt.

On a GPU the shape is Llama-3.1-8B's, on a CPU a small trunk with a vocabulary of 131,072, where the
memory that scoring itself takes is told apart from the model's.

    python benchmarks/vllm.py [--windows 64] [--formats w4a16,fp8,nvfp4,dense] [--compiled] [-tp 1,2]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

# A script's folder comes first on the path, and this file has the name of what it measures.
sys.path = [p for p in sys.path if Path(p).resolve() != Path(__file__).resolve().parent]

SHAPES = {
    "cuda": {
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "length": 2048,
    },
    "cpu": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 131_072,
        "length": 1000,
    },
}
GROUP = 128
SHARD_BYTES = 5 * 10**9
_FP4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group"}
_FP4["group_size"] = 16
_FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
# The format's name and its config group.
QUANTIZED: dict[str, tuple[str, dict[str, Any]]] = {
    "w4a16": (
        "pack-quantized",
        {
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": GROUP,
            }
        },
    ),
    "w4a16-g32-asym": (
        "pack-quantized",
        {
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": False,
                "strategy": "group",
                "group_size": 32,
            }
        },
    ),
    "nvfp4a16": ("nvfp4-pack-quantized", {"weights": _FP4}),
    "fp8": (
        "float-quantized",
        {
            "weights": {**_FP8, "strategy": "channel"},
            "input_activations": {**_FP8, "strategy": "token", "dynamic": True},
        },
    ),
    "nvfp4": (
        "nvfp4-pack-quantized",
        {"weights": _FP4, "input_activations": {**_FP4, "dynamic": "local"}},
    ),
}
# Other libraries' whole `quantization_config`.
OTHERS: dict[str, dict[str, Any]] = {
    "awq": {
        "quant_method": "awq",
        "bits": 4,
        "group_size": GROUP,
        "zero_point": True,
        "version": "gemm",
    },
    "gptq": {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": GROUP,
        "sym": True,
        "desc_act": False,
        "checkpoint_format": "gptq",
    },
    "fp8-block": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [GROUP, GROUP],
    },
    "modelopt-nvfp4": {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "exclude_modules": ["lm_head"],
        "ignore": ["lm_head"],
        "producer": {"name": "modelopt", "version": "0.33.0"},
    },
}
SIDES = ("plugin", "stock", "prefill")


def make_model(folder: Path, shape: dict[str, int], form: str, device: str) -> None:
    """A Llama of random weights, in files of 5 GB as they are published; `form` is dense, one of
    QUANTIZED or one of OTHERS.

    Zero points are 8, in every nibble."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator(device=device).manual_seed(0)
    hidden, inter, vocab = (shape[k] for k in ("hidden_size", "intermediate_size", "vocab_size"))
    head = hidden // shape["num_attention_heads"]
    kv = head * shape["num_key_value_heads"]
    tensors: dict[str, torch.Tensor] = {}

    def dense(name: str, out: int, wide: int) -> None:
        weight = torch.empty((out, wide), dtype=torch.bfloat16, device=device)
        tensors[f"{name}.weight"] = weight.normal_(0, wide**-0.5, generator=generator)

    def random_bytes(out: int, wide: int) -> torch.Tensor:
        return torch.randint(
            0, 256, (out, wide), dtype=torch.uint8, device=device, generator=generator
        )

    def w4a16(name: str, out: int, wide: int, group: int = GROUP) -> None:
        scale = torch.empty((out, wide // group), device=device)
        scale.uniform_(0.5, 1.5, generator=generator).mul_(wide**-0.5 / 4.6)
        tensors[f"{name}.weight_packed"] = random_bytes(out, wide // 2).view(torch.int32)
        tensors[f"{name}.weight_scale"] = scale.bfloat16()
        tensors[f"{name}.weight_shape"] = torch.tensor([out, wide])

    def asymmetric(name: str, out: int, wide: int) -> None:
        w4a16(name, out, wide, 32)
        zeros = torch.full((out // 8, wide // 32), -0x77777778, dtype=torch.int32, device=device)
        tensors[f"{name}.weight_zero_point"] = zeros

    def fp8(name: str, out: int, wide: int) -> None:
        weight = torch.empty((out, wide), device=device).normal_(0, 64, generator=generator)
        tensors[f"{name}.weight"] = weight.to(torch.float8_e4m3fn)
        scale = torch.empty((out, 1), device=device).uniform_(0.5, 1.5, generator=generator)
        tensors[f"{name}.weight_scale"] = scale * (wide**-0.5 / 64)

    def nvfp4(name: str, out: int, wide: int) -> None:
        # Local scales about 1 under a global one, whose reciprocal the format multiplies by.
        scale = torch.empty((out, wide // 16), device=device).uniform_(
            0.5, 1.5, generator=generator
        )
        tensors[f"{name}.weight_packed"] = random_bytes(out, wide // 2)
        tensors[f"{name}.weight_scale"] = scale.to(torch.float8_e4m3fn)
        tensors[f"{name}.weight_global_scale"] = torch.tensor([3.0 * wide**0.5])
        if form == "nvfp4":
            tensors[f"{name}.input_global_scale"] = torch.tensor([100.0])

    def qweight(name: str, out: int, wide: int) -> None:
        groups = wide // GROUP
        lines = (wide, out // 8) if form == "awq" else (wide // 8, out)
        # Zero points of 8, which GPTQ stores less one.
        zeros = -0x77777778 if form == "awq" else 0x77777777
        scale = torch.empty((groups, out), device=device)
        scale.uniform_(0.5, 1.5, generator=generator).mul_(wide**-0.5 / 4.6)
        tensors[f"{name}.qweight"] = random_bytes(lines[0], lines[1] * 4).view(torch.int32)
        tensors[f"{name}.qzeros"] = torch.full((groups, out // 8), zeros, dtype=torch.int32)
        tensors[f"{name}.scales"] = scale.half()
        if form == "gptq":
            tensors[f"{name}.g_idx"] = (torch.arange(wide) // GROUP).int()

    def blocks(name: str, out: int, wide: int) -> None:
        fp8(name, out, wide)
        del tensors[f"{name}.weight_scale"]
        scale = torch.empty((out // GROUP, wide // GROUP), device=device)
        scale.uniform_(0.5, 1.5, generator=generator).mul_(wide**-0.5 / 64)
        tensors[f"{name}.weight_scale_inv"] = scale

    def modelopt(name: str, out: int, wide: int) -> None:
        nvfp4(name, out, wide)
        tensors[f"{name}.weight"] = tensors.pop(f"{name}.weight_packed")
        whole = tensors.pop(f"{name}.weight_global_scale")
        tensors[f"{name}.weight_scale_2"] = (1 / whole).reshape(())
        tensors[f"{name}.input_scale"] = torch.tensor(0.01)

    forms = {
        "dense": dense, "w4a16": w4a16, "w4a16-g32-asym": asymmetric,
        "fp8": fp8, "nvfp4": nvfp4, "nvfp4a16": nvfp4,
        "awq": qweight, "gptq": qweight, "fp8-block": blocks, "modelopt-nvfp4": modelopt,
    }  # fmt: skip
    linear = forms[form]
    dense("model.embed_tokens", vocab, hidden)
    dense("lm_head", vocab, hidden)
    tensors["model.norm.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    for i in range(shape["num_hidden_layers"]):
        at = f"model.layers.{i}"
        for name, out, wide in (
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", kv, hidden),
            ("self_attn.v_proj", kv, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", inter, hidden),
            ("mlp.up_proj", inter, hidden),
            ("mlp.down_proj", hidden, inter),
        ):
            linear(f"{at}.{name}", out, wide)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{name}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    folder.mkdir()
    shards: list[dict[str, torch.Tensor]] = [{}]
    for key, tensor in tensors.items():
        if sum(t.nbytes for t in shards[-1].values()) + tensor.nbytes > SHARD_BYTES:
            shards.append({})
        shards[-1][key] = tensor.cpu()
    names = ["model.safetensors"]
    if len(shards) > 1:
        names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
        weight_map = {k: name for name, shard in zip(names, shards, strict=True) for k in shard}
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, folder / name)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **{k: v for k, v in shape.items() if k != "length"},
        "head_dim": head,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if form in OTHERS:
        config["quantization_config"] = OTHERS[form]
        # As AWQ and GPTQ checkpoints are published, whose scales are float16.
        config["torch_dtype"] = "float16" if form in ("awq", "gptq") else "bfloat16"
    elif form != "dense":
        name, group = QUANTIZED[form]
        config["quantization_config"] = {
            "quant_method": "compressed-tensors",
            "format": name,
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], **group}},
            "ignore": ["lm_head"],
        }
    (folder / "config.json").write_text(json.dumps(config))


def prompts(windows: int, shape: dict[str, int]) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    ids = generator.integers(3, shape["vocab_size"], (windows, shape["length"]))
    return list(ids.astype(np.int32))


def run_side(
    side: str, model: str, device: str, windows: int, rounds: int, eager: bool, ranks: int, out: str
) -> dict[str, Any]:
    shape = SHAPES[device]
    given: dict[str, Any] = {"enforce_eager": eager, "tensor_parallel_size": ranks}
    ids = prompts(windows, shape)
    begin = time.perf_counter()
    if side == "plugin":
        from scoremode.engines.vllm import ScoringLLM

        llm = ScoringLLM(model, max_model_len=shape["length"], strict=True, **given)

        def score() -> Any:
            return [s.logprob for s in llm.score(ids)]

        memory, facts, warm = llm._backend.ask, llm.describe, llm.score
    else:
        llm, score, memory, facts, warm = _stock(side, model, device, shape, given, ids)
    load = time.perf_counter() - begin
    _reset_peak()
    before = _resident()
    warm(ids[: max(1, min(8, windows))])
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        logprobs = score()
        seconds.append(time.perf_counter() - begin)
    if logprobs is not None:
        np.save(out, np.stack(logprobs))
    tokens = windows * shape["length"]
    return {
        "tokens_per_s": [tokens / s for s in seconds],
        "load_s": load,
        "transient_bytes": _peak() - before,
        "memory": memory("scoremode_memory"),
        "facts": facts(),
    }


def _stock(
    side: str, model: str, device: str, shape: dict[str, int], given: dict[str, Any], ids: Any
) -> Any:
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    from vllm import LLM, SamplingParams

    from scoremode.engines.vllm.start import EXTENSION

    step = 16_384 if device == "cuda" else 2 * shape["length"]
    settings: dict[str, Any] = {"kv_cache_memory_bytes": 8 << 30} if device == "cuda" else {}
    llm = LLM(
        model,
        max_model_len=shape["length"] + 8,
        max_num_batched_tokens=step,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        worker_extension_cls=EXTENSION,
        disable_log_stats=True,
        **settings,
        **given,
    )
    wanted = {} if side == "prefill" else {"prompt_logprobs": 0, "flat_logprobs": True}
    params = SamplingParams(max_tokens=1, detokenize=False, **wanted)  # pyright: ignore

    def run(some: Any) -> Any:
        asked = [{"prompt_token_ids": row.tolist()} for row in some]
        return llm.generate(asked, params, use_tqdm=False)

    def score() -> Any:
        outputs = run(ids)
        if side == "prefill":
            return None
        # The first position has no entry, every other one.
        return [np.array(o.prompt_logprobs.logprobs, np.float32) for o in outputs]

    return llm, score, llm.collective_rpc, lambda: llm.collective_rpc("scoremode_describe")[-1], run


def _status(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    found = re.search(rf"{field}:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


def _resident() -> int:
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def measure_side(
    args: argparse.Namespace, side: str, model: Path, eager: bool, ranks: int
) -> dict[str, Any]:
    out = scores_file(model, side, ranks)
    out.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--side", side, "--model", str(model), "--out", str(out)]
    command += ["--windows", str(args.windows), "--rounds", str(args.rounds), "-tp", str(ranks)]
    command += ["--device", args.device] + ([] if eager else ["--compiled"])
    environment = dict(os.environ)
    # One process for all, so that both sides batch alike; VLLM_... of the caller win.
    if args.in_process:
        environment.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{side} failed")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default=None)
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--formats", default="w4a16")
    parser.add_argument("--compiled", action="store_true", help="compiled as well as eager")
    parser.add_argument("--in-process", action="store_true", help="stock's core in its own process")
    parser.add_argument("-tp", default="1", help="tensor-parallel sizes, such as 1,2")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.device is None:
        import torch

        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.side:
        result = run_side(
            args.side, args.model, args.device, args.windows, args.rounds, not args.compiled,
            int(args.tp), args.out,
        )  # fmt: skip
        print(json.dumps(result, default=str))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for form in args.formats.split(","):
            model = Path(folder) / form / "model"
            model.parent.mkdir()
            # In a process of its own, which leaves nothing on the device.
            maker = multiprocessing.get_context("spawn").Process(
                target=make_model, args=(model, SHAPES[args.device], form, args.device)
            )
            maker.start()
            maker.join()
            if maker.exitcode:
                raise SystemExit(f"making the {form} model failed")
            for eager in (True, False) if args.compiled else (True,):
                for ranks in (int(n) for n in args.tp.split(",")):
                    sides = args.sides.split(",")
                    results = {s: measure_side(args, s, model, eager, ranks) for s in sides}
                    rows.append((form, eager, ranks, results, differences(model, ranks)))
    report(args, rows)


def scores_file(model: Path, side: str, ranks: int) -> Path:
    return model.with_name(f"{side}-{ranks}.npy")


def differences(model: Path, ranks: int) -> dict[str, float]:
    """The largest differences of a token's log-probability: plugin to stock, and to one rank."""
    plugin, stock = (scores_file(model, side, ranks) for side in ("plugin", "stock"))
    pairs = {"plugin to stock": (plugin, stock)}
    if ranks > 1:
        for side, file in (("plugin", plugin), ("stock", stock)):
            pairs[f"{side}, {ranks} ranks to 1"] = (file, scores_file(model, side, 1))
    return {
        name: float(np.abs(np.load(one) - np.load(other)).max())
        for name, (one, other) in pairs.items()
        if one.exists() and other.exists()
    }


def report(args: argparse.Namespace, rows: list[Any]) -> None:
    print(f"\n{args.windows} windows of {SHAPES[args.device]['length']}")
    for form, eager, ranks, sides, worst in rows:
        print(f"\n{form}, {'eager' if eager else 'compiled'}, -tp {ranks}")
        best = {side: max(result["tokens_per_s"]) for side, result in sides.items()}
        for side, result in sides.items():
            memory = result["memory"][0]
            used = memory.get("device_used", memory["peak"]) / 2**30
            facts = result["facts"]
            print(
                f"  {side:8} {best[side]:10,.0f} tokens/s  load {result['load_s']:5.1f} s  "
                f"device {used:6.2f} GiB  transient {result['transient_bytes'] / 2**20:8.1f} MiB  "
                f"{facts['runner']} {facts['linear']}"
            )
        for other in ("stock", "prefill"):
            if "plugin" in best and other in best:
                print(f"  plugin / {other}: {best['plugin'] / best[other]:.3f}")
        if "plugin" in sides and "stock" in sides:
            share = sides["plugin"]["transient_bytes"] / max(1, sides["stock"]["transient_bytes"])
            print(f"  transient memory, plugin / stock: {share:.4f}")
        for name, value in worst.items():
            print(f"  largest difference of a log-probability, {name}: {value:.2e} nats")


if __name__ == "__main__":
    main()
