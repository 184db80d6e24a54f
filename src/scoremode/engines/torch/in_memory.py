"""A module in memory as an engine: its own forward, and the head in tiles as everywhere.

The layers are the module's, with whatever quantization stands in them, run as they are and left as they
were; scores follow from their states as those of a checkpoint do. So the two are the same bits where
the layers compute alike, and where the module fakes what a checkpoint stores, the difference is the
fake's rounding.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from scoremode.checkpoint.virtual import ModuleInMemory
from scoremode.engines.base import Extras, Progress, Schedule, Work
from scoremode.engines.torch.device import Device, DeviceClock, choose_device, make_current
from scoremode.engines.torch.memory.budget import out_of_memory
from scoremode.engines.torch.model.attention import attention_backends
from scoremode.engines.torch.model.layer_recorder import Reached
from scoremode.engines.torch.model.skeleton import FORWARD_ERRORS
from scoremode.engines.torch.passes.microbatch import PendingScores, inputs_of, score_states
from scoremode.engines.torch.passes.proofs import probe_ids, prove_causal, prove_head
from scoremode.engines.torch.weights.head import probe_head
from scoremode.errors import UnsupportedModel, UsageError, words_of
from scoremode.head.project import Head
from scoremode.reference.writer import HeadTensors
from scoremode.results.scores import Scores, expected
from scoremode.text.plan import Plan

# Tokens of a micro-batch, and micro-batches of a pass, where the user says nothing.
_TOKENS = 4096
_BATCHES = 4


class InMemoryModule:
    """A causal language model of transformers' in memory.

    Raises UnsupportedModel for one whose head is no plain linear, or that doesn't run.
    """

    def __init__(self, module: Any):
        self.module, self.name = module, type(module).__name__
        head = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None
        if head is None:
            raise UnsupportedModel(f"{self.name}: has no output embedding")
        # What else it may be, quantized say, is told by what it computes (`proofs.prove_head`).
        if not isinstance(head, nn.Linear) or head.weight.is_meta:
            raise UnsupportedModel(
                f"{self.name}: its output embedding is a {type(head).__name__} whose weight is "
                f"{'not here' if isinstance(head, nn.Linear) else 'unknown'}: save the model, and give "
                "its folder"
            )
        self.output: nn.Linear = head

    @property
    def device(self) -> torch.device:
        """The device of its head."""
        return self.output.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its head's weight, and so of the states in front of it."""
        return self.output.weight.dtype

    @contextmanager
    def still(self) -> Iterator[None]:
        """A context in which nothing is trained, and attention is computed by the kernels that an
        engine asks for; behind it every part is as it was before."""
        training = [(part, part.training) for part in self.module.modules()]
        self.module.eval()
        try:
            with torch.no_grad(), attention_backends(self.device):
                yield
        finally:
            for part, was in training:
                part.training = was

    def states(self, ids: torch.Tensor) -> torch.Tensor:
        """[B, T, D]: what its head is given for ids [B, T], which its forward computes up to there."""
        found: list[torch.Tensor] = []

        def stop(_: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            found.append(args[0])
            raise Reached

        handle = self.output.register_forward_pre_hook(stop)
        try:
            self._run(ids)
        except Reached:
            pass
        finally:
            handle.remove()
        if len(found) != 1 or found[0].shape[:-1] != ids.shape:
            raise UnsupportedModel(f"{self.name}: what its head gets is not one row a token")
        return found[0]

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """[B, T, V']: its own."""
        return self._run(ids).logits

    def head(self, vocabulary: int | None) -> Head:
        """Its head over its first `vocabulary` entries, or all it has. Raises UnsupportedModel."""
        weight = self.output.weight.detach()
        config = self.module.config
        shape = probe_head(self.name, self.output, len(weight), self.logits, config, self.device)
        entries = min(vocabulary or shape.width, shape.width)
        bias = None if self.output.bias is None else self.output.bias.detach()
        return Head(weight, bias, shape.scale, shape.softcap, entries)

    def _run(self, ids: torch.Tensor) -> Any:
        place = self.module.get_input_embeddings().weight.device
        try:
            return self.module(input_ids=ids.to(place), use_cache=False)
        except torch.cuda.OutOfMemoryError:
            raise
        except FORWARD_ERRORS as error:
            raise UnsupportedModel(
                f"{self.name}: its forward does not run on token ids alone ({words_of(error, 160)})"
            ) from error


class InMemoryEngine:
    """A module in memory, ready to score plans over one vocabulary. Raises UnsupportedModel."""

    def __init__(
        self, checkpoint: ModuleInMemory, vocabulary: int | None, batch_windows: int | None
    ):
        self._checkpoint, self._batch_windows = checkpoint, batch_windows
        self._live = InMemoryModule(checkpoint.module)
        where = self._live.device
        if where.type not in ("cpu", "cuda"):
            raise UsageError(f"{checkpoint.source}: is on {where}: only CPU and CUDA are supported")
        self._device: Device = choose_device(str(where), None, None)
        self._clock = DeviceClock(where)
        self._tokens, self._is_proven = 0, False
        make_current(where)
        with self._live.still():
            self.head = self._live.head(vocabulary)

    @property
    def vocabulary(self) -> int:
        return self.head.vocabulary

    def schedule(self, plan: Plan) -> Schedule:
        own = max(1, _TOKENS // int(plan.lengths.max()))
        batch = self._batch_windows or own
        return Schedule(pass_windows=_BATCHES * batch, batch_windows=batch)

    def score(
        self,
        plan: Plan,
        schedule: Schedule,
        first_pass: int = 0,
        progress: Progress | None = None,
        extras: Extras | None = None,
    ) -> Iterator[Scores]:
        """The Scores of each pass. Raises OutOfMemory, after the Scores of all passes before."""
        for work in Work.passes(plan, schedule, first_pass, progress, extras):
            try:
                with self._live.still():
                    scores = self._scored(work)
            except torch.cuda.OutOfMemoryError as error:
                raise out_of_memory(error) from None
            yield scores

    def head_tensors(self) -> HeadTensors:
        source = self._checkpoint.source
        return HeadTensors(self.head, source, self._checkpoint.place, None, None)

    def identity(self) -> dict[str, Any]:
        module = self._checkpoint.module
        config: Any = module.config
        kind = type(module)
        return {
            "engine": "torch",
            "torch": torch.__version__,
            "dtype": str(self._live.dtype).removeprefix("torch."),
            "arithmetic": "the module's own",
            "activations": {"declared": None, "ran": None},
            "products": [],
            "kv_cache_dtype": None,
            "attention": str(getattr(config, "_attn_implementation", "unknown")),
            "text_alone": None,
            "model_class": f"{kind.__module__}.{kind.__qualname__}",
            "vocabulary": self.vocabulary,
            "device": self._device.to_json(),
            "batch_windows": self._batch_windows,
        }

    def describe(self) -> dict[str, Any]:
        return {
            **self.identity(),
            "placement": "where the module is",
            "layers": "the module's own forward",
            "head": self.head.to_json(),
            "unused_tensors": [],
            "tokens": self._tokens,
            "seconds": self._clock.seconds(),
            "peak_bytes": self._device.peak_bytes(),
        }

    def close(self) -> None:
        """Leaves the module where it is."""

    def _scored(self, work: Work) -> Scores:
        columns = [expected(work.plan, batch) for batch in work.batches]
        spans = work.spans
        if work.extras.reference is not None:
            work.extras.reference.expect(spans, self._device.torch)
        states = [self._states(work, batch) for batch in work.batches]
        if work.put is not None:
            work.put(states)
        results = []
        for span, column in zip(spans, columns, strict=True):
            target = self._sent(column["target"])
            own = states.pop(0)
            results.append(score_states(self.head, work, span, own, target, self._clock))
        self._tokens += work.tokens
        # Of the layers `_states` has told.
        work.progress(work.tokens / 2)
        return PendingScores(columns, results, self._device.torch).scores()

    def _states(self, work: Work, batch: range) -> torch.Tensor:
        """[N, D]: the states that a micro-batch's targets are predicted from."""
        with self._clock.stage("layers"):
            inputs = inputs_of(work.plan, batch, None, self._sent)
            assert isinstance(inputs.ids, torch.Tensor)
            if not self._is_proven:
                # No state depends on tokens after it, and its head is the function that ours is.
                live, probe = self._live, probe_ids(inputs.ids[0], self.head.vocabulary)
                prove_causal(live.name, live.states(probe))
                prove_head(live.name, live.output, self.head, lambda: live.logits(probe))
                self._is_proven = True
            found = inputs.chosen(self._live.states(inputs.ids))
        work.progress(work.part(batch).tokens / 2)
        return found

    def _sent(self, numbers: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(numbers.astype(np.int64)).to(self._device.torch)
