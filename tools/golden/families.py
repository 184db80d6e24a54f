"""Measurements of numbers, family by family."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from makers import FOREIGN, GGUF, GGUF_ARITHMETIC, MODELS, TEMPLATES
from measurement import RUNS, Measurement

TEXT = ("-f", "text.txt")
SMALL = ("-f", "small.txt")
# What would follow from the memory that happens to be free.
FIXED = ("--device", "cpu", "--batch-size", "4", "--max-memory", "256MiB")
# About 40 passes, to be killed in.
LONG = ("-f", "text.txt", "--protocol", "strided", "-c", "64", "--stride", "32", "--dtype", "float32",
        "--device", "cpu", "--batch-size", "2", "--max-memory", "2MiB")  # fmt: skip
# Several passes of it, to be shared out.
SHARED = ("-f", "text.txt", "-f", "small.txt", "--group-by", "file", "--protocol", "disjoint", "-c",
          "64", "--dtype", "float32", "--device", "cpu", "--batch-size", "4", "--max-memory",
          "2MB")  # fmt: skip
DISJOINT = ("--protocol", "disjoint", "-c", "64")
LLAMA_CPP = ("--protocol", "llama.cpp", "-c", "64")
BFLOAT16 = ("--dtype", "bfloat16")
FLOAT32 = ("--dtype", "float32")
TOKENIZER = ("--tokenizer", "model")
# The demo's tokenizer, whose vocabulary all random models have.
RANDOM = (*TOKENIZER, *SMALL, *DISJOINT, *FIXED)
CHATS = ("--conversations", "chats.jsonl", "--dtype", "float32", *FIXED)
PROTOCOLS = ("score-mode", "score-mode-nonblank", "exl3", "exl3-s512", "exl3-compare-q", "exl3-qbench",
             "gptq", "llama.cpp", "disjoint", "strided", "hf-strided")  # fmt: skip
VARIANTS = ("W8A16", "W4A16-g32", "W4A16-channel", "W3A16-g32", "W2A16-g32", "FP8_DYNAMIC", "W8A8",
            "MXFP4A16", "NVFP4A16", "NVFP4", "W4A16-g32-AWQ", "W4A16-g32-GPTQ",
            "FP8-block64")  # fmt: skip
CACHES = ("fp8_e4m3", "fp8_e5m2", "int8", "int4-g32", "q8_0", "q4_0", "nvfp4", "k=int8,v=int4-g32")


def families(data: Path | None) -> Iterator[Measurement]:
    """All of them. `data`: the folder with stories260K, if there is one."""
    yield Measurement("demo", ("demo",), output=Path("demo"))
    for family in (dense_and_compressed, protocols, bases, random_models, foreign, gguf, chats,
                   texts, caches, mixtures, shards, several_processes, sweeps, other_runs):  # fmt: skip
        yield from family()
    if data is not None:
        for dtype in ("float32", "bfloat16"):
            yield ran(f"stories260K/{dtype}", "ppl", str(data / "stories260K"), *SMALL, *DISJOINT,
                      "--dtype", dtype, *FIXED)  # fmt: skip


def ran(name: str, *words: str, needs: tuple[str, ...] = (), **more: Any) -> Measurement:
    if any(word.startswith("demo/models/") for word in words):
        needs = (*needs, "demo")
    return Measurement(name, words, needs, RUNS / name, **more)


def variant(name: str) -> str:
    return f"demo/models/{name}"


def dense_and_compressed() -> Iterator[Measurement]:
    """The demo's model and its variants."""
    for name in ("model", *VARIANTS):
        model = name if name == "model" else variant(name)
        yield ran(f"float32/{name}", "ppl", model, *TEXT, *DISJOINT, *FLOAT32, *FIXED)
    for name in ("FP8_DYNAMIC", "W8A8", "NVFP4"):
        yield ran(f"weights/{name}", "ppl", variant(name), *SMALL, *DISJOINT, "--arithmetic",
                  "weights", *BFLOAT16, *FIXED)  # fmt: skip


