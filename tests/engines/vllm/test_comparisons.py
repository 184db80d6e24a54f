"""Every column of a comparison against float64, whatever ranks and chunks it went through."""

from pathlib import Path

import numpy as np
import pytest
import torch
from engines.vllm.dtypes import of_bf16
from engines.vllm.processes import FLOAT32, processes

from scoremode.reference.stored import StoredReference
from scoremode.results.scores import concatenate

COLUMNS = ("base_logprob", "base_top1_logprob", "kld", "kld_reverse", "tv", "jsd", "base_entropy",
           "model_entropy")  # fmt: skip


def log_softmax(z: np.ndarray) -> np.ndarray:
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def rows_of(call: dict) -> np.ndarray:
    """The reference's row of every scored target, by what the call asks."""
    counts = [len(ids) - ("targets" not in call) for ids in call["prompts"]]
    begins = call["against"]["rows"]
    return np.concatenate([np.arange(b, b + n) for b, n in zip(begins, counts, strict=True)])


def base_logits(call: dict, *, rounded: bool = False) -> np.ndarray:
    """Float64 [N, V] of the call's rows; `rounded` to bf16 as vLLM's own."""
    reference = StoredReference(Path(call["against"]["reference"]))
    head = reference.head(torch.device("cpu"))
    states = reference.states([(0, 5000)])[torch.from_numpy(rows_of(call))]
    z = states.double() @ head.weight.double().T
    return (z.bfloat16().double() if rounded else z)[:, : head.vocabulary].numpy()


def truth(base: np.ndarray, model: np.ndarray, target: np.ndarray) -> dict[str, np.ndarray]:
    """All columns by their definition, from both models' logits [N, V]."""
    p, q = log_softmax(base), log_softmax(model)
    middle = np.log((np.exp(p) + np.exp(q)) / 2)
    top = [np.argsort(-z, axis=1, kind="stable")[:, :10] for z in (base, model)]
    same = top[0] == top[1]
    sets = [
        sum(1 << k for k in range(10) if set(a[: k + 1]) == set(b[: k + 1]))
        for a, b in zip(*top, strict=True)
    ]
    return {
        "base_logprob": np.take_along_axis(p, target[:, None], 1)[:, 0],
        "base_top1": top[0][:, 0],
        "base_top1_logprob": p.max(1),
        "kld": (np.exp(p) * (p - q)).sum(1),
        "kld_reverse": (np.exp(q) * (q - p)).sum(1),
        "tv": np.abs(np.exp(p) - np.exp(q)).sum(1) / 2,
        "jsd": ((np.exp(p) * (p - middle)).sum(1) + (np.exp(q) * (q - middle)).sum(1)) / 2,
        "base_entropy": -(np.exp(p) * p).sum(1),
        "model_entropy": -(np.exp(q) * q).sum(1),
        "topk_sets": np.array(sets),
        "topk_order": np.cumprod(same, 1).sum(1),
    }


@pytest.fixture
def both(process, ran):
    """The plugin's answer, and [252, V]: all log-probabilities of `short` by vLLM's own path."""
    full = ran(process, "stock").column("short", "full")
    return ran(process), full.astype(np.float64)


DENSE = processes("dense", "dense, two ranks")


@DENSE
@pytest.mark.parametrize("call", ["short against", "narrow against", "narrower against"])
def test_every_column_by_its_definition(call, both, calls):
    ours, full = both
    asked = calls[call]
    entries = asked.get("vocabulary", 1024)
    target, model = ours.column(call, "target"), full[:, :entries]
    # Explicit ones also follow the last token, which vLLM's own path has no logits of.
    inner = np.arange(len(target)) % 64 != 63 if "targets" in asked else slice(None)
    wanted = truth(base_logits(asked)[inner], model, target[inner])
    for name in COLUMNS:
        np.testing.assert_allclose(
            ours.column(call, name)[inner], wanted[name], rtol=0, atol=2e-5, err_msg=name
        )
    assert wanted["kld"].mean() > 0.5, "models that agree prove little"
    for name in ("base_top1", "topk_sets", "topk_order"):
        assert np.array_equal(ours.column(call, name)[inner], wanted[name]), name


@DENSE
def test_the_models_own_scores_are_those_without_a_base(process, ran):
    ours = ran(process)
    for name in ("position", "target", "logprob", "entropy", "top1", "top1_logprob"):
        compared, alone = ours.column("short against", name), ours.column("short", name)
        assert np.array_equal(compared, alone), name


@processes("dense", "dense, two ranks", "float32")
def test_a_comparison_twice_gives_the_same_bits(process, ran):
    ours = ran(process, "plain" if process == "float32" else "ours")
    for name in (*COLUMNS, "topk_sets", "topk_order"):
        once, again = (ours.column(c, name) for c in ("short against", "short against again"))
        assert len(once) and np.array_equal(once, again)


