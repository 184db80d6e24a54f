"""Decode steps on vLLM's CPU build: stock vLLM's own numbers, prefill's, and the torch engine's."""

import numpy as np
import pytest
from engines.vllm.dtypes import of_bf16
from engines.vllm.processes import DECODED, LENGTH

COLUMNS = ("logprob", "entropy", "top1_logprob")
COMPARED = ("base_logprob", "kld", "kld_reverse", "tv", "jsd", "base_entropy", "model_entropy")
OTHERS = pytest.mark.parametrize(
    ("process", "start"),
    [("decode", "float32"), ("decode", "cached"), ("decode, two ranks", "ours")],
)


def steps(answer, call: str) -> list[list[int]]:
    """Tokens of each window in each step."""
    return [list(step.values()) for step in answer.facts["steps"][call]["steps"]]


@pytest.mark.parametrize("form", ["dense", "W4A16"])
def test_values_are_stock_vllms_own_in_the_same_batches(form, ran):
    """Its raw log-probabilities of tokens that a logits processor of its own interface forces."""
    ours, stock = ran("decode", form), ran("decode", f"{form} stock")
    for call in ("windows", "short"):
        batches = steps(ours, call)
        assert batches == steps(stock, call) and {n for step in batches for n in step} == {1}
        np.testing.assert_allclose(ours.column(call), stock.column(call), rtol=0, atol=4e-6)
    # Each target of 16 windows, a step for each place in them.
    assert len(ours.column("windows")) == 16 * (LENGTH - 1) and len(steps(ours, "windows")) == 255


@pytest.mark.parametrize("form", ["dense", "W4A16"])
def test_the_same_windows_give_the_same_bits(form, ran):
    ours = ran("decode", form)
    for name in (*COLUMNS, "top1"):
        once, again = (ours.column(call, name) for call in ("windows", "windows again"))
        assert len(once) and np.array_equal(once, again)


@OTHERS
@pytest.mark.parametrize("call", DECODED)
def test_float32_is_prefills(process, start, call, ran):
    """Other kernels and other batches move a token by rounding only."""
    ours, plain = ran(process, start), ran("float32", "plain")
    for name in ("position", "target", "lengths"):
        assert np.array_equal(ours.column(call, name), plain.column(call, name)), name
    names = COLUMNS + COMPARED * call.endswith("against")
    for name in names if call != "file against" else (*COLUMNS, "kld", "kld_llama_cpp"):
        np.testing.assert_allclose(
            ours.column(call, name), plain.column(call, name), rtol=0, atol=2e-5, err_msg=name
        )
    assert (ours.column(call, "top1") == plain.column(call, "top1")).mean() > 0.999


@pytest.mark.large
@pytest.mark.parametrize("call", ["windows", "mixed"])
def test_two_stages(call, ran):
    """The last stage scores what the first began; compiled."""
    ours, plain = ran("decode, two stages"), ran("float32", "plain")
    assert ours.facts["describe"]["pipeline_parallel_size"] == 2
    np.testing.assert_allclose(ours.column(call), plain.column(call), rtol=0, atol=2e-5)


def test_float32_is_the_torch_engines(ran):
    """Two engines with nothing in common but the checkpoint."""
    ours, theirs = ran("decode", "float32"), ran("torch", "dense float32")
    difference = ours.column("windows") - theirs.column("windows")
    assert np.abs(difference).max() < 5e-5 and abs(difference.mean()) < 5e-7


@of_bf16
@pytest.mark.parametrize("form", ["dense", "W4A16"])
def test_bf16_is_prefills_but_for_rounding(form, ran):
    prefill = ran("dense") if form == "dense" else ran("quantized", form)
    difference = ran("decode", form).column("windows") - prefill.column("windows")
    assert difference.std() < 0.03 and abs(difference.mean()) < 1e-3


def test_a_step_feeds_a_token_and_a_prompt_ends_before_the_first_target(ran, calls):
    ours = ran("decode", "float32")
    assert {n for step in steps(ours, "windows") for n in step} == {1}
    asked = calls["first"]
    both = zip(asked["first"], asked["prompts"], strict=True)
    prompts = [max(1, begin) for begin, ids in both if begin < len(ids) - 1]
    first, *others = steps(ours, "first")
    assert first == prompts and {n for step in others for n in step} == {1}


def test_two_calls_compare_to_the_same_bits(ran):
    for name in COMPARED:
        ours = ran("decode", "float32")
        once, again = (ours.column(c, name) for c in ("short against", "short against again"))
        assert len(once) and np.array_equal(once, again)


@pytest.mark.parametrize("call", ["windows", "mixed", "first", "chosen after", "windows against"])
def test_a_preempted_windows_targets_are_scored_once(call, ran):
    """What is computed again goes through prefill, and is counted."""
    ours, plain = ran("decode", "preempted"), ran("float32", "plain")
    for name in ("position", "target", "lengths"):
        assert np.array_equal(ours.column(call, name), plain.column(call, name)), name
    for name in (*COLUMNS, *(("kld",) if call.endswith("against") else ())):
        np.testing.assert_allclose(
            ours.column(call, name), plain.column(call, name), rtol=0, atol=2e-5
        )
    preempted = ours.facts["steps"]["windows"]["preempted"]
    assert (
        preempted > 0
        and ours.facts["prefilled"] > 0
        and ran("decode", "dense").facts["prefilled"] == 0
    )


def test_a_prefix_that_is_cached_is_not_computed_again(ran):
    cached, plain = ran("decode", "cached"), ran("decode", "float32")
    assert cached.facts["describe"]["enable_prefix_caching"]
    fed = [sum(map(sum, steps(answer, "first"))) for answer in (cached, plain)]
    assert fed[0] < fed[1]


def test_a_sliding_window_is_prefills(ran):
    ours, prefill = ran("decode", "sliding"), ran("decode", "sliding prefill")
    np.testing.assert_allclose(ours.column("windows"), prefill.column("windows"), rtol=0, atol=2e-5)
    dense = ran("float32", "plain").column("windows").reshape(16, -1)
    apart = np.abs(ours.column("windows").reshape(16, -1) - dense)
    assert apart[:, :63].max() < 2e-5 and apart[:, 100:].mean() > 0.01


@pytest.mark.parametrize("tamper", ["rows of others", "other places"])
def test_a_row_taken_for_another_is_no_measurement(tamper, ran):
    error = ran("decode", tamper).facts["errors"]["start"]
    assert "vLLM took token" in error or "was sampled after, where" in error, error


def test_what_decode_steps_cannot_do_is_refused_in_one_line(ran):
    error = ran("decode", "float32").facts["errors"]["shuffled"]
    assert (
        error == "vLLM's generating runner scores only what follows in the prompt, no other targets"
    )
    error = ran("decode", "speculative").facts["errors"]["start"]
    assert error.startswith("speculative_config: decode steps are scored where")
    error = ran("decode", "signatures").facts["errors"]["start"]
    assert error.endswith("SamplingParams in vllm/sampling_params.py has no none")


def test_what_ran_is_told(ran):
    told = ran("decode", "dense").facts["describe"]
    wanted = {
        "path": "decode steps", "phase": "decode", "runner": "V1", "max_num_seqs": 16,
        "cuda_graphs": "NONE", "enable_prefix_caching": False, "enforce_eager": True,
    }  # fmt: skip
    assert {name: told[name] for name in wanted} == wanted
    assert "phase" not in ran("dense").facts["describe"]