def protocols() -> Iterator[Measurement]:
    for name in PROTOCOLS:
        yield ran(f"protocol/{name}", "ppl", "model", *SMALL, "--protocol", name, "-c", "64",
                  "--stride", "48", *BFLOAT16, *FIXED)  # fmt: skip
    pages = ("--dataset-file", "pages.jsonl", "--text-field", "page", "--protocol", "lm-eval")
    yield ran("protocol/lm-eval", "ppl", "model", *pages, *FLOAT32, *FIXED)
    yield ran("protocol/lm-eval-kld", "kld", variant("W3A16-g32"), "--reference", "model", *pages,
              "-c", "96", *FLOAT32, *FIXED)  # fmt: skip
    yield ran("protocol/lm-eval-raw", "ppl", "model", "-f", "wiki.raw", "--protocol", "lm-eval",
              *FLOAT32, *FIXED)  # fmt: skip


def bases() -> Iterator[Measurement]:
    """References, and every way to compare with a base."""
    base = ("reference", "model")
    yield ran("reference/stored", *base, *TEXT, *LLAMA_CPP, *BFLOAT16, *FIXED)
    yield ran("reference/checkpoint", *base, *SMALL, *DISJOINT, *BFLOAT16, *FIXED, "--head",
              "checkpoint")  # fmt: skip
    yield ran("reference/exported", *base, *SMALL, *LLAMA_CPP, *BFLOAT16, *FIXED,
              "--export-llama-cpp", "base.kld", exports=("base.kld",))  # fmt: skip
    yield ran("reference/exported-24", *base, *SMALL, *LLAMA_CPP, *BFLOAT16, *FIXED,
              "--export-llama-cpp", "base24.kld", "--export-nats", "24",
              exports=("base24.kld",))  # fmt: skip
    packed = variant("W4A16-g32")
    kept = ("--reference", "run:reference/stored", *BFLOAT16, *FIXED)
    yield ran("kld/stored", "kld", packed, *kept)
    yield ran("kld/stored-W2A16-g32", "kld", variant("W2A16-g32"), *kept)
    yield ran("kld/stored-itself", "kld", "model", *kept)
    yield ran("kld/full-stored", "kld", packed, *kept, "--full", "--llama-cpp-block")
    yield ran("kld/noise-stored", "kld", packed, *kept, "--noise-floor")
    yield ran("kld/checkpoint", "kld", packed, *BFLOAT16, *FIXED, "--reference",
              "run:reference/checkpoint")  # fmt: skip
    live = ("--reference", "model", *SMALL, *DISJOINT, *FIXED)
    yield ran("kld/live", "kld", packed, *live, *BFLOAT16)
    yield ran("kld/live-float32", "kld", packed, *live, *FLOAT32)
    yield ran("kld/full-live", "kld", packed, *live, *BFLOAT16, "--full", "--confident", "0.6")
    yield ran("kld/noise-live", "kld", packed, *live, *BFLOAT16, "--noise-floor", "dtype")
    for name, export in {"base": "exported", "base24": "exported-24"}.items():
        yield ran(f"kld/llama.cpp-{name}", "kld", packed, *SMALL, *LLAMA_CPP, *BFLOAT16, *FIXED,
                  "--full", "--reference", f"{name}.kld",
                  needs=(f"reference/{export}",))  # fmt: skip


def random_models() -> Iterator[Measurement]:
    """Random models of many architectures, dense and in compressed-tensors."""
    for name, dtypes in MODELS.items():
        for dtype in dtypes:
            yield ran(f"model/{name}-{dtype}", "ppl", f"random/{name}", *RANDOM, "--dtype", dtype)
    for name in ("mixtral-NVFP4", "presets"):
        yield ran(f"weights/{name}", "ppl", f"random/{name}", *RANDOM, "--arithmetic", "weights",
                  *BFLOAT16)  # fmt: skip
    # Softcapped, then not, against a base that is the other.
    for name, base in {"gemma2": "gemma4_text", "gemma4_text": "gemma2", "heads": "llama"}.items():
        yield ran(f"kld/{name}", "kld", f"random/{name}", *RANDOM, *BFLOAT16, "--full",
                  "--reference", f"random/{base}")  # fmt: skip


