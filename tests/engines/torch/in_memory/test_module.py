"""What of a module can be run in memory; `test_engine.py` runs it."""

import pytest
import torch
from support.models import library_model
from torch import nn

from scoremode.engines.torch.in_memory import InMemoryModule
from scoremode.errors import UnsupportedModel


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda m: setattr(m, "lm_head", nn.Embedding(4, 4)), "is a Embedding"),
        (lambda m: m.lm_head.to("meta"), "is not here"),
        (lambda m: setattr(m, "get_output_embeddings", lambda: None), "no output embedding"),
    ],
)
def test_what_has_no_head_of_its_own_is_refused(demo, break_it, words):
    module = library_model(demo / "model", torch.float32)
    module.lm_head = nn.Linear(module.config.hidden_size, module.config.vocab_size, bias=False)
    break_it(module)
    with pytest.raises(UnsupportedModel, match=words):
        InMemoryModule(module)


def test_a_forward_that_fails_is_named(demo):
    module = library_model(demo / "model", torch.float32)

    def broken(*_, **__):
        raise ValueError("wants pixels")

    module.model.forward = broken
    with pytest.raises(UnsupportedModel, match=r"does not run on token ids alone \(.*wants pixels"):
        InMemoryModule(module).states(torch.ones(1, 2, dtype=torch.int64))
