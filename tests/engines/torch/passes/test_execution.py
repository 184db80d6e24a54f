"""Models whose layers can't be run apart: their own forward with a layer's weights at a time."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.engine import make_engine, score
from support.models import library_logprobs, library_model, make_checkpoint, random_plan
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaModel

from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.base import Extras
from scoremode.engines.torch.engine import ModelReference
from scoremode.errors import UnsupportedModel
from scoremode.results.scores import concatenate

# Of a random model's logprobs in float32, in nats.
NATS = 2e-6


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("models") / "llama", "llama")


def patch_forward(monkeypatch, through: Callable[..., torch.Tensor]) -> None:
    """Llama's forward with `through` for its layers, given the model, the embedded ids and what layers
    are called with."""

    def forward(self, input_ids=None, use_cache=None, **kwargs):
        hidden = self.embed_tokens(input_ids)
        position_ids = torch.arange(input_ids.shape[1])[None]
        tables = self.rotary_emb(hidden, position_ids=position_ids)
        hidden = through(self, hidden, position_embeddings=tables, position_ids=position_ids)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden))

    monkeypatch.setattr(LlamaModel, "forward", forward)


def deeply_supervised(model, hidden, **given):
    outputs = []
    for layer in model.layers:
        hidden = layer(hidden, **given)
        outputs.append(hidden)
    return hidden + outputs[0]


def halved_between(model, hidden, **given):
    for layer in model.layers:
        hidden = layer(hidden, **given) * 0.5
    return hidden


def halved_in_place(model, hidden, **given):
    for layer in model.layers:
        hidden = layer(hidden, **given).mul_(0.5)
    return hidden


def run_twice(model, hidden, **given):
    for layer in [*model.layers, *model.layers]:
        hidden = layer(hidden, **given)
    return hidden


def skipping(model, hidden, **given):
    """Later layers get the first one's output (U-Nets, YOCO)."""
    first = None
    for layer in model.layers:
        hidden = layer(hidden, skip=first, **given)
        first = hidden if first is None else first
    return hidden


def sharing_empty(model, hidden, **given):
    shared: dict[str, Any] = {}
    for layer in model.layers:
        hidden = layer(hidden, shared=shared, **given)
    return hidden


def sharing_filled(model, hidden, **given):
    """Nothing shows before a layer writes to it, in the first pass."""
    shared = {"unused": hidden}
    for layer in model.layers:
        hidden = layer(hidden, shared=shared, **given)
    return hidden


def patch_layer(monkeypatch) -> None:
    own = LlamaDecoderLayer.forward

    def forward(self, hidden_states, skip=None, shared=None, **kwargs):
        out = own(self, hidden_states, **kwargs)
        if skip is not None:
            out = out + skip
        if shared is not None:
            out = out + shared.get("state", 0)
            if self.self_attn.layer_idx > 0:
                shared["state"] = out
        return out

    monkeypatch.setattr(LlamaDecoderLayer, "forward", forward)


WAYS = {
    deeply_supervised: "its forward uses the output of other layers than the last",
    halved_between: "the model changes the hidden state between layers",
    halved_in_place: "the model changes the hidden state between layers",
    run_twice: "it has 3 layers, and its forward calls 6",
    skipping: "its layers use the output of other layers than the one before",
    sharing_empty: "its layers share state through a dict",
    sharing_filled: "its layers share state through a dict",
}


@pytest.mark.parametrize("through", WAYS, ids=lambda f: f.__name__)
def test_what_happens_between_layers_runs_window_by_window(through, llama, monkeypatch):
    patch_layer(monkeypatch)
    patch_forward(monkeypatch, through)
    plan = random_plan()
    engine = make_engine(llama, batch_windows=2)
    ours = score(engine, plan)
    theirs = library_logprobs(library_model(llama, torch.float32), plan)
    assert np.abs(ours.logprob - theirs).max() < NATS
    assert engine.describe()["layers"] == f"window by window: {WAYS[through]}"
    # And it is no other number than that of the plain model by chance.
    monkeypatch.undo()
    plain = make_engine(llama)
    assert np.abs(ours.logprob - score(plain, plan).logprob).max() > 0.1
    assert plain.describe()["layers"] == "layer by layer"


