"""A rank's part of a comparison, and of a file of states. Needs no vLLM."""

from typing import Any

import numpy as np
import pytest
import torch

from scoremode.engines.vllm.workers.comparison import Share, compare, open_base
from scoremode.head.full import full_pairs
from scoremode.head.project import score_pairs
from scoremode.llama_cpp.reference import LlamaCppSums

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

    monkeypatch.setattr("scoremode.engines.vllm.workers.comparison._TILE", {"cpu": tile})
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
    assert ("kld_llama_cpp" in wanted) == (extra is not None)
    for result in results:
        assert ("kld_llama_cpp" in result) == (extra is not None)
        for name, column in wanted.items():
            torch.testing.assert_close(result[name], column, rtol=0, atol=1e-6, msg=name)
        entropy = -(model.float().softmax(1) * model.float().log_softmax(1)).sum(1)
        torch.testing.assert_close(result["entropy"].float(), entropy, rtol=0, atol=1e-5)
    assert torch.equal(model, before[0]) and torch.equal(base, before[1])
