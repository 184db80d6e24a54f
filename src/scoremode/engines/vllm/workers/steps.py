"""Scores of decode steps: a watch on a generating vLLM's own runner, in each worker.

Both of vLLM's runners end a step alike: the final hidden states of the rows that they sample from, one
a running request, go through the model's `compute_logits`, and the sampler's choice is each request's
next token. `StepScorer` takes that call's place. It scores each row for the token that follows in its
window, and hands the sampler logits whose largest entry is that very token: vLLM computes the window by
its decode kernels, as it would have generated it.

The request and the place of each row are known from the scheduler's own output and the runner's batch.
Nothing has to be believed of that: a row taken for another's, or for another place, makes vLLM sample
another token there. vLLM hands back each request's tokens by its own books, and the process that asks
compares them with the window (`decoding.py`).
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scoremode.engines.vllm.prompts import Kind, ScoreRequest
from scoremode.engines.vllm.workers.comparison import to_device
from scoremode.engines.vllm.workers.scorer import RowScorer


@dataclass
class _Replay:
    """One request: `place` is the token that it is next to be sampled after."""

    request: ScoreRequest
    place: int


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows [n, columns] of one step, of the requests `index` [n]."""

    index: NDArray[np.int32]
    rows: torch.Tensor


class StepScorer:
    """Scores of a generating `runner`'s decode steps, from now on; made on every rank of the last
    pipeline stage.

    - `head_dtype`: as `ShardedHead` has it.
    """

    def __init__(self, runner: Any, head_dtype: str):
        model = runner.get_model()
        self.scorer = RowScorer(model, head_dtype)
        # Takes the model's own `compute_logits` along, before it is replaced.
        self._head = self.scorer.head
        self._runner, self._entries = runner, int(runner.model_config.get_vocab_size())
        self._replays: dict[str, _Replay] = {}
        # Of each scheduled request, the tokens that are computed before and after the step.
        self._step: dict[str, tuple[int, int]] = {}
        self._batch: Any = None
        self._kind: Kind | None = None
        self._found: list[_Rows] = []
        self._prefilled = 0
        self._execute = runner.execute_model
        runner.execute_model = self._watched_execute
        if not hasattr(runner, "input_batch"):
            # The V2 runner hands its batch on; V1's is the runner's own.
            self._sample = runner.sample
            runner.sample = self._watched_sample
        model.compute_logits = self._logits

    def take(self) -> tuple[bytes, bytes, int]:
        """Rows since the last time, as the steps brought them: the requests' numbers, int32 [N]; the
        rows, float32 [N, columns]; how many of them were computed together with other tokens of their
        request, as after a preemption."""
        found, self._found = self._found, []
        prefilled, self._prefilled, self._kind = self._prefilled, 0, None
        self._replays.clear()
        if not found:
            return b"", b"", 0
        index = np.concatenate([part.index for part in found])
        rows = torch.cat([part.rows for part in found]).cpu().numpy()
        return index.astype("<i4").tobytes(), rows.astype("<f4").tobytes(), prefilled

    def _watched_execute(self, output: Any, *args: Any, **kwargs: Any) -> Any:
        for name in output.finished_req_ids:
            self._replays.pop(name, None)
        begins = {}
        for new in output.scheduled_new_reqs:
            begins[new.req_id] = new.num_computed_tokens
            # The V2 runner is told of a request again when it goes on after a preemption.
            if new.req_id not in self._replays and new.sampling_params is not None:
                request = ScoreRequest.from_extra(new.sampling_params.extra_args)
                if request.targets is not None:
                    self._replays[new.req_id] = _Replay(request, request.prompt_tokens - 1)
        cached = output.scheduled_cached_reqs
        begins |= zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        counts = output.num_scheduled_tokens
        self._step = {name: (begins[name], begins[name] + n) for name, n in counts.items()}
        return self._execute(output, *args, **kwargs)

    def _watched_sample(self, hidden: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        self._batch = batch
        return self._sample(hidden, batch, *args, **kwargs)

    def _logits(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Float32 [R, entries] for the sampler, of the final hidden states [R, D] of a step."""
        if not self._replays:
            # Nobody's but vLLM's own, such as a warm-up.
            return self._head.own_logits(hidden)
        names = self._requests_of_rows()
        if len(names) != len(hidden) or set(names) != set(self._step):
            raise RuntimeError(
                f"{len(hidden)} rows to sample from {len(names)} requests, of {len(self._step)} that "
                "were scheduled: decode steps are scored where each samples one token"
            )
        forced, scored = np.zeros(len(names), np.int64), np.zeros(len(names), bool)
        places = np.zeros(len(names), np.int64)
        for row, name in enumerate(names):
            begin, end = self._step[name]
            replay = self._replays[name]
            targets, place = replay.request.targets, end - 1
            assert targets is not None
            if place >= len(targets):
                raise RuntimeError(f"token {place} of a window of {len(targets)} was computed")
            forced[row], places[row] = targets[place], place
            # Fewer: a chunk of a prompt, or of what is computed again after a preemption.
            if place < replay.place:
                continue
            if place > replay.place:
                raise RuntimeError(
                    f"token {place} of a window was sampled after, where {replay.place} was next: vLLM "
                    "has skipped some"
                )
            replay.place += 1
            if replay.request.row_of(place) is not None:
                scored[row] = True
                self._prefilled += end - begin > 1
        if scored.any():
            self._keep(hidden, names, places, forced, scored)
        logits = hidden.new_zeros((len(names), self._entries), dtype=torch.float32)
        return logits.scatter_(1, to_device(torch.from_numpy(forced)[:, None], hidden.device), 1.0)

    def _requests_of_rows(self) -> list[str]:
        """The request that each row of this step's samples for."""
        batch = self._batch if self._batch is not None else self._runner.input_batch
        return list(batch.req_ids)

    def _keep(
        self,
        hidden: torch.Tensor,
        names: list[str],
        places: NDArray[np.int64],
        targets: NDArray[np.int64],
        scored: NDArray[np.bool_],
    ) -> None:
        """Scores all rows together, as the sampler would have had their logits, and keeps those that
        are `scored`."""
        requests = [self._replays[name].request for name in names]
        (kind,) = {request.kind for request in requests}
        if self._kind not in (None, kind):
            raise RuntimeError("requests of two kinds between two answers")
        self._kind = kind
        offsets = np.array(
            [
                (request.row_of(place) or 0) if is_scored else 0
                for request, place, is_scored in zip(
                    requests, places.tolist(), scored.tolist(), strict=True
                )
            ]
        )
        base = np.array([request.row for request in requests]) + offsets
        kept = np.where(scored, np.array([request.place for request in requests]) + offsets, -1)
        rows = self.scorer.score(hidden, places, targets, kind, base=base, kept=kept)
        if not scored.all():
            rows = rows[to_device(torch.from_numpy(scored.nonzero()[0]), rows.device)]
        index = np.array([request.index for request in requests], np.int32)[scored]
        self._found.append(_Rows(index, rows))
