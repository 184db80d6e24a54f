"""Replies by transformers' `generate`, against its own greedy ones and the model's distribution."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.checkpoint.gguf.open import GgufFiles
from scoremode.engines.sampling import Reply, Sampling, SamplingRequest, seed_of
from scoremode.engines.torch.sampler import TorchSampler, TorchSampling, drawn
from scoremode.errors import UnsupportedModel

ENDS = frozenset({1})
CPU = TorchSampling(device="cpu", dtype="float32", batch_size=3)


def opened(folder: Path, sampling: Sampling, how: TorchSampling = CPU) -> TorchSampler:
    return how.open(open_checkpoint(str(folder)), 512, sampling, ENDS)


def asked(*prompts: list[int]) -> list[SamplingRequest]:
    return [
        SamplingRequest(np.array(ids, np.int32), seed_of(0, i, 0)) for i, ids in enumerate(prompts)
    ]


@pytest.fixture(scope="module")
def model(demo):
    return AutoModelForCausalLM.from_pretrained(demo / "model", dtype=torch.float32).eval()


PROMPTS = [[0, 40, 41, 42], [0, 300, 7, 99], [0, 5, 17, 600]]


def test_greedy_replies_are_transformers_own(demo, model):
    sampler = opened(demo / "model", Sampling(24, temperature=0))
    found = sampler.replies(asked(*PROMPTS))
    expected = model.generate(
        torch.tensor(PROMPTS),
        attention_mask=torch.ones(3, 4, dtype=torch.long),
        do_sample=False,
        max_new_tokens=24,
        eos_token_id=1,
        pad_token_id=1,
    )[:, 4:]
    for reply, row in zip(found, expected.tolist(), strict=True):
        assert list(reply.ids) == row[: row.index(1) + 1 if 1 in row else None]
        assert reply.ended == (1 in row)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1),
        Sampling(1, temperature=0.7),
        Sampling(1, top_k=5),
        Sampling(1, top_p=0.8),
        Sampling(1, temperature=1.5, top_p=0.9, top_k=50),
    ],
)
def test_tokens_are_drawn_as_often_as_they_are_likely(demo, model, sampling):
    n, prompt = 4000, PROMPTS[0]
    how = TorchSampling(device="cpu", dtype="float32", batch_size=n)
    batch = [SamplingRequest(np.array(prompt, np.int32), seed_of(3, 0, k)) for k in range(n)]
    found = [r.ids[0] for r in opened(demo / "model", sampling, how).replies(batch)]
    counts = np.bincount(found, minlength=1024)
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0, -1].double().numpy()
    expected = n * probabilities(logits, sampling)
    assert not counts[expected == 0].any()
    # What is expected less than five times is one kind.
    often = expected >= 5
    kinds = [
        np.append(each[often], each[~often].sum()) for each in (counts.astype(float), expected)
    ]
    seen, wanted = (each[kinds[1] > 0] for each in kinds)
    chi2, freedom = ((seen - wanted) ** 2 / wanted).sum(), len(wanted) - 1
    # Its mean is `freedom`, its variance twice that: four standard deviations.
    assert chi2 < freedom + 4 * np.sqrt(2 * freedom)


def probabilities(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """By the words of `Sampling`, in numpy."""
    p = np.exp((logits - logits.max()) / sampling.temperature)
    order = np.argsort(-p)
    if sampling.top_k:
        p[order[sampling.top_k :]] = 0
    p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= sampling.top_p]] = 0
    return p / p.sum()


def test_no_token_of_probability_0_is_drawn_at_either_end():
    scores = torch.tensor([[-np.inf, 0.0, -np.inf, 1.0, -np.inf]]).expand(4, 5)
    numbers = torch.tensor([0.0, 0.2, 0.5, 1 - 2**-53], dtype=torch.float64)
    # The second has 1 / (1 + e), which is 0.269.
    assert drawn(scores, numbers).tolist() == [1, 1, 3, 3]


def test_drawn_finds_the_share_that_a_number_lies_in():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(64, 257)).astype(np.float32)
    numbers = rng.random(64)
    p = np.exp(logits.astype(np.float64))
    sums = np.cumsum(p / p.sum(1, keepdims=True), 1)
    expected = [int(np.searchsorted(s, u, "right")) for s, u in zip(sums, numbers, strict=True)]
    assert drawn(torch.from_numpy(logits), torch.from_numpy(numbers)).tolist() == expected


def test_a_reply_is_the_same_whatever_is_drawn_beside_it(demo):
    sampler = opened(demo / "model", Sampling(16))
    batch = asked(*PROMPTS)
    together = sampler.replies(batch)
    assert together == [sampler.replies([one])[0] for one in batch]
    assert together == sampler.replies(batch[::-1])[::-1]
    assert len({reply.ids for reply in together}) == 3


def test_a_batch_has_prompts_of_one_length(demo):
    sampler = opened(demo / "model", Sampling(1))
    lengths = [3, 4, 3, 3, 4, 3, 3]
    batches = sampler.batches(asked(*[[0] * n for n in lengths]))
    assert batches == [[0, 2, 3], [1, 4], [5, 6]]


def test_the_models_own_settings_of_generation_take_no_part(demo, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(demo / "model", folder)
    own = {"repetition_penalty": 50.0, "do_sample": True, "top_k": 1, "min_length": 30}
    (folder / "generation_config.json").write_text(json.dumps(own))
    for sampling in (Sampling(16), Sampling(16, temperature=0)):
        plain, told = (
            opened(path, sampling).replies(asked(*PROMPTS)) for path in (demo / "model", folder)
        )
        assert plain == told


def test_the_end_of_a_turn_is_any_of_the_ids_and_none_is_a_limit(demo):
    checkpoint = open_checkpoint(str(demo / "model"))
    (free,) = CPU.open(checkpoint, 512, Sampling(12), frozenset()).replies(asked(PROMPTS[0]))
    assert len(free.ids) == 12 and not free.ended
    stop = free.ids[5]
    sampler = CPU.open(checkpoint, 512, Sampling(12), frozenset({stop, 1023}))
    assert sampler.replies(asked(PROMPTS[0])) == [
        Reply(free.ids[: free.ids.index(stop) + 1], ended=True)
    ]


def test_a_checkpoint_that_is_not_read_whole_is_refused(demo, tmp_path):
    """The library would fill in random weights, and go on."""
    folder = tmp_path / "model"
    shutil.copytree(demo / "model", folder)
    tensors = load_file(folder / "model.safetensors")
    down = tensors.pop("model.layers.1.mlp.down_proj.weight")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnsupportedModel, match=r"missing keys: model\.layers\.1\.mlp\.down_proj"):
        opened(folder, Sampling(1))
    tensors |= {"model.layers.1.mlp.down_proj.weight": down, "model.layers.1.scale": down.clone()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnsupportedModel, match=r"unexpected keys: model\.layers\.1\.scale"):
        opened(folder, Sampling(1))


def test_a_gguf_file_is_refused(tmp_path):
    checkpoint = Checkpoint(tmp_path / "m.gguf", "m.gguf", {}, {}, files=GgufFiles({}, []))
    with pytest.raises(UnsupportedModel, match=r"m\.gguf: a GGUF file, which transformers'"):
        CPU.identity(checkpoint)


def test_the_identity_names_what_may_move_a_token(demo):
    checkpoint = open_checkpoint(str(demo / "model"))
    identity = CPU.identity(checkpoint)
    assert identity["engine"] == "torch" and identity["dtype"] == "float32"
    assert identity["batch_size"] == 3
    assert identity["device"]["threads"] == torch.get_num_threads()
