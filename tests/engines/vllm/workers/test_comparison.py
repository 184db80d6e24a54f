"""A rank's part of a comparison: base logits, projections, files of states. Needs no vLLM."""

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from support.pair_logits import Given as Columns

from scoremode.engines.vllm.workers import comparison
from scoremode.engines.vllm.workers.comparison import (
    Float32Projection,
    OtherHead,
    Share,
    StateFile,
    compare,
    open_base,
    project_in_float32,
    spans_of,
    to_device,
)
from scoremode.head.full import full_pairs
from scoremode.head.project import Head, score_pairs
from scoremode.llama_cpp.reference import LlamaCppSums
from scoremode.reference.states import create_states, read_states
from scoremode.reference.stored import StoredReference

GENERATOR = torch.Generator().manual_seed(0)
CPU = torch.device("cpu")
ROWS, ENTRIES = 30, 101


@pytest.mark.parametrize(
    ("rows", "spans"),
    [
        ([], []),
        ([4], [(4, 5)]),
        ([0, 1, 2], [(0, 3)]),
        ([5, 6, 2, 3, 4, 9], [(5, 7), (2, 5), (9, 10)]),
        ([3, 3, 4], [(3, 4), (3, 5)]),
    ],
)
def test_successive_rows_are_read_at_once(rows, spans):
    assert spans_of(np.array(rows, np.int64)) == spans


class Stored(StoredReference):
    """States and a head that nobody stored."""

    vocabulary, extra_sums, dtype = 9, None, torch.bfloat16

    def __init__(self):
        self.all = torch.arange(12.0).view(6, 2).bfloat16()

    def head(self, device, *span) -> Any:
        return span

    def states(self, spans) -> torch.Tensor:
        return torch.cat([self.all[slice(*span)] for span in spans])


@pytest.mark.parametrize(
    ("dtype", "float32", "rounded"),
    [
        (torch.bfloat16, False, True),
        (torch.float16, False, False),
        (torch.bfloat16, True, False),
    ],
)
def test_stored_states_go_through_their_head_as_the_model_would(
    dtype, float32, rounded, monkeypatch
):
    """Logits are rounded where the model's are and the base computed in the same dtype."""
    made: list[Any] = []

    class Head:
        def __init__(self, *arguments, float32):
            made.append((*arguments, float32))

        def logits(self, states):
            return states.float() @ torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]])

    monkeypatch.setattr(comparison, "OtherHead", Head)
    base = open_base(Stored(), Share(4, 7, 5, dtype, CPU, float32=float32))
    assert made == [((4, 7), 5, torch.bfloat16, CPU, not rounded)]
    logits = base(np.array([5, 1]))
    logits.load(5, 7)
    tile = logits(slice(0, 2))
    assert tile.tolist() == [[11.0, 20.0], [3.0, 4.0]]
    # The caller's to destroy.
    tile.zero_()
    assert logits(slice(1, 2)).tolist() == [[3.0, 4.0]]


def test_a_rank_without_entries_loads_nothing():
    base = open_base(cast(Any, Stored()), Share(7, 7, 5, torch.bfloat16, CPU, float32=False))
    with pytest.raises(AssertionError, match="no entries"):
        base(np.array([0]))


def test_on_a_cpu_nothing_is_copied():
    values = torch.zeros(3)
    assert to_device(values, CPU) is values


class Given:
    """A reference of given logits, as a llama.cpp file is one."""

    extra_sums = None
    vocabulary = ENTRIES

    def __init__(self, logits: torch.Tensor):
        self._logits = logits

    def logits(self, spans: Any, device: torch.device, tile: tuple[int, int]) -> Columns:
        rows = torch.cat([torch.arange(*span) for span in spans])
        assert tile[0] == len(rows)
        return Columns(self._logits[rows])


