"""What an engine whose workers score has in common: references, kept states, and the test before its
numbers are believed."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from scoremode.engines.vllm.prompts import Keep, Kind, Prompt, PromptScores, scores_of
from scoremode.engines.vllm.start import Started
from scoremode.errors import InvalidMeasurement
from scoremode.reference.base import OnDisk

# The workers' float32 against a float64 log-softmax of the same logits, relative to the largest.
_SELF_TEST_LIMIT = 1e-4
_SELF_TEST_TOKENS = 16


class Mismatch(Exception):
    """What scores in the workers does not fit this vLLM, in one line."""


class ScoringEngine(Started):
    """A vLLM whose workers score."""

    path: str

    @abstractmethod
    def _encode(self, prompts: Sequence[Prompt], kind: Kind) -> list[NDArray[np.float32]]:
        """Rows [N, columns of `kind`] of each prompt, as the workers gave them."""

    def score(self, prompts: Sequence[Prompt], kind: Kind) -> list[PromptScores]:
        rows = self._encode(prompts, kind)
        return [scores_of(r, p, kind) for r, p in zip(rows, prompts, strict=True)]

    def compare_with(self, reference: OnDisk) -> None:
        """Has every worker load what comparing with it needs. Raises EngineError, ReferenceUnusable."""
        opener, path = type(reference), str(reference.path.resolve())
        name = f"{opener.__module__}:{opener.__qualname__}"
        self.ask("scoremode_compare_with", name, path, reference.sha256)

    @contextmanager
    def keeping(self, keep: Keep) -> Iterator[None]:
        """Sends the states that are to be kept to that file, until the block ends.

        Raises InvalidMeasurement unless all of its rows were written when it ends well.
        """
        path = str(keep.path.resolve())
        self.ask("scoremode_keep", path, keep.rows, keep.width, keep.dtype)
        yield
        written = sum(self.ask("scoremode_kept"))
        if written != keep.rows:
            raise InvalidMeasurement(f"vLLM's workers kept {written} of {keep.rows} states")

    def _test(self, longest: int) -> None:
        """The numbers for a prompt of 16 tokens, or the `longest`, against the gathered logits, in the
        worker. Raises Mismatch."""
        length = min(_SELF_TEST_TOKENS, longest)
        ids = np.random.default_rng(0).integers(0, self.entries, length).astype(np.int32)
        # Not alike, since a row of one that is taken for the other's has to be told.
        back = ids[::-1].copy()
        prompts = Prompt(ids, None, 0), Prompt(back, np.append(back[1:], ids[-1]), 0)
        kind = Kind(self_test=True)
        names = kind.columns
        # Together, so that both take part in the same batch.
        for prompt, rows in zip(prompts, self._encode(prompts, kind), strict=True):
            wanted = prompt.expected
            if rows.shape != (len(wanted), len(names)):
                raise Mismatch(f"the self-test gave {rows.shape} numbers for {len(wanted)} targets")
            values: dict[str, NDArray[np.float32]] = dict(zip(names, rows.T, strict=True))
            if not np.array_equal(values["target"], wanted):
                raise Mismatch("the self-test scored other targets than it was given")
            for name in ("logprob", "entropy"):
                gathered = values[f"gathered_{name}"]
                # A model whose logits are not finite is no mismatch: its scores will say so.
                finite = np.isfinite(gathered)
                size = float(np.abs(gathered[finite]).max(initial=0.0))
                worst = float(np.abs(values[name] - gathered)[finite].max(initial=0.0))
                if not worst <= _SELF_TEST_LIMIT * max(1.0, size):
                    raise Mismatch(
                        f"the self-test's {name} is {worst:.3g} nats off that of the gathered logits"
                    )
            finite = np.isfinite(values["gathered_logprob"])
            if not np.array_equal(values["top1"][finite], values["gathered_top1"][finite]):
                raise Mismatch("the self-test's top-1 is not that of the gathered logits")