def patch_returning(monkeypatch, returned: Callable[[int, torch.Tensor], Any], uses: bool) -> None:
    """Llama's layers return something beside the hidden state, which the next is handed; GLM-5's do."""
    own = LlamaDecoderLayer.forward

    def forward(self, hidden_states, chosen=None, **kwargs):
        out = own(self, hidden_states, **kwargs)
        if uses and self.self_attn.layer_idx == 2 and chosen is not None:
            out = out + chosen
        return out, returned(self.self_attn.layer_idx, out * 0.5)

    def through(model, hidden, **given):
        chosen = None
        for layer in model.layers:
            hidden, chosen = layer(hidden, chosen=chosen, **given)
        return hidden

    monkeypatch.setattr(LlamaDecoderLayer, "forward", forward)
    patch_forward(monkeypatch, through)


@pytest.mark.parametrize(
    "returned, uses, way",
    [
        (lambda i, other: other, False, "layer by layer"),
        (lambda i, other: other, True, "its layers use what others return beside"),
        (lambda i, other: None, True, "layer by layer"),
        (lambda i, other: other if i else None, True, "its layers return other things than the"),
        (lambda i, other: None if i else other, True, "its layers return other things than the"),
    ],
    ids=["unread", "read", "none", "none-first", "none-later"],
)
def test_what_layers_return_beside_matters_where_others_look_at_it(
    returned, uses, way, llama, monkeypatch
):
    """A tensor handed on unread is no reason to decode a layer for each window; one that the first
    layer doesn't return was None for all."""
    patch_returning(monkeypatch, returned, uses)
    engine, plan = make_engine(llama, batch_windows=2), random_plan()
    ours = score(engine, plan)
    theirs = library_logprobs(library_model(llama, torch.float32), plan)
    assert np.abs(ours.logprob - theirs).max() < NATS
    assert way in engine.describe()["layers"]


@pytest.mark.parametrize("where", ["before", "after"])
def test_what_follows_from_a_windows_ids_is_computed_for_each_batch(where, llama, monkeypatch):
    """Positions that skip some tokens, before the layers; a scale that grows with them, behind."""

    def forward(self, input_ids=None, use_cache=None, **kwargs):
        hidden = self.embed_tokens(input_ids)
        seen = (input_ids % 3 == 0).cumsum(1)
        positions = torch.arange(input_ids.shape[1])[None].expand_as(input_ids)
        positions = positions + seen if where == "before" else positions
        tables = self.rotary_emb(hidden, position_ids=positions)
        for layer in self.layers:
            hidden = layer(hidden, position_embeddings=tables)
        hidden = self.norm(hidden)
        if where == "after":
            hidden = hidden * (1 + seen[..., None] / 8)
        return BaseModelOutputWithPast(last_hidden_state=hidden)

    plan = random_plan()
    plain = score(make_engine(llama), plan)
    monkeypatch.setattr(LlamaModel, "forward", forward)
    engine = make_engine(llama, batch_windows=2)
    ours = score(engine, plan)
    theirs = library_logprobs(library_model(llama, torch.float32), plan)
    assert np.abs(ours.logprob - theirs).max() < NATS
    assert np.abs(ours.logprob - plain.logprob).max() > 0.01
    assert engine.describe()["layers"] == "layer by layer"


@pytest.mark.parametrize("label", ["W4A16-g32", "FP8_DYNAMIC"])
def test_weights_stay_packed_and_one_layer_is_decoded_at_a_time(
    label, llama, tmp_path, monkeypatch
):
    folder, plan = tmp_path / "quantized", random_plan()
    quantize_folder(llama, folder, next(v for v in VARIANTS if v.name == label))
    plain = make_engine(folder)
    apart = score(plain, plan)
    dense: list[bool] = []

    def copied_between(model, hidden, **given):
        for layer in model.layers:
            hidden = layer(hidden, **given).clone()
            dense.extend(
                not p.is_meta for other in model.layers for p in other._module.parameters()
            )
        return hidden

    patch_forward(monkeypatch, copied_between)
    whole = make_engine(folder)
    assert np.abs(score(whole, plan).logprob - apart.logprob).max() < NATS
    assert whole.describe()["layers"].startswith("window by window")
    assert whole.parts.slot.bytes == plain.parts.slot.bytes
    assert dense and not any(dense)