@pytest.mark.parametrize("tile", [1 << 20, 700, 30])
@pytest.mark.parametrize("cut", [(), (64,), (10, 64, 64)])
@pytest.mark.parametrize("extra", [None, LlamaCppSums], ids=["plain", "extra"])
def test_ranks_together_are_one_engine(extra, cut, tile, monkeypatch):
    """Each over its entries, one of them without any; both models' logits are left as they are."""
    monkeypatch.setattr(comparison, "_TILE", {"cpu": tile})
    model = torch.randn(ROWS, ENTRIES, generator=GENERATOR).bfloat16()
    base = model + 0.3 * torch.randn(ROWS, ENTRIES, generator=GENERATOR)
    # As a llama.cpp file has them.
    base = base.log_softmax(1)
    target = torch.randint(0, ENTRIES, (ROWS,), generator=GENERATOR)
    rows = np.arange(ROWS)
    before = model.clone(), base.clone()
    bounds = [*zip((0, *cut), (*cut, ENTRIES), strict=True)]
    waiting, sent = threading.Barrier(len(bounds)), [torch.empty(0)] * len(bounds)
    results: list[dict[str, torch.Tensor]] = [{}] * len(bounds)

    def run(rank: int) -> None:
        def over_ranks(packed: torch.Tensor) -> list[torch.Tensor]:
            sent[rank] = packed
            waiting.wait(10)
            everyone = [theirs.clone() for theirs in sent]
            waiting.wait(10)
            return everyone

        begin, end = bounds[rank]
        share = Share(begin, end, 128, model.dtype, model.device, float32=False)
        mine = open_base(Given(base), share)
        results[rank] = compare(
            model[:, begin:end],
            mine(rows) if begin < end else None,
            target,
            begin,
            over_ranks,
            entropy=True,
            extra=extra,
            full=True,
            draft=0.7,
        )

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(bounds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    pair = score_pairs(target, ENTRIES, model=Columns(model), base=Columns(base), extra=extra)
    full = full_pairs(pair, ENTRIES, model=Columns(model), base=Columns(base))
    wanted = {"logprob": pair.model.logprob, "top1": pair.model.top1, **vars(full)}
    wanted |= {"kld": pair.kld, "kld_reverse": pair.kld_reverse, "base_top1": pair.base.top1}
    wanted |= {"base_logprob": pair.base.logprob, **pair.extra}
    for name, temperature in (("tv", 1.0), ("tv_draft", 0.7)):
        p, q = ((z.double() / temperature).softmax(1) for z in (base, model))
        wanted[name] = (p - q).abs().sum(1) / 2
    assert ("kld_llama_cpp" in wanted) == (extra is not None)
    for result in results:
        assert ("kld_llama_cpp" in result) == (extra is not None)
        for name, column in wanted.items():
            torch.testing.assert_close(result[name], column, rtol=0, atol=1e-6, msg=name)
        entropy = -(model.float().softmax(1) * model.float().log_softmax(1)).sum(1)
        torch.testing.assert_close(result["entropy"].float(), entropy, rtol=0, atol=1e-5)
    assert torch.equal(model, before[0]) and torch.equal(base, before[1])


class Unquantized:
    """As vLLM's `UnquantizedEmbeddingMethod`: the result has the states' dtype."""

    def process_weights_after_loading(self, layer: Any) -> None:
        layer.is_repacked = True

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        assert layer.is_repacked
        return torch.nn.functional.linear(x, layer.weight, bias)


@pytest.fixture(autouse=True)
def vllm(monkeypatch):
    layers = "vllm.model_executor.layers"
    for module, name in (
        (f"{layers}.vocab_parallel_embedding", "UnquantizedEmbeddingMethod"),
        (f"{layers}.linear", "UnquantizedLinearMethod"),
    ):
        stand_in = ModuleType(module)
        setattr(stand_in, name, Unquantized)
        monkeypatch.setitem(sys.modules, module, stand_in)
    for parent in ("vllm", "vllm.model_executor", layers):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR).to(dtype)


