"""From a config to a model without values."""

import torch
from torch import nn

from scoremode.engines.torch.model.build import _NothingDrawn


def test_only_what_has_values_gets_random_ones():
    real, meta = torch.zeros(64), torch.zeros(64, device="meta")
    for draw in (nn.init.normal_, nn.init.uniform_, nn.init.trunc_normal_, torch.Tensor.normal_):
        with _NothingDrawn():
            assert draw(meta) is meta
            draw(real.zero_())
        assert real.count_nonzero() > 32
    with _NothingDrawn():
        nn.init.xavier_uniform_(tensor=real.zero_().view(8, 8))
        assert nn.init.kaiming_uniform_(meta.view(8, 8), a=5**0.5).is_meta
    assert real.count_nonzero() > 32


def test_what_is_real_is_drawn_from_the_same_numbers():
    torch.manual_seed(0)
    expected = nn.Linear(4, 4).weight
    torch.manual_seed(0)
    with _NothingDrawn():
        nn.Linear(4, 4, device="meta")
        drawn = nn.Linear(4, 4).weight
    assert torch.equal(drawn, expected)
