"""The plugin that vLLM loads in every process it starts (entry point `vllm.general_plugins`).

It does nothing unless `SCOREMODE_VLLM=1` is set, which `ScoringLLM` does for the processes it starts,
and which a user does for `vllm serve`: installing scoremode must not change what vLLM does for
anybody else. Then every text generation architecture in the model registry answers as a pooling model
with the scoring pooler, under its own name. The entries are wrapped, not replaced by classes, so that
nothing is imported early and vLLM's cache of what it knows about a class stays that of the class.

In a server's process it refuses a request with fields that nobody reads. vLLM's server takes any field,
as OpenAI's does, and leaves unread what it doesn't know. For a score that is a wrong answer: whoever
sends `targets`, as `ScoringLLM` has them, would get the log-probabilities of the prompt's own tokens.
The pooler never sees such a field, so the request's own class has to look. Its method that makes the
pooling parameters is wrapped; what it makes stays vLLM's.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

import dataclasses
import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scoremode.engines.vllm.settings import environment

SWITCH = "SCOREMODE_VLLM"
ENTRY_POINT = "scoremode"
# One of these is there when a server starts, and in no other process that loads plugins.
_SERVERS = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.serve")
_CLASSES = ("PoolingCompletionRequest", "PoolingChatRequest")


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


def is_server() -> bool:
    """Tells whether this process serves over HTTP."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return any(name in sys.modules or name == getattr(spec, "name", "") for name in _SERVERS)


def refuse_unread_fields() -> None:
    """Makes vLLM answer with an error, from now on, a request to score with a field nobody reads."""
    try:
        from vllm.entrypoints.pooling.pooling import protocol
    except ImportError:
        # Another release has it elsewhere.
        protocol = None
    classes: list[Any] = [getattr(protocol, name, None) for name in _CLASSES]
    makers = [getattr(cls, "to_pooling_params", None) for cls in classes]
    if None in makers:
        print(
            "scoremode: this vLLM's requests are not known: fields that nobody reads are not refused",
            file=sys.stderr,
        )
    for cls, make in zip(classes, makers, strict=True):
        if make is not None and not hasattr(make, "__wrapped__"):
            cls.to_pooling_params = _checked(make)


def _checked(make: Any) -> Any:
    @functools.wraps(make)
    def checked(self: Any) -> Any:
        if problem := unread(self.model_extra):
            raise ValueError(problem)
        return make(self)

    return checked


def unread(fields: dict[str, Any] | None) -> str | None:
    """Says what is wrong with these fields of a request beside those that vLLM knows; None for none."""
    if not fields:
        return None
    names = ", ".join(sorted(fields))
    more = ": over HTTP each token is scored given those before it" if "targets" in fields else ""
    return f"nobody reads the field {names}{more}"
