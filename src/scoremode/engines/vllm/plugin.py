"""The plugin that vLLM loads in every process it starts (entry point `vllm.general_plugins`).

It does nothing unless `SCOREMODE_VLLM=1` is set, which `ScoringLLM` does for the processes it starts,
and which a user does for `vllm serve`: installing scoremode must not change what vLLM does for
anybody else. Then every text generation architecture in the model registry answers as a pooling model
with the scoring pooler, under its own name. The entries are wrapped, not replaced by classes, so that
nothing is imported early and vLLM's cache of what it knows about a class stays that of the class.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scoremode.engines.vllm.server import is_server, refuse_unread_fields
from scoremode.engines.vllm.settings import environment

__all__ = ["ENTRY_POINT", "SWITCH", "register", "scoring_models"]

SWITCH = "SCOREMODE_VLLM"
ENTRY_POINT = "scoremode"


def register() -> None:
    """vLLM's call, once a process or more."""
    if os.environ.get(SWITCH) == "1":
        _wrap_registry()
        if is_server():
            refuse_unread_fields()


@contextmanager
def scoring_models() -> Iterator[None]:
    """Makes this process and those that vLLM starts from it score, until the block ends."""
    from vllm import ModelRegistry

    before = dict(ModelRegistry.models)
    with environment({SWITCH: "1"}):
        _wrap_registry()
        try:
            yield
        finally:
            ModelRegistry.models.clear()
            ModelRegistry.models.update(before)


def _wrap_registry() -> None:
    from vllm import ModelRegistry

    for architecture, model in ModelRegistry.models.items():
        if not isinstance(model, _Scoring):
            ModelRegistry.models[architecture] = _Scoring(model)


@dataclasses.dataclass(frozen=True)
class _Scoring:
    """A registry entry that gives another's model a scoring pooler."""

    entry: Any

    def inspect_model_cls(self) -> Any:
        info = self.entry.inspect_model_cls()
        if not info.is_text_generation_model:
            return info
        return dataclasses.replace(
            info,
            is_pooling_model=True,
            default_seq_pooling_type="LAST",
            default_tok_pooling_type="ALL",
        )

    def load_model_cls(self) -> type:
        from vllm.model_executor.models.interfaces_base import is_text_generation_model

        from scoremode.engines.vllm.workers.pooler import scoring_class

        base = self.entry.load_model_cls()
        return scoring_class(base) if is_text_generation_model(base) else base
