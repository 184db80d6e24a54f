"""`--arithmetic llama.cpp` inside a layer, node by node, against llama.cpp's graph of the same file.

`golden/gguf_layer/nodes.npz` has the last token's row of each node. Given llama.cpp's row, a linear has
the same codes to multiply and can differ by the order of float32 sums alone. From the ids on, a last
bit can flip a code, which is a step of 1/127 of a block's largest value.
"""

import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from support.engine import make_engine
from support.gguf.one_layer import KINDS, VOCAB, one_layer, token_ids

from scoremode.engines.torch.engine import TorchEngine

NODES = Path(__file__).parents[2] / "golden" / "gguf_layer" / "nodes.npz"
# In `--arithmetic weights`, which doesn't round inputs, linears are further away than this.
ROUNDING = 1e-4
# llama.cpp's name of what each of the library's linears is given, and of what it makes of it.
LINEARS = {
    "self_attn.o_proj": ("kqv_out", "attn_out"),
    "mlp.gate_proj": ("ffn_norm", "ffn_gate"),
    "mlp.up_proj": ("ffn_norm", "ffn_up"),
    "mlp.down_proj": ("ffn_swiglu", "ffn_out"),
}
Rows = Mapping[str, torch.Tensor]


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(NODES) as found:
        return dict(found)


@pytest.fixture(params=KINDS)
def rows(request, golden, tmp_path) -> tuple[Path, Rows]:
    """A model's file, and llama.cpp's rows of it by node."""
    kind, file = request.param, tmp_path / "model.gguf"
    file.write_bytes(one_layer(kind))
    sha256 = np.frombuffer(hashlib.sha256(file.read_bytes()).digest(), np.uint8)
    assert np.array_equal(sha256, golden[f"{kind}.sha256"]), "another file than llama.cpp's"
    own = {name: a for name, a in golden.items() if name.startswith(f"{kind}.")}
    return file, {name.split(".")[1]: torch.from_numpy(a) for name, a in own.items()}


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Root of the mean square of the difference, relative to that of `expected`."""
    difference = (found.double().flatten() - expected.double()).square().mean()
    return float((difference / expected.double().square().mean()).sqrt())


def linears_outputs(engine: TorchEngine, rows: Rows) -> dict[str, float]:
    """How far each linear's row is from llama.cpp's, given llama.cpp's input."""
    parts, found = engine.parts, {}
    with torch.no_grad(), parts.layers.at_work(0) as layer:
        for name, (given, made) in LINEARS.items():
            out = layer.get_submodule(name)(rows[given].view(1, 1, -1))
            found[made] = distance(out, rows[made])
    return found


def logits(engine: TorchEngine, states: torch.Tensor) -> torch.Tensor:
    """Of final states [1, T, D]."""
    parts = engine.parts
    given = states if parts.head_input is None else parts.head_input(states)
    return given.flatten(0, 1) @ parts.head.weight.float().T


def final_states(engine: TorchEngine, ids: torch.Tensor) -> torch.Tensor:
    way = engine.parts.way
    with torch.no_grad():
        return way.finish(ids, way.run([ids], 0, lambda _: None)[0])


def test_linears_given_its_inputs(rows):
    file, nodes = rows
    found = linears_outputs(make_engine(file, arithmetic="llama.cpp"), nodes)
    assert max(found.values()) < 1e-6, found
    alone = linears_outputs(make_engine(file, dtype="float32"), nodes)
    assert min(alone.values()) > ROUNDING, alone


def test_norms_and_gate_given_its_inputs(rows):
    file, nodes = rows
    engine = make_engine(file, arithmetic="llama.cpp")
    parts, ids = engine.parts, torch.from_numpy(token_ids().astype(np.int64))[None]
    embedded = parts.skeleton.record(ids).embedded[0, -1]
    middle = embedded + nodes["attn_out"]
    with torch.no_grad(), parts.layers.at_work(0) as layer:
        normed = layer.get_submodule("post_attention_layernorm")(middle)
        gated = layer.get_submodule("mlp.act_fn")(nodes["ffn_gate"]) * nodes["ffn_up"]
    out = (middle + nodes["ffn_out"]).expand(1, ids.shape[1], -1)
    final = parts.way.finish(ids, out)[0, -1]
    assert distance(normed, nodes["ffn_norm"]) < 2e-7
    assert distance(gated, nodes["ffn_swiglu"]) < 2e-7
    assert distance(final, nodes["result_norm"]) < 2e-7


def test_logits_given_its_final_state(rows):
    file, nodes = rows
    engine = make_engine(file, arithmetic="llama.cpp")
    found = logits(engine, nodes["result_norm"].view(1, 1, -1))
    assert found.shape == (1, VOCAB) and distance(found, nodes["result_output"]) < 4e-6
    alone = logits(make_engine(file, dtype="float32"), nodes["result_norm"].view(1, 1, -1))
    assert distance(alone, nodes["result_output"]) > ROUNDING


def test_from_ids_to_logits(golden, tmp_path):
    """Where no code of the last token's flips, and of nine rows that is most, all of a layer is the
    tool's to float32's own rounding. How many flip depends on this machine's order of sums."""
    ids, equal = torch.from_numpy(token_ids().astype(np.int64))[None], 0
    for kind in KINDS:
        file = tmp_path / f"{kind}.gguf"
        file.write_bytes(one_layer(kind))
        attended, found = {}, {}
        for arithmetic in ("llama.cpp", "weights"):
            engine = make_engine(file, arithmetic=arithmetic, dtype="float32")
            layer = engine.parts.skeleton.layers[0]

            given = partial(_keep, attended, arithmetic)
            layer.get_submodule("self_attn.o_proj").register_forward_pre_hook(given)
            found[arithmetic] = logits(engine, final_states(engine, ids)[:, -1:])
        node, output = (
            torch.from_numpy(golden[f"{kind}.{n}"]) for n in ("kqv_out", "result_output")
        )
        assert distance(attended["llama.cpp"], node) < distance(attended["weights"], node) / 10
        near, far = (distance(found[a], output) for a in ("llama.cpp", "weights"))
        assert near < far, kind
        equal += near < 1e-5 and near < far / 100
    assert equal >= 4


def _keep(kept: dict[str, torch.Tensor], name: str, _: object, args: tuple[torch.Tensor]) -> None:
    """Keeps the last token's row of what a module is given."""
    kept[name] = args[0][0, -1]
