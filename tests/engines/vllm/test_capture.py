"""What is refused before a reference would be worthless. Needs no vLLM."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from scoremode.checkpoint.files import open_checkpoint
from scoremode.demo.quantize import VARIANTS, quantize_folder, quantize_weight
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.vllm.engine import prove_states, read_head
from scoremode.engines.vllm.prompts import COLUMNS, Kind, Prompt, PromptScores, scores_of
from scoremode.errors import EngineError
from scoremode.head.project import Head
from scoremode.reference.states import create_states, write_states

OPTIONS = TorchOptions(device="cpu", dtype="bfloat16")


def test_the_head_is_the_checkpoints(demo):
    found = read_head(open_checkpoint(str(demo / "model")), OPTIONS, 700)
    stored = load_file(demo / "model" / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(found.head.weight, stored) and found.head.vocabulary == 700
    assert found.weight == "model.embed_tokens.weight"


def test_another_vocabulary_is_refused(demo):
    with pytest.raises(EngineError, match="has 1024 entries, and vLLM's softmax runs over 1025"):
        read_head(open_checkpoint(str(demo / "model")), OPTIONS, 1025)


def test_a_head_with_quantized_inputs_is_refused(demo, tmp_path):
    """The states that vLLM gives are those before it rounds them."""
    variant = next(v for v in VARIANTS if v.name == "W8A8")
    folder = tmp_path / "W8A8"
    quantize_folder(demo / "model", folder, variant)
    tensors = load_file(folder / "model.safetensors")
    weight = load_file(demo / "model" / "model.safetensors")["model.embed_tokens.weight"]
    tensors |= {f"lm_head.{k}": v for k, v in quantize_weight(weight, variant).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    config["quantization_config"]["ignore"] = []
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineError, match=r"inputs are quantized.* --engine torch"):
        read_head(open_checkpoint(str(folder)), OPTIONS, 1024)


@pytest.fixture
def kept(tmp_path):
    """A head, a file of states, and the scores that vLLM would give."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(300, 16, generator=generator)
    states = torch.randn(100, 16, generator=generator)
    target = torch.randint(0, 300, (100,), generator=generator)
    create_states(tmp_path / "states", 100, 16, torch.float32)
    write_states(tmp_path / "states", 0, states)

    def answers(scale: float) -> list[PromptScores]:
        z = (scale * (states.double() @ weight.double().T)).log_softmax(1)
        logprob = z.gather(1, target[:, None])[:, 0].numpy()
        parts = []
        for begin, end in ((0, 30), (30, 100)):
            goal = target[begin:end].numpy().astype(np.int32)
            rows = np.zeros((len(goal), len(COLUMNS)))
            rows[:, 0] = np.arange(1, len(goal) + 1)
            rows[:, 1], rows[:, 2] = goal, logprob[begin:end]
            parts.append(scores_of(rows, Prompt(goal, goal, 0), Kind()))
        return parts

    return Head(weight, None, 1.0, None, 300), tmp_path / "states", answers


def test_states_that_give_the_scores_again_are_proven(kept):
    head, path, answers = kept
    prove_states(head, path, answers(1.0), "float32", "model")


@pytest.mark.parametrize(
    ("spoil", "logits"),
    [
        # A factor that is in no Head, and a state that is another's.
        (lambda a, _: a(1.1), "bfloat16"),
        (lambda a, _: a(1.001), "float32"),
        (lambda a, path: [write_states(path, 0, torch.ones(1, 16)), a(1.0)][1], "bfloat16"),
    ],
)
def test_states_that_do_not_are_refused(spoil, logits, kept):
    head, path, answers = kept
    with pytest.raises(EngineError, match=r"^model: its head.* --engine torch$"):
        prove_states(head, path, spoil(answers, path), logits, "model")
