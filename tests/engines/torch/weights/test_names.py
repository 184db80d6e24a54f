"""Names of a checkpoint as the model knows them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.engine import make_engine, score
from support.models import edit_tensors, make_checkpoint, random_plan

from scoremode.engines.torch.weights.names import Conversion
from scoremode.errors import CheckpointError


def test_base_model_without_prefix_is_found(tmp_path):
    folder = make_checkpoint(tmp_path, "gpt2")
    plan = random_plan()
    before = score(make_engine(folder), plan)

    def strip(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)

    edit_tensors(folder, strip)
    assert np.array_equal(before.logprob, score(make_engine(folder), plan).logprob)


def test_sources_of_a_conversion_come_in_order_and_are_complete():
    pattern = "experts.*.up_proj.weight"
    rule: Any = SimpleNamespace()
    made = Conversion(rule, "mlp.experts.up_proj", {pattern: {1: "b", 0: "a", 2: "c"}})
    assert made.in_order(pattern, 3) == ["a", "b", "c"]
    with pytest.raises(
        CheckpointError, match=r"tensor c is of expert 2, and mlp\..* has 2 experts"
    ):
        made.in_order(pattern, 2)
    with pytest.raises(
        CheckpointError, match=r"no tensor experts\.3\.up_proj\.weight for expert 3"
    ):
        made.in_order(pattern, 4)