@of_bf16
@DENSE
def test_a_base_of_the_models_dtype_has_its_logits_rounded_alike(both, calls):
    """A bf16 logit of 16 is off by up to 0.03, which another sum's last bit may turn to the other
    side."""
    ours, full = both
    wanted = truth(
        base_logits(calls["bf16 against"], rounded=True),
        full,
        ours.column("bf16 against", "target"),
    )
    for name in ("base_logprob", "kld"):
        apart = ours.column("bf16 against", name) - wanted[name]
        # An entry in some ten thousand; without the rounding it is 0.01 rms.
        assert np.median(np.abs(apart)) < 2e-5 and np.sqrt((apart**2).mean()) < 2e-3, name


@of_bf16
def test_a_float32_head_leaves_the_bases_logits_unrounded(ran, calls):
    ours, asked = ran("dense", "float32 head"), calls["bf16 against"]
    wanted = log_softmax(base_logits(asked))
    target = ours.column("bf16 against", "target")
    np.testing.assert_allclose(
        ours.column("bf16 against", "base_logprob"),
        np.take_along_axis(wanted, target[:, None], 1)[:, 0],
        rtol=0,
        atol=2e-5,
    )


@FLOAT32
@pytest.mark.parametrize(
    "call", [f"{name} against" for name in ("mixed", "windows", "short", "narrow", "narrower")]
)
def test_rows_follow_their_tokens_in_every_engine(other, call, ran):
    """In float32 another batch, or a sum over two ranks, moves a token by rounding only."""
    ours, plain = ran(*other), ran("float32", "plain")
    if other[1] == "preempted" and call in ("mixed against", "windows against"):
        steps = [prompt for step in ours.facts["steps"][call]["steps"] for prompt in step]
        assert len(steps) > len(set(steps)), "no prompt was computed in pieces"
    for name in COLUMNS:
        np.testing.assert_allclose(
            ours.column(call, name), plain.column(call, name), rtol=0, atol=2e-5, err_msg=name
        )


def test_float32_is_the_torch_engines(ran, checkpoint, references):
    """Two engines with nothing in common but the checkpoint, and the reference."""
    from engines.vllm.measured import request

    from scoremode.checkpoint.files import open_checkpoint
    from scoremode.engines.base import Extras
    from scoremode.engines.torch.engine import build_engine
    from scoremode.engines.torch.options import TorchOptions
    from scoremode.runs.planning import plan_text

    model, reference = checkpoint("dense"), StoredReference(references / "float32")
    options = TorchOptions(device="cpu", dtype="float32")
    asked = request(model, options, references)
    plan = plan_text(asked.corpus, asked.protocol, model=model).plan
    engine = build_engine(open_checkpoint(model), options)
    extras = Extras(reference, full=True)
    scores = concatenate(list(engine.score(plan, engine.schedule(plan), extras=extras)))
    ours, theirs = ran("float32", "plain"), scores.columns()
    count = len(ours.column("windows against"))
    assert count == 16 * 255 and theirs["kld"].mean() > 0.01
    for name in ("target", "base_top1"):
        assert np.array_equal(ours.column("windows against", name), theirs[name][:count])
    for name in COLUMNS:
        np.testing.assert_allclose(
            ours.column("windows against", name), theirs[name][:count], rtol=0, atol=5e-5
        )
    for name in ("topk_sets", "topk_order"):
        got, wanted = ours.column("windows against", name), theirs[name][:count]
        # Two logits may be as near as the roundings.
        assert (got == wanted).mean() > 0.995 and len(np.unique(wanted)) > 5, name


@DENSE
def test_a_llama_cpp_file_is_compared_with_as_it_says(both, calls):
    from support.llama_cpp.files import kld_llama_cpp, logprobs

    from scoremode.llama_cpp.file import LogitsFile

    ours, full = both
    call = calls["file against"]
    file = LogitsFile(Path(call["against"]["reference"]))
    stored = logprobs(file, 0, file.rows, 0, file.entries)[rows_of(call)]
    target = ours.column("file against", "target")
    wanted = truth(stored.astype(np.float64), full, target)
    for name in ("kld", "kld_reverse"):
        np.testing.assert_allclose(
            ours.column("file against", name), wanted[name], rtol=0, atol=2e-5
        )
    # As the file has it, not renormalized.
    own = np.take_along_axis(stored, target[:, None], 1)[:, 0]
    assert np.array_equal(ours.column("file against", "base_logprob"), own)
    np.testing.assert_allclose(
        ours.column("file against", "kld_llama_cpp"),
        kld_llama_cpp(stored, full.astype(np.float32)),
        rtol=0,
        atol=2e-5,
    )


@DENSE
def test_another_vocabulary_is_refused_in_one_line(process, ran):
    error = ran(process).facts["errors"]["other vocabulary"]
    assert error.endswith("300: its softmax runs over 300 entries, and this model's over 1024")


def test_vllms_own_path_refuses_to_compare(ran):
    error = ran("refused", "fallback").facts["errors"]["short against"]
    assert (
        "has no nonesuch; vLLM's own path compares with no reference and keeps no states" in error
    )
