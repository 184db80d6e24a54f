"""gpt-oss with MXFP4 experts against the library's forward and the dense model of the same weights."""

import numpy as np
import pytest
import torch
from support.engine import make_engine, score
from support.families.mxfp4_experts import make_pair, mxfp8
from support.models import edit_tensors, library_logprobs, library_model, random_plan

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.base import Schedule
from scoremode.engines.torch.weights import experts
from scoremode.errors import CheckpointError, ScoremodeError
from scoremode.schemes.summary import summarize

EXPERTS = "model.layers.1.mlp.experts"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return make_pair(tmp_path_factory.mktemp("gpt-oss"))


def test_equals_the_librarys_forward_of_what_it_decodes_itself(pair):
    packed, dense = pair
    plan = random_plan()
    ours = score(make_engine(packed, dtype="float32"), plan).logprob
    theirs = library_logprobs(library_model(dense, torch.float32, "eager"), plan)
    assert np.abs(ours - theirs).max() < 1e-5
    assert theirs.std() > 0.5


def test_equals_the_librarys_own_load_of_the_same_files(pair, monkeypatch):
    """Without a GPU's kernels it decodes them itself."""
    from transformers.quantizers import quantizer_mxfp4

    monkeypatch.setattr(quantizer_mxfp4, "is_accelerate_available", lambda: True)
    packed, dense = pair
    theirs = library_model(packed, torch.bfloat16, "eager").state_dict()
    expected = library_model(dense, torch.bfloat16, "eager").state_dict()
    assert theirs.keys() == expected.keys()
    assert all(torch.equal(theirs[key], value) for key, value in expected.items())


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_equals_the_dense_one_to_the_bit(dtype, pair, monkeypatch):
    """The dense one's weights lie transposed, which a float32 product on a CPU may sum in another
    order: all are made to lie alike."""

    def apply(part, x):
        return torch.nn.functional.linear(x, part.weight.contiguous(), part.bias)

    monkeypatch.setattr(experts.ExpertPart, "apply", apply)
    packed, dense = pair
    plan = random_plan()
    engine = make_engine(packed, dtype=dtype)
    assert engine.describe()["arithmetic"] == "weights"
    ours, theirs = score(engine, plan), score(make_engine(dense, dtype=dtype), plan)
    assert np.array_equal(ours.logprob, theirs.logprob)


def library_mxfp8(dense):
    """transformers' model whose experts' inputs, those of both projections, are rounded first."""
    model = library_model(dense, torch.float32, "eager")

    def forward(module):
        def run(hidden, index, weights):
            total = torch.zeros_like(hidden)
            for expert in index.unique().tolist():
                token, choice = torch.where(index == expert)
                gate_up = mxfp8(hidden[token]) @ module.gate_up_proj[expert]
                states = module._apply_gate(gate_up + module.gate_up_proj_bias[expert])
                y = mxfp8(states) @ module.down_proj[expert] + module.down_proj_bias[expert]
                total.index_add_(0, token, y * weights[token, choice, None])
            return total

        return run

    for layer in model.model.layers:
        layer.mlp.experts.forward = forward(layer.mlp.experts)
    return model


@pytest.mark.parametrize("memory", [None, 64 * 2**10])
def test_experts_inputs_in_mxfp8_where_that_is_asked_for(memory, pair):
    packed, dense = pair
    plan = random_plan()
    options = {"dtype": "float32", "arithmetic": "weights+activations", "max_memory": memory}
    engine = make_engine(packed, **options)
    ours = score(engine, plan, Schedule(pass_windows=4, batch_windows=2)).logprob
    theirs = library_logprobs(library_mxfp8(dense), plan)
    weights = score(make_engine(packed, dtype="float32"), plan).logprob
    # A state at the border of two codes falls to either side, and what follows it differs.
    agreeing, other = (np.quantile(np.abs(x - theirs), 0.2) for x in (ours, weights))
    assert agreeing < 1e-5 and other > 100 * agreeing
    facts = engine.describe()
    assert facts["arithmetic"] == "weights+activations"
    assert facts["activations"] == {"declared": None, "ran": "quantized"}
    (product,) = facts["products"]
    assert product["inputs"] == "float8 group 32 ue8m0, not declared"
    # Of three layers' six experts.
    assert (product["format"], product["linears"]) == ("MXFP4A16", 2 * 3 * 6)


def test_the_default_are_the_weights_alone(pair):
    packed, _ = pair
    for arithmetic in ("auto", "weights"):
        facts = make_engine(packed, dtype="float32", arithmetic=arithmetic).describe()
        assert (facts["arithmetic"], facts["products"]) == ("weights", [])
        assert facts["activations"] == {"declared": None, "ran": None}


@pytest.mark.parametrize(("memory", "places"), [(64 * 2**10, 1), (220 * 2**10, 2)])
def test_groups_of_experts_change_no_bit(memory, places, pair):
    packed, _ = pair
    plan, schedule = random_plan(), Schedule(pass_windows=4, batch_windows=2)
    roomy = score(make_engine(packed, dtype="float32"), plan, schedule)
    engine = make_engine(packed, dtype="float32", max_memory=memory)
    tight = score(engine, plan, schedule)
    assert np.array_equal(roomy.logprob, tight.logprob)
    assert engine.describe()["experts"] == f"{places} at a time"


def test_inspection(pair):
    summary = summarize(open_checkpoint(str(pair[0])))
    assert summary.refusals == {}
    found = summary.formats["MXFP4A16"]
    assert found.bits == 4.25 and found.modules == 6
    assert found.kinds == {"experts.gate_up_proj": 3, "experts.down_proj": 3}
    dense = summarize(open_checkpoint(str(pair[1])))
    assert summary.parameters == dense.parameters
    assert summary.quantized == found.parameters == 3 * 6 * (32 * 128 + 64 * 32)


def test_a_scale_that_is_no_number_is_no_score(pair, tmp_path):
    from shutil import copytree

    broken = tmp_path / "broken"
    copytree(pair[0], broken)
    edit_tensors(broken, lambda t: t[f"{EXPERTS}.down_proj_scales"].fill_(255))
    with pytest.raises(ScoremodeError, match="is not finite"):
        score(make_engine(broken, dtype="float32"), random_plan())


def edit(name, change):
    def apply(tensors):
        tensors[f"{EXPERTS}.{name}"] = change(tensors[f"{EXPERTS}.{name}"]).contiguous()

    return apply


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            edit("down_proj_blocks", lambda t: t[:5]),
            r"down_proj_scales has shape \[6, 32, 2\], exp",
        ),
        (edit("down_proj_bias", lambda t: t[:5]), r"down_proj_bias has shape \[5, 32\]"),
        (lambda t: t.pop(f"{EXPERTS}.down_proj_bias"), r"no tensor for parameter .*down_proj_bias"),
        (lambda t: t.pop(f"{EXPERTS}.down_proj_scales"), "down_proj: quantized, and its tensor"),
    ],
)
def test_tensors_that_do_not_fit_the_model(change, words, pair, tmp_path):
    from shutil import copytree

    broken = tmp_path / "broken"
    copytree(pair[0], broken)
    edit_tensors(broken, change)
    with pytest.raises(CheckpointError, match=words) as caught:
        make_engine(broken)
    assert "\n" not in str(caught.value)
