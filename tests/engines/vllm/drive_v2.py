"""Drives vLLM's own V2 `PoolingRunner` over the scoring pooler, and its `GPUModelRunner.sample` under
the watch on decode steps, without the kernels they need elsewhere.

The V2 model runner wants Triton, which the CPU build has not; these parts are plain Python and torch.
Here they get the requests, chunks and preemptions of a scheduler by hand, a model that is only a head,
and the answers are held against a float64 log-softmax. Prints `ok` at the end.
"""

from types import MethodType, SimpleNamespace

import numpy as np
import torch
from stepped import Head, Runner, drive, make_windows
from vllm import PoolingParams
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.pool.pooling_runner import PoolingRunner

from scoremode.engines.vllm.prompts import COLUMNS, ScoreRequest
from scoremode.engines.vllm.workers import scorer as scorers
from scoremode.engines.vllm.workers.pooler import TASK, ScoringPooler, _collect, _Span
from scoremode.engines.vllm.workers.steps import StepScorer
from scoremode.head.rows import RowSums

ENTRIES, WIDTH = 50, 8
GENERATOR = torch.Generator().manual_seed(0)
HEAD = torch.randn(ENTRIES, WIDTH, generator=GENERATOR)


class Model(torch.nn.Module):
    """As much of a vLLM model as a pooler and its runner look at."""

    is_pooling_model = True

    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.pooler = ScoringPooler(self, vllm_config)
        self.pooler.scorer._head = SimpleNamespace(score=score)

    def embed_input_ids(self, input_ids):
        raise NotImplementedError

    def forward(self, input_ids, positions):
        raise NotImplementedError


def score(hidden, target, kind, given=None):
    sums = RowSums(len(hidden), hidden.device, entropy=True)
    sums.absorb(slice(None), (hidden @ HEAD.T)[:, : kind.vocabulary], target, 0)
    return sums.finish()


def step(runner, requests, chunks, states):
    """One scheduler step: request index → tokens `begin … end` of it, in that order."""
    rows = [requests[i][1][begin:end] for i, (begin, end) in chunks.items()]
    counts = np.array([len(r) for r in rows], np.int32)
    batch = SimpleNamespace(
        num_reqs=len(chunks),
        num_tokens=int(counts.sum()),
        idx_mapping_np=np.array(list(chunks), np.int32),
        num_scheduled_tokens=counts,
        seq_lens_cpu_upper_bound=torch.tensor([end for _, end in chunks.values()]),
        query_start_loc=torch.from_numpy(np.append(0, counts.cumsum()).astype(np.int32)),
        req_ids=[str(i) for i in chunks],
    )
    # The runner's buffers are padded.
    hidden = torch.cat([*rows, torch.full((3, WIDTH), torch.nan)])
    outputs, finished = runner.pool(hidden, batch, states)
    return {i: out.numpy() for i, out, done in zip(chunks, outputs, finished, strict=True) if done}


def check(rows, ids, hidden, wanted=None, first=0):
    targets = (ids[1:] if wanted is None else wanted)[first:]
    z = (hidden.double() @ HEAD.double().T).log_softmax(1)[first : first + len(targets)]
    values = dict(zip(COLUMNS, rows.T, strict=True))
    assert np.array_equal(values["target"], targets), "targets"
    assert np.array_equal(values["position"], np.arange(first + 1, first + 1 + len(targets)))
    truth = z.gather(1, torch.as_tensor(targets).long()[:, None])[:, 0].numpy()
    assert np.abs(values["logprob"] - truth).max(initial=0) < 1e-5, "log-probabilities"
    assert np.array_equal(values["top1"], z.argmax(1)), "top-1"