def test_progress_and_passes_are_those_of_any_model(llama, monkeypatch):
    patch_forward(monkeypatch, halved_between)
    plan = random_plan()
    engine = make_engine(llama, batch_windows=1)
    schedule = engine.schedule(plan)
    work: list[float] = []
    parts = list(engine.score(plan, schedule, progress=work.append))
    assert sum(work) == pytest.approx(float(plan.lengths.sum()))
    again = list(make_engine(llama, batch_windows=1).score(plan, schedule))
    assert np.array_equal(concatenate(parts).logprob, concatenate(again).logprob)


def test_a_model_is_compared_with_itself_window_by_window(llama, monkeypatch):
    patch_forward(monkeypatch, halved_between)
    plan = random_plan()
    model, base = make_engine(llama), make_engine(llama)
    schedule = model.schedule(plan)
    extras = Extras(reference=ModelReference(base, plan, schedule))
    scores = concatenate(list(model.score(plan, schedule, extras=extras)))
    assert scores.against is not None and np.abs(scores.against.kld).max() == 0


def test_a_model_that_sees_its_targets_is_refused_in_this_way_too(llama, monkeypatch):
    def through(model, hidden, **given):
        return halved_between(model, hidden + hidden.mean(1, keepdim=True), **given)

    patch_forward(monkeypatch, through)
    with pytest.raises(UnsupportedModel, match="sees what it should predict"):
        score(make_engine(llama), random_plan())


def test_a_forward_that_needs_all_weights_at_once_is_refused_with_both_reasons(llama, monkeypatch):
    def through(model, hidden, **given):
        hidden = halved_between(model, hidden, **given)
        return hidden * model.layers[0].mlp.up_proj.weight.sum()

    patch_forward(monkeypatch, through)
    with pytest.raises(UnsupportedModel, match=r"LlamaForCausalLM: .* a layer's weights at a time"):
        score(make_engine(llama), random_plan())


SHRUNK = {
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "n_routed_experts": 16,
    "num_attention_heads": 8,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 32,
    "o_lora_rank": 16,
    "index_head_dim": 16,
    "index_n_heads": 4,
    "index_topk": 8,
    # Every kind of layer: hash and top-k routing; no, fourfold and heavy compression.
    "num_hidden_layers": 5,
    "num_hash_layers": 3,
    "compress_ratios": [0, 0, 4, 128, 4, 0],
    "sliding_window": 16,
}


def test_deepseek_v4_runs_layer_by_layer_with_the_fields_of_its_own_config(data, tmp_path):
    """Its layers are handed two position tables in a dict, and four streams of hidden states."""
    published = data / "configs/published/deepseek-ai--DeepSeek-V4-Flash.json"
    if not published.exists():
        pytest.skip("SCOREMODE_DATA holds no configs/published")
    settings = json.loads(published.read_text()) | SHRUNK
    del settings["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(settings))
    config = AutoConfig.from_pretrained(tmp_path)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and parameter.is_floating_point():
                parameter.normal_(0, 0.3 if "embed" in name else 0.1)
    model.save_pretrained(tmp_path)
    plan = random_plan(length=150, windows=3, tail=40, vocabulary=129_280)
    engine = make_engine(tmp_path, batch_windows=2)
    ours = score(engine, plan)
    theirs = library_logprobs(library_model(tmp_path, torch.float32, "eager"), plan)
    assert np.abs(ours.logprob - theirs).max() < NATS
    assert theirs.std() > 0.5
    assert engine.describe()["layers"] == "layer by layer"
    # Four streams are held between layers, and counted.
    assert engine.parts.memory.pass_token == 4 * 64 * 4
