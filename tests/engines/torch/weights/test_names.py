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


def test_a_models_own_names_are_found_by_the_checkpoints(tmp_path):
    names = make_engine(make_checkpoint(tmp_path, "mixtral")).parts.weights._names
    experts = "model.layers.1.block_sparse_moe.experts"
    assert names.stored("model.norm.weight") == "model.norm.weight"
    assert names.stored("model.layers.1.mlp.experts.gate_up_proj") is None
    made = names.conversion("model.layers.1.mlp.experts.gate_up_proj")
    assert made is not None and len(made.sources) == 2
    first = next(iter(made.sources))
    assert made.in_order(first, 6) == [f"{experts}.{e}.w1.weight" for e in range(6)]
    assert names.renamed(f"{experts}.0.w2.weight") == "model.layers.1.mlp.experts.down_proj"
    assert names.renamed("nobody.knows.it") == "nobody.knows.it"
    assert names.language_model() is None
