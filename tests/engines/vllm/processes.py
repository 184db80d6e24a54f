"""Every process that the tests of the vLLM engine start, and what each engine in it is asked.

A process takes ten seconds and more before it scores, most of them for imports: engines that may share
one do. Where vLLM's own path and the plugin share one, vLLM's own goes first and knows of nothing.
"""

import os
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.vllm.checkpoints import FORMATS, QUANTIZED
from engines.vllm.dtypes import SERVED
from engines.vllm.references import LLAMA_CPP
from numpy.typing import NDArray

# Tokens of the longest prompt.
LENGTH = 256
# Entries of a narrow softmax.
NARROW = 700
_STEP = {"max_num_batched_tokens": 8 * LENGTH, "max_num_seqs": 16}
_STOCK = {
    # By itself vLLM takes a model in float32 for one in bf16.
    "dtype": SERVED,
    # Room for the token that it generates.
    "max_model_len": LENGTH + 4,
    "enforce_eager": True,
    "enable_prefix_caching": False,
    "skip_tokenizer_init": True,
    "max_logprobs": -1,
    "kv_cache_memory_bytes": 16 << 20,
    "seed": 0,
    **_STEP,
}
# Calls of what follows in a prompt, and one that decode steps can't answer.
DECODED = (
    *("windows", "inputs", "mixed", "first", "chosen after", "repeated", "narrow"),
    *("short against", "short against again", "narrow against", "windows against", "file against"),
)
WRONG_TO_DECODE = ("shuffled",)
_CORES = sorted(os.sched_getaffinity(0))
# A core a rank. By itself vLLM wants a NUMA node for each.
TWO_RANKS = {"VLLM_CPU_OMP_THREADS_BIND": f"{_CORES[0]}|{_CORES[-1]}"}
# A Ray of the process's own, with two devices; see `ray_platform/`. The token is not kept anywhere.
TWO_ON_RAY = TWO_RANKS | {
    "PYTHONPATH": str(Path(__file__).with_name("ray_platform")),
    "RAY_ADDRESS": "local",
    "RAY_OVERRIDE_RESOURCES": '{"GPU": 2}',
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}


@dataclass(frozen=True)
class Start:
    """One engine: see `run_engine.py`. `calls` are names of `make_calls`, all if None."""

    form: str = "dense"
    engine: str = "scoremode"
    arguments: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    tamper: str | None = None
    calls: tuple[str, ...] | None = None
    # Calls for which vLLM's own path gives every entry's log-probability.
    all_logits: tuple[str, ...] = ()
    # Of engine "measured": see `measured.py`.
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def is_vllm(self) -> bool:
        return self.engine != "torch"

    def to_job(self, model: str, calls: dict[str, Any], references: str) -> dict[str, Any]:
        chosen = calls if self.calls is None else {name: calls[name] for name in self.calls}
        return asdict(self) | {"model": model, "calls": chosen, "references": references}


def _ours(form: str = "dense", **arguments: Any) -> Start:
    return Start(form, arguments={"max_model_len": LENGTH, **arguments})


def _on_ray(**arguments: Any) -> Start:
    """The dense model with Ray's actors for workers."""
    start = _ours(distributed_executor_backend="ray", **arguments)
    return replace(start, environment=TWO_ON_RAY, calls=("windows", "short against"))


def _stock(form: str = "dense", **arguments: Any) -> Start:
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    return Start(
        form,
        "stock",
        {**_STOCK, **arguments},
        environment,
        calls=("windows", "short"),
        all_logits=("short",),
    )


def _torch(form: str, dtype: str) -> Start:
    return Start(form, "torch", {"dtype": dtype, "device": "cpu"}, calls=("windows",))


def _measured(form: str, runs: dict[str, dict[str, Any]], **arguments: Any) -> Start:
    return Start(form, "measured", arguments, calls=(), runs=runs)


def _base_against_itself(name: str) -> dict[str, dict[str, Any]]:
    """Runs of the base that keep its states as the reference `name`, and compare it with that."""
    itself = {"reference": name, "full": True}
    return {"capture": {"keep": name}, "itself": itself}


def _tampered(tamper: str | None, *calls: str, **arguments: Any) -> Start:
    return Start(arguments={"max_model_len": LENGTH, **arguments}, tamper=tamper, calls=calls)


def _decoding(form: str = "dense", *calls: str, **arguments: Any) -> Start:
    """Ours in decode steps, in batches of 16."""
    return replace(_ours(form, decode=True, max_num_seqs=16, **arguments), calls=calls)


