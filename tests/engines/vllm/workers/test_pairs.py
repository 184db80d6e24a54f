"""A rank's part of a comparison, and of a file of states. Needs no vLLM."""

from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from llama_cpp_files import GOLDEN

from scoremode.engines.base import Extras
from scoremode.engines.vllm.pooling import PoolingEngine
from scoremode.engines.vllm.prompts import Keep
from scoremode.engines.vllm.workers.bases import Share, open_base, spans_of
from scoremode.engines.vllm.workers.pairs import compare
from scoremode.engines.vllm.workers.state_file import StateFile
from scoremode.errors import EngineError, InvalidMeasurement
from scoremode.head.full import full_pairs
from scoremode.head.project import score_pairs
from scoremode.llama_cpp.reference import LlamaCppReference
from scoremode.llama_cpp.sums import LlamaCppSums
from scoremode.reference.states import create_states, read_states

GENERATOR = torch.Generator().manual_seed(0)
ROWS, ENTRIES = 30, 101


class Columns:
    """Given logits as an engine's."""

    def __init__(self, logits: torch.Tensor):
        self._logits = logits

    def load(self, begin: int, end: int) -> None:
        self._here = slice(begin, end)

    def __call__(self, block: slice) -> torch.Tensor:
        return self._logits[block, self._here].to(torch.float32, copy=True)


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
    import threading

    monkeypatch.setattr("scoremode.engines.vllm.workers.pairs._TILE", {"cpu": tile})
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
            mine.logits(rows) if begin < end else None,
            target,
            begin,
            over_ranks,
            entropy=True,
            extra=extra,
            full=True,
        )

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(bounds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    pair = score_pairs(Columns(model), Columns(base), target, ENTRIES, extra=extra)
    full = full_pairs(Columns(model), Columns(base), pair, ENTRIES)
    wanted = {"logprob": pair.model.logprob, "top1": pair.model.top1, **vars(full)}
    wanted |= {"kld": pair.kld, "kld_reverse": pair.kld_reverse, "base_top1": pair.base.top1}
    wanted |= {"base_logprob": pair.base.logprob, **pair.extra}
    assert ("kld_llama_cpp" in wanted) == (extra is not None)
    for result in results:
        assert ("kld_llama_cpp" in result) == (extra is not None)
        for name, column in wanted.items():
            torch.testing.assert_close(result[name], column, rtol=0, atol=1e-6, msg=name)
        entropy = -(model.float().softmax(1) * model.float().log_softmax(1)).sum(1)
        torch.testing.assert_close(result["entropy"].float(), entropy, rtol=0, atol=1e-5)
    assert torch.equal(model, before[0]) and torch.equal(base, before[1])


def test_a_reference_is_named_so_that_a_worker_can_open_it():
    """Only plain values reach the workers."""
    asked = []
    engine = cast(PoolingEngine, SimpleNamespace(ask=lambda *call: asked.append(call)))
    reference = LlamaCppReference(GOLDEN)
    PoolingEngine.compare_with(engine, reference)
    ((method, kind, path, sha256),) = asked
    assert method == "scoremode_compare_with" and {type(x) for x in asked[0]} == {str}
    opened = resolve_name(kind)(Path(path))
    assert type(opened) is LlamaCppReference and opened.path == GOLDEN.resolve()
    assert opened.sha256 == reference.sha256 == sha256


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


def test_a_row_that_no_worker_wrote_is_no_measurement(tmp_path):
    asked = []

    def ask(question: str, *arguments: Any) -> list[Any]:
        asked.append((question, *arguments))
        return [3, 0]

    keep = Keep(tmp_path / "states", 4, 8, "bfloat16", [0])
    engine = cast(PoolingEngine, SimpleNamespace(ask=ask))
    with (
        pytest.raises(InvalidMeasurement, match="kept 3 of 4 states"),
        PoolingEngine.keeping(engine, keep),
    ):
        pass
    assert asked[0] == ("scoremode_keep", str(tmp_path / "states"), 4, 8, "bfloat16")


def test_a_base_that_is_not_on_disk_is_refused():
    """A model that another engine runs can't be handed to vLLM's workers."""
    from scoremode.engines.vllm.engine import _against

    plan = SimpleNamespace(offsets=np.array([0, 5]))
    with pytest.raises(
        EngineError, match=r"Given: vLLM's workers compare with a reference on disk"
    ):
        _against(cast(Any, plan), range(1), Extras(cast(Any, Given(torch.zeros(1, 1)))))
