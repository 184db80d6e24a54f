"""Proofs before scores: a head that is more than ours, a model that sees what it should predict."""

import pytest
import torch
from support.engine import make_engine, score
from support.models import make_checkpoint, random_plan
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from scoremode.engines.torch.passes.proofs import probe_ids
from scoremode.engines.torch.weights.head import HeadShape
from scoremode.errors import UnsupportedModel


@pytest.mark.parametrize("count", [1, 2, 5, 16, 99])
def test_a_probes_rows_are_alike_in_their_first_half_alone(count):
    ids = torch.arange(count) * 7 % 11
    one, other = probe_ids(ids, 11)
    length = min(16, count)
    assert torch.equal(one, ids[:length])
    alike = (one == other).tolist()
    assert alike == [True] * (length // 2) + [False] * (length - length // 2)
    assert int(other.min()) >= 0 and int(other.max()) < 11


def no_factors(name, module, rows, *rest):
    return HeadShape(1.0, None, rows)


def test_a_missed_head_scale_is_found(tmp_path, monkeypatch):
    folder = make_checkpoint(tmp_path, "cohere")
    monkeypatch.setattr("scoremode.engines.torch.weights.head.probe_head", no_factors)
    engine = make_engine(folder)
    with pytest.raises(UnsupportedModel, match="logits differ"):
        score(engine, random_plan())


def test_a_missed_softcap_is_found_even_where_it_hardly_bends(tmp_path, monkeypatch):
    folder = make_checkpoint(
        tmp_path, "gemma2", change=lambda settings: settings.update(final_logit_softcapping=500.0)
    )
    monkeypatch.setattr("scoremode.engines.torch.weights.head.probe_head", no_factors)
    engine = make_engine(folder)
    with pytest.raises(UnsupportedModel, match="logits differ"):
        score(engine, random_plan())


@pytest.mark.parametrize("name", ["bert", "electra"])
def test_a_model_that_sees_its_targets_is_refused(name, tmp_path):
    folder = make_checkpoint(tmp_path, name)
    with pytest.raises(UnsupportedModel, match="sees what it should predict"):
        score(make_engine(folder), random_plan())


def test_a_head_that_is_called_twice_is_refused(tmp_path, monkeypatch):
    """The first call's input would be taken for what the logits are made of."""
    own = LlamaForCausalLM.forward

    def forward(self, input_ids, **kwargs):
        self.lm_head(self.model.embed_tokens(input_ids))
        return own(self, input_ids, **kwargs)

    folder = make_checkpoint(tmp_path, "llama")
    monkeypatch.setattr(LlamaForCausalLM, "forward", forward)
    with pytest.raises(UnsupportedModel, match="calls its output embedding 2 times"):
        score(make_engine(folder), random_plan())