def _both(form: str = "dense", environment: dict[str, str] | None = None, **more: Any) -> Any:
    starts = {"stock": _stock(form, **more), "ours": _ours(form, **more)}
    for start in starts.values():
        start.environment.update(environment or {})
    return starts


# Too slow for every time: `make test-vllm-all`.
_MATRIX: dict[str, dict[str, Start]] = {
    **{f"{form}, two ranks": _both(form, TWO_RANKS, tensor_parallel_size=2) for form in FORMATS},
    **{
        f"{form}, two stages": {
            "ours": replace(_ours(form, pipeline_parallel_size=2), environment=TWO_RANKS)
        }
        for form in ("dense", "W4A16")
    },
    "decode, two stages": {
        "ours": replace(
            _decoding("dense", "windows", "mixed", dtype="float32", pipeline_parallel_size=2),
            environment=TWO_RANKS,
        )
    },
    "float32, two ranks on Ray": {"ours": _on_ray(dtype="float32", tensor_parallel_size=2)},
    "dense, two stages on Ray": {"ours": _on_ray(pipeline_parallel_size=2)},
    "float32, chunked": {"ours": _ours(dtype="float32", max_num_batched_tokens=96, max_num_seqs=4)},
    "measured, two ranks": {
        "base": replace(
            _measured("dense", _base_against_itself("two ranks"), tensor_parallel_size=2),
            environment=TWO_RANKS,
        )
    },
}
# The longest first.
_USUAL: dict[str, dict[str, Start]] = {
    # In float32 neither a batch nor ranks move a token by more than rounding.
    "float32, two ranks": {
        "ours": replace(_ours(dtype="float32", tensor_parallel_size=2), environment=TWO_RANKS)
    },
    "float32": {
        "plain": _ours(dtype="float32"),
        "preempted": _ours(
            dtype="float32",
            max_num_batched_tokens=128,
            max_num_seqs=4,
            # Four prompts advance together, in chunks, into a cache that holds one and a half.
            long_prefill_token_threshold=32,
            block_size=32,
            num_gpu_blocks_override=13,
            kv_cache_memory_bytes=16 << 20,
            scheduler_reserve_full_isl=False,
        ),
        "cached": _ours(dtype="float32", enable_prefix_caching=True),
    },
    "measured": {
        "base": _measured(
            "dense",
            _base_against_itself("vllm") | {"by torch": {"reference": "torch"}},
        ),
        "W4A16": _measured(
            "W4A16",
            {
                "by vLLM": {"reference": "vllm", "full": True},
                "again": {"reference": "vllm", "full": True},
                "by torch": {"reference": "torch", "full": True},
            },
        ),
        "decode": _measured(
            "dense",
            _base_against_itself("decoded") | {"by prefill": {"reference": "vllm"}},
            decode=True,
        ),
    },
    "dense": _both()
    | {
        "float32 head": replace(_ours(head_dtype="float32"), calls=("windows", "bf16 against")),
        "float8 cache": replace(_ours(kv_cache_dtype="fp8_e5m2"), calls=("windows",)),
    },
    "quantized": {
        **{f"{form} stock": _stock(form) for form in QUANTIZED},
        **{
            form: replace(_ours(form), calls=("windows", "short", "mixed", "mixed targets"))
            for form in QUANTIZED
        },
    },
    "decode": {
        **{
            name: start
            for form in ("dense", "W4A16")
            for name, start in (
                (f"{form} stock", replace(_stock(form), engine="decoding", all_logits=())),
                (form, _decoding(form, "windows", "windows again", "short")),
            )
        },
        "float32": _decoding("dense", *DECODED, *WRONG_TO_DECODE, dtype="float32"),
        "preempted": _decoding(
            "dense",
            *("windows", "mixed", "first", "chosen after", "windows against"),
            dtype="float32",
            max_num_batched_tokens=96,
            # A cache of 24 blocks for 16 prompts of up to 8.
            block_size=32,
            num_gpu_blocks_override=25,
            kv_cache_memory_bytes=16 << 20,
            scheduler_reserve_full_isl=False,
        ),
        "cached": _decoding("dense", *DECODED, dtype="float32", enable_prefix_caching=True),
        "sliding": _decoding("sliding", "windows", dtype="float32"),
        "sliding prefill": replace(_ours("sliding", dtype="float32"), calls=("windows",)),
        "rows of others": replace(_decoding(dtype="float32"), tamper="rows of others"),
        "other places": replace(_decoding(dtype="float32"), tamper="other places"),
        "speculative": _decoding(speculative_config={"method": "ngram"}),
        "signatures": replace(_decoding(), tamper="decoding signatures"),
    },
    "decode, two ranks": {
        "ours": replace(
            _decoding("dense", *DECODED, dtype="float32", tensor_parallel_size=2),
            environment=TWO_RANKS,
        )
    },
    "refused": {
        "no plugins": Start(environment={"VLLM_PLUGINS": ""}),
        "other plugins": Start(environment={"VLLM_PLUGINS": "other,another"}),
        "head dtype": _ours(head_dtype="float64"),
        "no tokens": _ours(max_model_len=-1),
        "too many positions": _ours(max_model_len=513),
        "unknown keyword": _ours(nonsense=1),
        "signatures": _tampered("signatures", strict=True),
        "float32 head": _tampered("signatures", head_dtype="float32"),
        "shifted targets": _tampered("shifted targets", strict=True),
        # Not refused, and the process is none the worse for the others.
        "fallback": _tampered(
            "signatures",
            *("windows", "short", "first", "inputs", "shuffled", "narrow", "short against"),
            **_STEP,
        ),
    },
    "torch": {
        f"{form} {dtype}": _torch(form, dtype)
        for form in ("dense", "W4A16")
        for dtype in ("float32", "bfloat16")
    },
}
PROCESSES = _USUAL | _MATRIX
# The plugin and vLLM's own path on one rank, by form: process, start.
BOTH = {"dense": (("dense", "ours"), ("dense", "stock"))} | {
    form: (("quantized", form), ("quantized", f"{form} stock")) for form in QUANTIZED
}
MATRIX = frozenset(_MATRIX)


