"""Replies by transformers' own `generate`.

Prompts of one length make a batch, so nothing is padded: padding moves bits, and a model with a state
other than keys and values would take it for text. What is drawn depends on the reply's own seed: each
step takes one number of a generator that counts (Philox), and the token in whose share of the
distribution it lies.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.sampling import Reply, Sampling, SamplingRequest, reply_of
from scoremode.engines.torch.device import Device, choose_device, choose_dtype
from scoremode.engines.torch.model.architecture import find_architecture, library_errors
from scoremode.errors import EngineError, UnsupportedModel


@dataclass(frozen=True)
class TorchSampling:
    """Settings of transformers.

    - `device`, `dtype`: as the torch engine's; `batch_size`: most replies that are drawn together.
    """

    device: str | None = None
    dtype: str = "auto"
    batch_size: int = 16
    trust_remote_code: bool = False

    def identity(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Facts that may move a token, beside versions of libraries. Raises UnsupportedModel."""
        if not checkpoint.is_folder:
            raise UnsupportedModel(
                f"{checkpoint.path}: a GGUF file, which transformers' generate can't sample from on "
                "its packed weights: give the model that it was made of"
            )
        device = choose_device(self.device, None, None)
        described = device.to_json()
        return {
            "engine": "torch",
            "dtype": str(choose_dtype(self.dtype, checkpoint, device)).removeprefix("torch."),
            "batch_size": self.batch_size,
            "device": {name: described[name] for name in ("type", "name", "threads")},
        }

    def open(
        self, checkpoint: Checkpoint, longest: int, sampling: Sampling, ends: frozenset[int]
    ) -> "TorchSampler":
        """The model, loaded. Raises UnsupportedModel, EngineError."""
        device = choose_device(self.device, None, None)
        dtype = choose_dtype(self.dtype, checkpoint, device)
        model = _loaded(checkpoint, dtype, device, self.trust_remote_code)
        return TorchSampler(model, sampling, ends, self.batch_size)


class TorchSampler:
    """A model of transformers' that replies; `ends`: ids at which it stops."""

    def __init__(self, model: Any, sampling: Sampling, ends: frozenset[int], batch_size: int):
        from transformers import GenerationConfig

        self._model, self._sampling, self._ends, self._batch = model, sampling, ends, batch_size
        stops = sorted(ends)
        # The model's own would fill in what this one leaves open, such as penalties.
        model.generation_config = GenerationConfig(
            do_sample=False,
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=stops or None,
            pad_token_id=stops[0] if stops else 0,
        )

    def batches(self, requests: Sequence[SamplingRequest]) -> list[list[int]]:
        """Places of equal prompt lengths, at most `batch_size` together, by their first."""
        lengths: dict[int, list[int]] = {}
        for place, one in enumerate(requests):
            lengths.setdefault(len(one.ids), []).append(place)
        size = self._batch
        batches = [p[i : i + size] for p in lengths.values() for i in range(0, len(p), size)]
        return sorted(batches)

    def replies(self, batch: Sequence[SamplingRequest]) -> list[Reply]:
        ids = torch.from_numpy(np.stack([one.ids for one in batch]).astype(np.int64))
        ids = ids.to(self._model.device)
        draws = None if self._sampling.is_greedy else [_Draws(self._sampling, batch)]
        try:
            with torch.inference_mode():
                found = self._model.generate(
                    ids, attention_mask=torch.ones_like(ids), logits_processor=draws
                )
        except torch.OutOfMemoryError:
            raise EngineError(
                f"{len(batch)} prompts of {ids.shape[1]:,} tokens and as many replies don't fit the "
                "device's memory: --batch-size takes fewer at once"
            ) from None
        rows = found[:, ids.shape[1] :].tolist()
        return [reply_of(row, self._ends) for row in rows]

    def describe(self) -> dict[str, Any]:
        return {"model_class": type(self._model).__name__}

    def close(self) -> None:
        del self._model


class _Draws:
    """A processor of logits that leaves the token drawn alone, for one batch of replies."""

    def __init__(self, sampling: Sampling, batch: Sequence[SamplingRequest]):
        from transformers.generation.logits_process import (
            TemperatureLogitsWarper,
            TopKLogitsWarper,
            TopPLogitsWarper,
        )

        self._begin = len(batch[0].ids)
        count = sampling.max_new_tokens
        draws = [np.random.Generator(np.random.Philox(one.seed)).random(count) for one in batch]
        # float64 [B, max_new_tokens], from 0 up to 1.
        self._numbers = np.stack(draws)
        self._warpers: list[Any] = []
        if sampling.temperature != 1:
            self._warpers.append(TemperatureLogitsWarper(float(sampling.temperature)))
        if sampling.top_k:
            self._warpers.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1:
            self._warpers.append(TopPLogitsWarper(sampling.top_p))

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """`scores` float32 [B, V] → the same with 0 at the token drawn and -inf elsewhere."""
        for warper in self._warpers:
            scores = warper(input_ids, scores)
        numbers = self._numbers[:, input_ids.shape[1] - self._begin]
        tokens = drawn(scores, torch.from_numpy(numbers.copy()).to(scores.device))
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)


def drawn(scores: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """int64 [B]: of each row of logits [B, V] the token in whose share of the distribution the number
    lies, float64 [B] from 0 up to 1. No token of probability 0 is."""
    sums = scores.double().softmax(-1).cumsum(-1)
    # A product may round up to the whole sum, behind which there is no token.
    wanted = numbers[:, None] * sums[:, -1:]
    wanted = torch.minimum(wanted, torch.nextafter(sums[:, -1:], torch.zeros_like(wanted)))
    return torch.searchsorted(sums, wanted, right=True)[:, 0]


def _loaded(
    checkpoint: Checkpoint, dtype: torch.dtype, device: Device, trust_remote_code: bool
) -> Any:
    """The library's model of a checkpoint's folder, with every tensor in its place.

    Raises UnsupportedModel.
    """
    architecture = find_architecture(checkpoint, trust_remote_code=trust_remote_code)
    with _quiet(), library_errors(checkpoint, "loaded by transformers"):
        model, report = architecture.auto_class.from_pretrained(
            checkpoint.path,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
        )
    for problem in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        # It would go on with random values, or without.
        if names := sorted(map(str, report.get(problem) or ())):
            more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
            raise UnsupportedModel(
                f"{checkpoint.path}: transformers doesn't read this checkpoint whole "
                f"({problem.replace('_', ' ')}: {names[0]}{more}), so what it says would not be this "
                "model's; --engine vllm may read it"
            )
    try:
        return model.eval().to(device.torch)
    except torch.OutOfMemoryError:
        raise EngineError(
            f"{checkpoint.path}: doesn't fit {device.name}'s memory as transformers loads it: "
            "--device cpu, or --engine vllm over several GPUs"
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """No bars and warnings of the library's while it loads: what matters is checked."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
