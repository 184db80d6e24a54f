"""The plugin against vLLM's own `prompt_logprobs`, in the same batches: the same numbers."""

import numpy as np
import pytest
from engines.vllm.processes import BOTH, processes

KERNELS = {
    "dense": {"UnquantizedLinearMethod": 12},
    "W4A16": {"CompressedTensorsWNA16: CPUWNA16LinearKernel": 12},
    "W8A8": {"CompressedTensorsW8A8Int8: CPUInt8ScaledMMLinearKernel": 12},
    "FP8": {"CompressedTensorsW8A8Fp8: ChannelWiseTorchFP8ScaledMMLinearKernel": 12},
}
FORMS = pytest.mark.parametrize("form", KERNELS)


def agree(ours, stock) -> None:
    assert ours.facts["errors"].get("start") is None
    assert ours.facts["describe"]["path"] == "pooler" and ours.facts["notes"] == []
    for call in ("windows", "short"):
        steps = [a.facts["steps"][call]["steps"] for a in (ours, stock)]
        batches = [[list(step.values()) for step in s] for s in steps]
        assert batches[0] == batches[1], "other batches: nothing to compare"
        # One float32 rounding of a log-probability around -16 is 1e-6.
        np.testing.assert_allclose(ours.column(call), stock.column(call), rtol=0, atol=1e-5)


@FORMS
def test_values_are_those_of_prompt_logprobs(form, ran):
    ours, stock = BOTH[form]
    agree(ran(*ours), ran(*stock))


@FORMS
def test_the_quantized_kernels_ran(form, ran):
    ours = ran(*BOTH[form][0])
    describe = ours.facts["describe"]
    assert describe["linear"] == KERNELS[form]
    assert describe["quantization"] == (None if form == "dense" else "compressed-tensors")
    # Else each test would be that of the dense one. bf16 rounding alone is 0.012 rms.
    apart = ours.column("windows") - ran("dense").column("windows")
    assert form == "dense" or apart.std() > 0.02


@processes(*(f"{form}, two ranks" for form in ("float32", *KERNELS)))
def test_two_tensor_ranks(process, ran):
    """Those of float32 are held to one rank's in test_counts.py and test_comparisons.py."""
    ours = ran(process)
    if process != "float32, two ranks":
        agree(ours, ran(process, "stock"))
    assert ours.facts["describe"]["tensor_parallel_size"] == 2
    assert ours.facts["describe"]["head"]["ranks"] == 2


@pytest.mark.large
@pytest.mark.parametrize("form", ["dense", "W4A16"])
def test_two_stages(form, ran):
    """The last stage scores what the first began; compiled, so no bits are those of one stage."""
    ours = ran(f"{form}, two stages")
    assert ours.facts["describe"]["pipeline_parallel_size"] == 2
    for call in ("windows", "mixed", "mixed targets"):
        difference = ours.column(call) - ran(*BOTH[form][0]).column(call)
        assert np.abs(difference).max() < 0.25 and abs(difference.mean()) < 1e-3


def test_the_same_call_gives_the_same_bits(ran):
    for name in ("logprob", "entropy", "top1", "top1_logprob"):
        once, again = (ran("dense").column(c, name) for c in ("windows", "windows again"))
        assert len(once) and np.array_equal(once, again)