# Float32 engines beside the plain one, by name: process, start.
_FLOAT32 = {
    "preempted": ("float32", "preempted"),
    "cached": ("float32", "cached"),
    "two ranks": ("float32, two ranks", "ours"),
    "chunked": ("float32, chunked", "ours"),
}
FLOAT32 = pytest.mark.parametrize(
    "other",
    [
        pytest.param(start, id=name, marks=[pytest.mark.large] if start[0] in MATRIX else [])
        for name, start in _FLOAT32.items()
    ],
)


def processes(*names: str) -> Any:
    """Parametrizes a test by `process`; those of the matrix are marked large."""
    large = pytest.mark.large
    return pytest.mark.parametrize(
        "process", [pytest.param(n, marks=large) if n in MATRIX else n for n in names]
    )


# Each is refused in one line that has these words, and leaves the engine as it was.
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "empty prompt": ({"prompts": [[1, 2], []]}, "prompt 1 has 0 tokens: 1 to 256 can be scored"),
    "too long": ({"prompts": [[1] * (LENGTH + 1)]}, "prompt 0 has 257 tokens: 1 to 256"),
    "id above": ({"prompts": [[1, 1024]]}, "prompt 0: id 1024 is not one of the vocabulary's 1024"),
    "id below": ({"prompts": [[1, -1]]}, "prompt 0: id -1 is not one of the vocabulary's 1024"),
    "target above": (
        {"prompts": [[1, 2]], "targets": [[1, 1024]]},
        "targets of prompt 0: id 1024 is not one of the vocabulary's 1024",
    ),
    "few targets": ({"prompts": [[1, 2]], "targets": [[1]]}, "prompt 0 has 2 tokens and 1 targets"),
    "few lists": ({"prompts": [[1], [2]], "targets": [[1]]}, "1 targets for 2 prompts"),
    "first beyond": ({"prompts": [[1, 2]], "first": [3]}, "first 3 of prompt 0: it has 2 tokens"),
    "no vocabulary": ({"prompts": [[1, 2]], "vocabulary": 0}, "vocabulary 0"),
    "wide vocabulary": ({"prompts": [[1, 2]], "vocabulary": 1025}, "vocabulary 1025"),
    "target outside": ({"prompts": [[1, 600]], "vocabulary": 300}, "600"),
    "not ids": ({"prompts": [[0.5, 1.5]]}, "prompt 0: not a list of token ids"),
}