def foreign() -> Iterator[Measurement]:
    """Formats that are not compressed-tensors', each with the arithmetic that it declares."""
    for name in FOREIGN:
        yield ran(f"foreign/{name}", "ppl", f"random/foreign/{name}", *RANDOM, *BFLOAT16)
    for name in ("hqq-4", "mlx-4", "bitsandbytes-int8", "quark-int8", "torchao-Float8-dynamic"):
        yield ran(f"foreign/{name}-float32", "kld", f"random/foreign/{name}", "--reference",
                  "random/llama", *RANDOM, *FLOAT32)  # fmt: skip


def gguf() -> Iterator[Measurement]:
    for name in GGUF:
        tokenizer = TOKENIZER if name.startswith("blocks-") else ()
        yield ran(f"gguf/{name}", "ppl", f"random/gguf/{name}.gguf", *tokenizer, *SMALL, *DISJOINT,
                  *FLOAT32, *FIXED)  # fmt: skip
    for name in GGUF_ARITHMETIC:
        yield ran(f"gguf/{name}-llama.cpp", "ppl", f"random/gguf/{name}.gguf", *TOKENIZER, *SMALL,
                  *DISJOINT, *FLOAT32, *FIXED, "--arithmetic", "llama.cpp")  # fmt: skip
    yield ran("gguf/kld", "kld", "random/gguf/llama-Q8_0.gguf", "--reference",
              "random/gguf/llama.gguf", *SMALL, *DISJOINT, *FLOAT32, *FIXED)  # fmt: skip


def chats() -> Iterator[Measurement]:
    for name in TEMPLATES:
        yield ran(f"chat/{name}", "ppl", "model", "--chat-template", f"{name}.jinja", *CHATS)
    template = ("--chat-template", "plain.jinja")
    for score in ("completion", "all"):
        yield ran(f"chat/score-{score}", "ppl", "model", *template, "--score", score, *CHATS)
    for long in ("truncate", "split", "skip"):
        yield ran(f"chat/long-{long}", "ppl", "model", *template, "--long", long, "-c", "48",
                  *CHATS)  # fmt: skip
    yield ran("chat/kld", "kld", variant("W4A16-g32"), "--reference", "model", *template, *CHATS,
              "--group-by", "domain", "--full", "--token-text")  # fmt: skip
    yield ran("chat/thinking", "ppl", "model", "--chat-template", "chatml.jinja",
              "--chat-template-kwargs", '{"enable_thinking": false}', "--chat-date", "2026-02-03",
              *CHATS)  # fmt: skip
    yield ran("chat/reference", "reference", "model", *template, *CHATS)
    yield ran("chat/kept", "kld", variant("W2A16-g32"), "--reference", "run:chat/reference",
              *FLOAT32, *FIXED)  # fmt: skip


def texts() -> Iterator[Measurement]:
    """Data sets, groups, early ends, texts of the calibration."""
    rows = ("--dataset-file", "rows.jsonl", *DISJOINT, *FLOAT32, *FIXED)
    yield ran("text/groups", "kld", variant("W3A16-g32"), "--reference", "model", *rows,
              "--group-by", "domain", "--token-text")  # fmt: skip
    yield ran("text/seed", "ppl", "model", *rows, "--num-samples", "12", "--seed", "7")
    yield ran("text/files", "ppl", "model", *TEXT, *SMALL, "--group-by", "file", *DISJOINT, *FLOAT32,
              *FIXED)  # fmt: skip
    # In passes of few windows.
    early = ("-f", "text.txt", *DISJOINT, *FLOAT32, "--device", "cpu", "--batch-size", "2",
             "--max-memory", "2MiB")  # fmt: skip
    yield ran("text/stop-ppl", "ppl", "model", *early, "--stop-when", "ppl ±30 %", "--seed", "3")
    yield ran("text/stop-kld", "kld", variant("W2A16-g32"), "--reference", "model", *early,
              "--stop-when", "kld ±15 %")  # fmt: skip
    yield ran("text/calibration", "ppl", "model", *TEXT, *DISJOINT, *FLOAT32, *FIXED, "--calibration",
              "calibration.txt")  # fmt: skip
    yield ran("text/calibration-rows", "ppl", "model", *rows, "--calibration", "rows.jsonl")