def check_account() -> None:
    """The pooler's own account of a prompt, against what a scheduler should never do."""
    ids = torch.arange(10)

    def steps(*spans, first=0, chosen=None):
        kept, out = [], None
        for begin, end in spans:
            span = _Span(0, begin, end, 10, ScoreRequest(first=first, chosen=chosen), ids)
            # A step's states are numbered by the tokens that they are of.
            states = span.rows_of(torch.arange(begin, end)[:, None])
            assert states[:, 0].tolist() == span.places.tolist()
            out = _collect(kept, span, torch.from_numpy(span.targets.astype("float32"))[:, None])
        return out[:, 0].tolist()

    wanted = [float(i) for i in range(1, 10)]
    assert steps((0, 10)) == steps((0, 4), (4, 5), (5, 10)) == wanted
    # Preempted after four, from the start again.
    assert steps((0, 4), (0, 6), (6, 10)) == wanted
    assert steps((0, 4), (4, 10), first=6) == wanted[6:]
    # With gaps between what is scored.
    some = np.array([0, 2, 3, 7], np.int32)
    for spans in [((0, 10),), ((0, 3), (3, 6), (6, 7), (7, 10)), ((0, 4), (0, 6), (6, 10))]:
        assert steps(*spans, chosen=some) == [1.0, 3.0, 4.0, 8.0]
    for wrong in [((0, 4), (5, 10)), ((0, 4), (3, 10)), ((4, 10),), ((0, 4), (4, 8), (4, 10))]:
        try:
            steps(*wrong)
        except RuntimeError as error:
            assert "skipped some or repeated them" in str(error)
        else:
            raise AssertionError(f"{wrong} passed")


def check_steps() -> None:
    """Decode steps whose rows the runner's own `sample` takes from the batch."""
    scorers.ShardedHead = Head
    windows = make_windows()
    runner = Runner(windows, sample=GPUModelRunner.sample)
    runner.sample = MethodType(GPUModelRunner.sample, runner)
    runner.batch_sharder = runner.rejection_sampler = None
    runner.sampler = lambda logits, batch: SimpleNamespace(
        sampled_token_ids=logits.argmax(1)[:, None],
        num_sampled=torch.ones(batch.num_reqs),
        num_rejected=torch.zeros(batch.num_reqs),
    )
    drive(runner, StepScorer(runner, "model"), windows)


def main() -> None:
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            get_pooling_task=lambda tasks: TASK,
            pooler_config=None,
            attn_type="decoder",
            max_model_len=64,
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
        additional_config={},
    )
    runner = PoolingRunner(Model(vllm_config=config), config)
    lengths = (20, 7, 1, 12)
    requests = []
    for length in lengths:
        ids = torch.randint(0, ENTRIES, (length,), generator=GENERATOR).int().numpy()
        requests.append((ids, torch.randn(length, WIDTH, generator=GENERATOR)))
    explicit = np.arange(12, dtype=np.int32) % ENTRIES
    asked = {3: ScoreRequest(explicit, first=5)}
    states = SimpleNamespace(prompt_len=SimpleNamespace(np=np.array(lengths, np.int32)))

    def add(i):
        extra = asked[i].to_extra() if i in asked else None
        params = PoolingParams(task=TASK, extra_kwargs=extra)
        runner.add_request(str(i), i, params, requests[i][0].tolist())

    for i in range(4):
        add(i)
    done = step(runner, requests, {0: (0, 6), 1: (0, 7), 2: (0, 1), 3: (0, 3)}, states)
    assert sorted(done) == [1, 2]
    assert done[2].shape == (0, len(COLUMNS))
    check(done[1], *requests[1])
    # Request 0 goes on in another place of the batch; 3 is preempted and begins again.
    assert not step(runner, requests, {3: (3, 8), 0: (6, 13)}, states)
    runner.remove_request(3)
    add(3)
    done = step(runner, requests, {0: (13, 20), 3: (0, 12)}, states)
    check(done[0], *requests[0])
    check(done[3], *requests[3], wanted=explicit, first=5)
    # A gap, as a cached prefix would leave, is an error.
    add(1)
    try:
        step(runner, requests, {1: (2, 7)}, states)
    except RuntimeError as error:
        assert "skipped" in str(error)
    else:
        raise AssertionError("a prompt with a gap was scored")
    runner.dummy_pooler_run(torch.randn(40, WIDTH))
    check_account()
    check_steps()
    print("ok")


if __name__ == "__main__":
    main()