def make_calls(
    text: NDArray[np.int32],
    encode: Callable[[str], list[int]],
    references: Path,
) -> dict[str, dict[str, Any]]:
    """What an engine is asked, by name.

    `text` is long, `encode` a tokenizer of its ids; `references` is the folder of that fixture.
    """
    generator = np.random.default_rng(0)
    # Two steps of eight.
    windows = text[: 16 * LENGTH].reshape(16, LENGTH)
    # Few enough for all logits of all tokens, and without ids that a narrow softmax leaves out.
    short = text[text < NARROW][: 4 * 64].reshape(4, 64)
    shuffled = generator.permuted(short, axis=1)
    # The longest possible, the shortest possible, over and under a chunk, in no order.
    lengths = [LENGTH, 1, 2, 17, 255, 100, LENGTH, 33, 128, 200, 1, 64]
    mixed = [ids.tolist() for ids in np.split(text[: sum(lengths)], np.cumsum(lengths)[:-1])]
    sentences = [encode(sentence) for sentence in _SENTENCES]

    def against(
        call: dict[str, Any], reference: Path, rows: list[int] | None = None, *, full: bool = False
    ) -> dict[str, Any]:
        """The call beside rows of a reference: some for each prompt, in no order."""
        if rows is None:
            last = (248 if reference == LLAMA_CPP else 5000) - max(map(len, call["prompts"]))
            rows = generator.integers(0, last, len(call["prompts"])).tolist()
        return call | {"against": {"reference": str(reference), "rows": rows, "full": full}}

    wide = references / "float32"
    narrow = {"prompts": short.tolist(), "vocabulary": NARROW}
    # Under half of the entries: of two ranks, the second has none.
    narrower = {
        "prompts": short.tolist(),
        "targets": (shuffled % 300).tolist(),
        "vocabulary": 300,
    }
    mixed_targets = {
        "prompts": mixed,
        "targets": [generator.permutation(ids).tolist() for ids in mixed],
    }
    return {
        "windows": {"prompts": windows.tolist()},
        "windows again": {"prompts": windows.tolist()},
        # As an engine asks: a window's last token is only a target.
        "inputs": {"prompts": windows[:, :-1].tolist(), "targets": windows[:, 1:].tolist()},
        "short": {"prompts": short.tolist()},
        "alone": {"prompts": short[:1].tolist()},
        "shuffled": {"prompts": short.tolist(), "targets": shuffled.tolist()},
        "narrow": narrow,
        "narrower": narrower,
        "mixed": {"prompts": mixed},
        "mixed targets": mixed_targets,
        "first": {"prompts": mixed, "first": [int(generator.integers(0, n)) for n in lengths]},
        # Gaps, in every prompt.
        "chosen": mixed_targets
        | {"chosen": [np.flatnonzero(np.arange(n) % 5 < 2).tolist() for n in lengths]},
        "chosen after": {
            "prompts": mixed,
            "chosen": [np.flatnonzero(np.arange(n - 1) % 5 > 2).tolist() for n in lengths],
        },
        # Nothing of the first prompt, one target of the second.
        "last only": {
            "prompts": mixed[:2],
            "targets": mixed[:2],
            "first": [lengths[0], lengths[1] - 1],
        },
        # Whole blocks in common.
        "repeated": {"prompts": [windows[0].tolist()] * 3 + [[*windows[0, :200].tolist(), 5, 6]]},
        "none": {"prompts": []},
        "sentences": {"prompts": sentences},
        "scrambled": {"prompts": [generator.permutation(ids).tolist() for ids in sentences]},
        "short against": (compared := against({"prompts": short.tolist()}, wide, full=True)),
        "short against again": compared,
        "narrow against": against(narrow, references / str(NARROW), full=True),
        "narrower against": against(narrower, references / "300", full=True),
        "mixed against": against(mixed_targets, wide, full=True),
        # The very windows that the reference is of.
        "windows against": against(
            {"prompts": windows.tolist()}, wide, [w * (LENGTH - 1) for w in range(16)], full=True
        ),
        "bf16 against": against({"prompts": short.tolist()}, references / "bf16"),
        "file against": against({"prompts": short.tolist()}, LLAMA_CPP),
        "other vocabulary": against({"prompts": short.tolist()}, references / "300"),
        **{name: call for name, (call, _) in WRONG.items()},
        "after errors": {"prompts": short.tolist()},
    }


_SENTENCES = (
    "The value of an expression is the value of its last operand.",
    "If a name is bound in a block, it is a local variable of that block.",
    "An object's type is itself an object, and it cannot be changed.",
)