def caches() -> Iterator[Measurement]:
    """Quantized keys and values, against a base without."""
    yield ran("cache/as-declared", "ppl", "random/cache", *RANDOM, "--kv-cache", "as-declared",
              *BFLOAT16)  # fmt: skip
    for name in CACHES:
        yield ran(f"cache/{name}", "kld", "model", "--reference", "model", *SMALL, *DISJOINT,
                  *FLOAT32, *FIXED, "--kv-cache", name)  # fmt: skip


def mixtures() -> Iterator[Measurement]:
    """Modules of one checkpoint in another."""
    kld = ("kld", variant("W2A16-g32"), "--reference", "model", *SMALL, *DISJOINT, *FLOAT32, *FIXED)
    yield ran("mixture/keep-dense", *kld, "--keep-dense", "layers.0", "--keep-dense",
              "re:.*down_proj")  # fmt: skip
    yield ran("mixture/swap", *kld, "--swap", f"layers.*.mlp={variant('W8A16')}")
    yield ran("mixture/both", *kld, "--keep-dense", "layers.1.self_attn", "--swap",
              f"layers.2={variant('NVFP4A16')}")  # fmt: skip


def shards() -> Iterator[Measurement]:
    """Shares of a run, and the run that they make."""
    kinds = {"ppl": ("ppl", "model"), "kld": ("kld", variant("W4A16-g32"), "--reference", "model")}
    for kind, words in kinds.items():
        names = [f"shard/{kind}-{i}" for i in (1, 2, 3)]
        for i, name in enumerate(names, start=1):
            yield ran(name, *words, *SHARED, "--shard", f"{i}/3")
        yield ran(f"shard/{kind}-merged", "merge", *(f"run:{name}" for name in names))


def several_processes() -> Iterator[Measurement]:
    """Runs on two devices, and runs that are killed and resumed, each beside a whole one."""
    packed = variant("W4A16-g32")
    kinds = {
        "ppl": ("ppl", packed),
        "reference": ("reference", "model"),
        "kld": ("kld", packed, "--reference", "run:whole/reference"),
        "kld-live": ("kld", packed, "--reference", "model"),
    }
    for name, words in kinds.items():
        yield ran(f"whole/{name}", *words, *LONG)
        yield ran(f"resumed/{name}", *words, *LONG, is_killed=True)
        yield ran(f"devices/{name}", *words, *LONG, "--devices", "2", cores=2)


def sweeps() -> Iterator[Measurement]:
    models = [variant(name) for name in ("W8A16", "W4A16-g32", "NVFP4")]
    yield ran("sweep/models", "kld", *models, "--reference", "model", *SMALL, *DISJOINT, *FLOAT32,
              *FIXED)  # fmt: skip
    yield ran("sweep/file", "sweep", "sweep.toml", needs=("demo",))


def other_runs() -> Iterator[Measurement]:
    """Attribution, recipes, tasks."""
    text = ("--reference", "model", *TEXT, *DISJOINT, *FLOAT32, *FIXED, "--windows", "8")
    for part in ("layer", "module", "kind"):
        yield ran(f"attribution/{part}", "attribute", variant("W3A16-g32"), *text, "--by", part)
    yield ran("attribution/alone", "attribute", variant("W3A16-g32"), *text, "--alone")
    yield ran("attribution/recipe", "attribute", variant("W4A16-g32"), *text, "--budget", "5",
              "--from", variant("W3A16-g32"), variant("W8A16"))  # fmt: skip
    tasks = ("--tasks", "ends,last_word,pages,letters", "--include-path", "tasks",
             "--confirm-run-unsafe-code", *FLOAT32, "--device", "cpu")  # fmt: skip
    yield ran("tasks/scored", "tasks", "model", *tasks, library="lm_eval")
    yield ran("tasks/paired", "tasks", variant("W3A16-g32"), "--reference", "model", *tasks,
              library="lm_eval")  # fmt: skip