@pytest.mark.parametrize("tile", [1, 7, 31, 2048])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_float32_projection_is_rounded_nowhere(tile, dtype, has_bias, monkeypatch):
    monkeypatch.setattr(Float32Projection, "_TILE", tile)
    weight, x = random(31, 16, dtype=dtype), random(5, 16, dtype=dtype)
    bias = random(31, dtype=dtype) if has_bias else None
    z = Float32Projection().apply(SimpleNamespace(weight=weight), x, bias)
    wanted = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    assert z.dtype == torch.float32
    torch.testing.assert_close(z.double(), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("float32", [True, False])
@pytest.mark.parametrize("columns", [31, 64])
def test_another_head_has_its_own_bias_scale_and_softcap(float32, columns):
    """And padding to as many columns as the model's own projection has, of which nothing comes back."""
    head = Head(random(31, 16), random(31), 0.5, 3.0, 31)
    other = OtherHead(head, columns, torch.bfloat16, CPU, float32=float32)
    assert other._layer.weight.shape == (columns, 16)
    states = random(5, 16, dtype=torch.bfloat16)
    z = other.logits(states)
    assert z.shape == (5, 31) and z.dtype == (torch.float32 if float32 else torch.bfloat16)
    # The weight is rounded as the model's own would be.
    product = states.double() @ head.weight.bfloat16().double().T
    wanted = 3.0 * torch.tanh(0.5 * (product + head.bias.bfloat16().double()) / 3.0)
    torch.testing.assert_close(z.double(), wanted, rtol=0, atol=1e-5 if float32 else 0.05)


def test_a_float32_base_keeps_its_weight_as_it_is():
    head = Head(random(31, 16, dtype=torch.bfloat16), None, 1.0, None, 31)
    assert (
        OtherHead(head, 31, torch.float32, CPU, float32=True)._layer.weight.dtype == torch.bfloat16
    )
    wide = Head(random(31, 16), None, 1.0, None, 31)
    other = OtherHead(wide, 31, torch.bfloat16, CPU, float32=True)
    assert other._layer.weight.dtype == torch.bfloat16


def test_an_unquantized_head_is_projected_in_float32_and_another_refused():
    lm_head = SimpleNamespace(quant_method=Unquantized())
    project_in_float32(lm_head)
    ours = lm_head.quant_method
    assert isinstance(ours, Float32Projection)
    project_in_float32(lm_head)
    assert lm_head.quant_method is ours
    with pytest.raises(ValueError, match=r"the head is quantized \(object\): use model"):
        project_in_float32(SimpleNamespace(quant_method=object()))


def test_states_go_to_the_rows_of_their_prompts(tmp_path):
    states = torch.randn(9, 4, generator=GENERATOR).bfloat16()
    path = tmp_path / "states"
    create_states(path, 9, 4, torch.bfloat16)
    file = StateFile(path, 9, 4, "bfloat16")
    file.write(np.array([5, 6, 0, 1]), states[[5, 6, 0, 1]])
    # A prompt that was preempted comes again, and counts once.
    file.write(np.array([5, 6]), states[[5, 6]])
    assert file.rows == 4
    file.write(np.array([2, 3, 4, 7]), states[[2, 3, 4, 7]])
    assert file.rows == 8
    file.write(np.array([8]), states[[8]])
    assert file.rows == 9 and torch.equal(read_states(path), states)


@pytest.mark.parametrize(
    "states", [torch.zeros(2, 4), torch.zeros(2, 5).bfloat16(), torch.zeros(3, 4).bfloat16()]
)
def test_states_of_another_kind_are_not_written(states, tmp_path):
    path = tmp_path / "states"
    create_states(path, 9, 4, torch.bfloat16)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="2 rows of"):
        StateFile(path, 9, 4, "bfloat16").write(np.array([1, 2]), states)
    assert path.read_bytes() == before
