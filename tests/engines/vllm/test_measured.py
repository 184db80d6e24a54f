"""`scoremode reference` and `scoremode kld` with vLLM: exact against itself, and against our engine."""

import numpy as np
import pytest
import torch
from engines.vllm.dtypes import SERVED, of_bf16
from engines.vllm.measured import request

from scoremode.reference.replay import replay
from scoremode.reference.stored import StoredReference
from scoremode.results.folders.store import read_scores

BASES = pytest.mark.parametrize(
    ("process", "kept"),
    [
        ("measured", "vllm"),
        pytest.param("measured, two ranks", "two ranks", marks=pytest.mark.large),
    ],
)


@pytest.fixture(scope="session")
def by_torch(engines, checkpoint, references, ran):
    """Scores of the W4A16 model by our own engine, beside a reference."""

    def scores(kept: str):
        from scoremode.engines.torch.options import TorchOptions
        from scoremode.runs.measure import measure

        ran("measured", "base")
        folder = references / f"by-torch-{kept}"
        with engines.once(f"by torch {kept}") as is_first:
            if is_first:
                options = TorchOptions(device="cpu", dtype=SERVED)  # pyright: ignore[reportArgumentType]
                measure(
                    request(
                        checkpoint("W4A16"),
                        options,
                        folder,
                        reference=str(references / kept),
                        full=True,
                    )
                )
        (run,) = folder.glob("*/record.json")
        return read_scores(run.parent)

    return scores


@BASES
def test_a_base_is_not_apart_from_itself(process, kept, ran):
    """States and logits come back to the bit, so that nothing is left, in no token."""
    ours = ran(process, "base")
    for name in ("kld", "kld_reverse", "jsd"):
        column = ours.column("itself", name)
        assert len(column) > 5000 and not column.any(), name
    assert (ours.column("itself", "topk_sets") == 1023).all()
    assert (ours.column("itself", "topk_order") == 10).all()
    for name in ("logprob", "top1", "top1_logprob"):
        captured, base, model = (
            ours.column(run, column)
            for run, column in (("capture", name), ("itself", f"base_{name}"), ("itself", name))
        )
        assert np.array_equal(captured, base) and np.array_equal(captured, model), name
    assert ours.facts["records"]["itself"]["reference"]["replay"]["bitwise"] is True


def test_a_base_that_decode_steps_captured_is_not_apart_from_itself(ran, references):
    """A step's batch is the same both times, and its states come back to the bit."""
    ours = ran("measured", "decode")
    for name in ("kld", "kld_reverse", "jsd", "tv"):
        column = ours.column("itself", name)
        assert len(column) > 5000 and not column.any(), name
    for name in ("logprob", "top1", "top1_logprob"):
        captured, model = (ours.column(run, name) for run in ("capture", "itself"))
        assert np.array_equal(captured, model), name
    record = ours.facts["records"]["itself"]
    assert record["reference"]["replay"]["bitwise"] is True
    assert record["engine"]["phase"] == record["reference"]["engine"]["phase"] == "decode"
    assert record["engine"]["prefilled_targets"] == 0
    by_decode, by_prefill = (
        StoredReference(references / name).states([(0, len(ours.column("itself")))]).double()
        for name in ("decoded", "vllm")
    )
    apart = (by_decode - by_prefill).norm(dim=1) / by_prefill.norm(dim=1)
    # The state of a neighbouring token is as far away as any.
    assert apart.max() < 0.2 and apart.mean() < 0.02
    assert ours.column("by prefill", "kld").mean() < 1e-3


@BASES
def test_captured_states_are_those_that_our_engine_computes(process, kept, ran, references):
    ran(process, "base")
    ours, theirs = (StoredReference(references / name) for name in (kept, "torch"))
    assert len(ours.record.document["kept"]["states"]["files"]) > 1, (
        "one pass proves no order of passes"
    )
    rows = [(0, ours.record.document["plan"]["scored"])]
    a, b = (r.states(rows).double() for r in (ours, theirs))
    assert a.shape == b.shape and ours.dtype == theirs.dtype == getattr(torch, SERVED)
    apart = (a - b).norm(dim=1) / b.norm(dim=1)
    # Roundings of three layers; the state of a neighbouring token is as far away as any.
    assert apart.max() < 0.2 and apart.mean() < 0.02
    shifted = (a[1:] - b[:-1]).norm(dim=1) / b[:-1].norm(dim=1)
    assert shifted.mean() > 0.5
    mine, yours = (read_scores(r.path).logprob for r in (ours, theirs))
    assert (mine - yours).std() < 0.03


@of_bf16
@BASES
def test_what_vllm_captured_replays_on_our_head(process, kept, ran, references):
    """Its own logits are rounded to bf16, which leaves about 0.01 nats."""
    ran(process, "base")
    found = replay(StoredReference(references / kept), torch.device("cpu"))
    assert found.rows == 512 and 1e-4 < found.rms < 0.02


def test_two_runs_give_the_same_bits(ran):
    ours = ran("measured", "W4A16")
    for name in ("logprob", "base_logprob", "kld", "kld_reverse", "jsd", "topk_sets"):
        once, again = (ours.column(run, name) for run in ("by vLLM", "again"))
        assert len(once) > 5000 and np.array_equal(once, again), name


@pytest.mark.parametrize(("run", "kept"), [("by vLLM", "vllm"), ("by torch", "torch")])
def test_both_engines_measure_the_same_divergence(run, kept, ran, by_torch):
    """Of one reference, whichever engine captured it."""
    ours, theirs = ran("measured", "W4A16"), by_torch(kept).columns()
    assert theirs["kld"].mean() > 0.01
    for name in ("kld", "kld_reverse", "jsd"):
        column = ours.column(run, name)
        # Each of 5000 tokens moves by a hundredth of a nat's rounding, and the mean by little.
        assert np.corrcoef(column, theirs[name])[0, 1] > 0.97, name
        assert column.mean() == pytest.approx(theirs[name].mean(), rel=0.02), name
    apart = ours.column(run, "base_logprob") - theirs["base_logprob"]
    assert apart.std() < 0.02 and abs(apart.mean()) < 1e-3
    for name in ("base_top1", "top1"):
        assert (ours.column(run, name) == theirs[name]).mean() > 0.97, name


def test_a_base_of_the_other_engine_is_as_far_as_rounding(ran):
    """The dense model in vLLM beside itself in our engine: the floor of such a comparison."""
    kld = ran("measured", "base").column("by torch", "kld")
    assert 0 < kld.mean() < 1e-3 and kld.min() > -1e-6


def test_the_record_says_what_was_compared(ran, references):
    record = ran("measured", "W4A16").facts["records"]["by vLLM"]
    assert record["reference"]["kind"] == "stored"
    assert record["reference"]["engine"]["engine"] == record["engine"]["engine"] == "vllm"
    seconds = record["engine"]["seconds"]
    assert seconds["head"] > 0 and seconds["score"] > 0
    head = record["engine"]["head"]
    assert (head["width"], head["dtype"]) == (192, SERVED)
