"""Our own forwards of the models that llama-perplexity ran: its per-token values, its PPL, its block.

Both compute in float32, in another order: logits differ by 1e-5, here by at most 8e-6. A per-token nll
then differs by 1e-5, and a KLD, where most of that cancels, by 3e-6; the tool's own rounding to float32
is of the same size.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.engine import make_engine, score
from support.llama_cpp.files import compare_blocks, decode, kld_llama_cpp, logprobs
from transformers import AutoModelForCausalLM

from scoremode.checkpoint.files import open_checkpoint
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.llama_cpp.file import LogitsFile
from scoremode.llama_cpp.rows import encode
from scoremode.results.statistics.bootstrap import perplexity
from scoremode.results.statistics.llama_cpp import llama_cpp_block
from scoremode.runs.planning import plan_text
from scoremode.schemes.base import Scratch
from scoremode.schemes.resolve import resolve
from scoremode.text.corpus import from_string
from scoremode.text.protocol import preset

GOLDEN = Path(__file__).parents[1] / "golden" / "llama_cpp"
COMPARED = ["base-self", "W4A16-g32", "W2A16-g32"]


@pytest.fixture(scope="module")
def file() -> LogitsFile:
    return LogitsFile(GOLDEN / "base.kld")


@pytest.fixture(scope="module")
def plan(demo):
    text = (demo / "heldout.txt").read_bytes()[:1500].decode()
    protocol = preset("llama.cpp").override(context_length=64)
    return plan_text(from_string(text), protocol, model=str(demo / "model")).plan


@pytest.fixture(scope="module", params=COMPARED)
def compared(request, demo, tmp_path_factory) -> tuple[str, Path]:
    """A comparison's name and the model's folder, as it is stored."""
    if request.param == "base-self":
        return request.param, demo / "model"
    (variant,) = (v for v in VARIANTS if v.name == request.param)
    folder = tmp_path_factory.mktemp("models") / variant.name
    quantize_folder(demo / "model", folder, variant)
    return variant.name, folder


@pytest.fixture(scope="module")
def logits(compared, demo, file) -> np.ndarray:
    """float32 [rows, entries]: the library's forward of the dense model with decoded weights."""
    model = AutoModelForCausalLM.from_pretrained(demo / "model", dtype=torch.float32).eval()
    stored = load_file(compared[1] / "model.safetensors")
    for module, scheme in resolve(open_checkpoint(str(compared[1]))).quantized.items():
        tensors = {name: stored[f"{module}.{name}"] for name in scheme.tensors}
        scheme.decode(tensors, model.get_submodule(module).weight.data, Scratch())
    tokens = torch.from_numpy(file.tokens).long().view(file.chunks, file.n_ctx).clone()
    tokens[:, 0] = model.config.bos_token_id
    with torch.no_grad():
        z = model(tokens).logits[:, file.n_ctx // 2 : -1]
    return z.reshape(file.rows, file.entries).numpy()


@pytest.fixture(scope="module")
def values(compared, logits, file) -> dict[str, np.ndarray]:
    """The block's columns."""
    targets = file.tokens.reshape(file.chunks, -1)[:, -file.rows_per_chunk :].reshape(-1)
    rows = np.arange(file.rows)
    logprob = torch.from_numpy(logits).double().log_softmax(-1).numpy()
    base = logprobs(file, 0, file.rows, 0, file.entries)
    return {
        "nll": -logprob[rows, targets],
        "base_nll": -file.stored_logprob(rows, targets).astype(np.float64),
        "kld": kld_llama_cpp(base, logits),
        "same_top": logits.argmax(1) == base.argmax(1),
    }


def test_each_tokens_values(compared, values):
    with np.load(GOLDEN / "rows.npz") as rows:
        theirs = {k: rows[f"{compared[0]}.{k}"] for k in values}
    assert np.array_equal(values["base_nll"], theirs["base_nll"])
    assert np.array_equal(values["same_top"], theirs["same_top"])
    assert values["nll"] == pytest.approx(theirs["nll"], abs=2e-5)
    assert values["kld"] == pytest.approx(theirs["kld"], abs=5e-6)


def test_the_printed_block(compared, values):
    block = llama_cpp_block(**values)
    assert block is not None
    printed = (GOLDEN / f"{compared[0]}.txt").read_text()
    compare_blocks(block.text(), printed, is_itself=compared[0] == "base-self")


@pytest.mark.parametrize("compared", ["base-self"], indirect=True)
def test_our_logits_encode_to_the_tools_codes(logits, file):
    ours = decode(encode(logits), 0, file.entries)
    theirs = logprobs(file, 0, file.rows, 0, file.entries)
    # A code at the border of two falls either way; a step is at most 16/65535.
    assert np.abs(ours - theirs).max() < 16 / 65535 + 2e-5
    assert (np.abs(ours - theirs) < 2e-5).mean() > 0.9


def test_the_engine_on_packed_weights_has_the_tools_nll(compared, plan, file):
    """llama.cpp ran the decoded weights; our engine decodes them layer by layer."""
    file.check_plan(plan)
    engine = make_engine(compared[1], dtype="float32")
    scores = score(engine, plan)
    engine.close()
    with np.load(GOLDEN / "rows.npz") as rows:
        assert scores.nll == pytest.approx(rows[f"{compared[0]}.nll"], abs=2e-5)


@pytest.mark.parametrize("compared", ["base-self"], indirect=True)
def test_the_final_estimate(compared, plan, file):
    engine = make_engine(compared[1], dtype="float32")
    scores = score(engine, plan)
    engine.close()
    ppl = perplexity(scores, file.n_ctx)["ppl"].value
    error = ppl * scores.nll.std() / math.sqrt(len(scores) - 1)
    printed = (GOLDEN / "base.txt").read_text().splitlines()[-1]
    label, found = printed.split(" = ")
    value, reach = map(float, found.split(" +/- "))
    assert label == "Final estimate: PPL"
    assert ppl == pytest.approx(value, abs=1.01e-4)
    assert error == pytest.approx(reach, abs=1.01e-5)


def test_the_running_perplexity_of_every_chunk(file):
    """The tool prints it after each chunk; with what it stores, each token's place is right."""
    with np.load(GOLDEN / "rows.npz") as rows:
        nll = rows["base-self.nll"].astype(np.float64).reshape(file.chunks, -1)
    means = nll.sum(1).cumsum() / (file.rows_per_chunk * np.arange(1, file.chunks + 1))
    line = "".join(f"[{i + 1}]{math.exp(m):.4f}," for i, m in enumerate(means))
    assert line in (GOLDEN / "base.txt").read_text().splitlines()
