"""A model against a base, in one engine, held against transformers' logits of both in float64."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.engine import make_engine
from support.models import VOCAB, library_model, make_checkpoint, random_plan

from scoremode.engines.base import Extras, Schedule
from scoremode.engines.torch.engine import ModelReference
from scoremode.results.scores import check, concatenate

# What a base and a model can differ in besides their weights.
PAIRS = [
    ("llama", "qwen2"),
    ("llama", "gemma2"),  # a softcap on the model's side
    ("gemma2", "llama"),  # and on the base's
    ("cohere", "granite"),  # a scale each
    ("phi", "gpt2"),  # a bias on the base's head
]


def compare(
    base, model, plan, *, full=False, draft=None, vocabulary=None, schedule=None, **options
):
    engines = [make_engine(folder, vocabulary, **options) for folder in (base, model)]
    schedule = schedule or Schedule(pass_windows=4, batch_windows=2)
    reference = ModelReference(engines[0], plan, schedule)
    parts = list(engines[1].score(plan, schedule, extras=Extras(reference, full, draft)))
    for windows, part in zip(schedule.passes(plan), parts, strict=True):
        check(part, plan, windows)
    return concatenate(parts)


def library_logits(folder: Path, plan, vocabulary=None) -> torch.Tensor:
    """float64 [scored, V] log-probabilities."""
    model = library_model(folder, torch.float32, attention="eager")
    rows = []
    for window in plan:
        with torch.no_grad():
            z = model(torch.from_numpy(window.inputs.astype(np.int64))[None]).logits[0]
        rows.append(z[window.first - 1 :, :vocabulary].double().log_softmax(1))
    return torch.cat(rows)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = make_checkpoint(tmp_path_factory.mktemp(name) / "model", name)
        return made[name]

    return folder


@pytest.mark.parametrize("vocabulary", [None, VOCAB - 7])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_equals_the_librarys_logits_in_float64(pair, vocabulary, folders):
    base, model = (folders(name) for name in pair)
    plan = random_plan(vocabulary=vocabulary or VOCAB)
    scores = compare(
        base, model, plan, full=True, draft=0.7, vocabulary=vocabulary, dtype="float32"
    )
    p, q = (library_logits(folder, plan, vocabulary) for folder in (base, model))
    target = torch.from_numpy(scores.target.astype(np.int64))[:, None]
    against = scores.against
    assert against is not None
    m = torch.logaddexp(p, q) - np.log(2)
    cool_p, cool_q = ((z / 0.7).softmax(1) for z in (p, q))
    for name, got, wanted in (
        ("logprob", scores.logprob, q.gather(1, target)[:, 0]),
        ("base", against.base_logprob, p.gather(1, target)[:, 0]),
        ("kld", against.kld, (p.exp() * (p - q)).sum(1)),
        ("reverse", against.kld_reverse, (q.exp() * (q - p)).sum(1)),
        ("tv", against.tv, (p.exp() - q.exp()).abs().sum(1) / 2),
        ("tv_draft", against.tv_draft, (cool_p - cool_q).abs().sum(1) / 2),
        ("jsd", against.jsd, (p.exp() * (p - m) + q.exp() * (q - m)).sum(1) / 2),
        ("base's entropy", against.base_entropy, -(p.exp() * p).sum(1)),
        ("entropy", against.model_entropy, -(q.exp() * q).sum(1)),
    ):
        assert np.abs(got - wanted.numpy()).max() < 2e-5, name
    assert np.array_equal(scores.top1, q.argmax(1).numpy())
    assert np.array_equal(against.base_top1, p.argmax(1).numpy())
    tops = p.topk(10).indices, q.topk(10).indices
    same = (tops[0] == tops[1]).long().cumprod(1).sum(1).numpy()
    assert np.array_equal(against.topk_order, same)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_against_itself_is_exactly_zero(dtype, folders):
    plan = random_plan()
    against = compare(folders("gemma2"), folders("gemma2"), plan, full=True, dtype=dtype).against
    assert against is not None
    for column in (against.kld, against.kld_reverse, against.tv, against.jsd):
        assert not column.any()
    assert (against.topk_order == 10).all() and (against.topk_sets == 1023).all()
    assert np.array_equal(against.base_entropy, against.model_entropy)


def test_a_models_own_scores_are_those_without_a_base(folders):
    plan, schedule = random_plan(), Schedule(pass_windows=4, batch_windows=2)
    alone = concatenate(list(make_engine(folders("qwen2")).score(plan, schedule)))
    beside = compare(folders("llama"), folders("qwen2"), plan, schedule=schedule)
    for name, column in alone.columns().items():
        assert np.array_equal(column, getattr(beside, name)), name
