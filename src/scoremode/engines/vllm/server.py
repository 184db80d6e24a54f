"""The refusal, in a server's process, of a request with fields that nobody reads.

vLLM's server takes any field, as OpenAI's does, and leaves unread what it doesn't know. For a score
that is a wrong answer: whoever sends `targets`, as `ScoringLLM` has them, would get the
log-probabilities of the prompt's own tokens. The pooler never sees such a field, so the request's own
class has to look. Its method that makes the pooling parameters is wrapped; what it makes stays vLLM's.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

import functools
import sys
from typing import Any

__all__ = ["is_server", "refuse_unread_fields", "unread"]

# One of these is there when a server starts, and in no other process that loads plugins.
_SERVERS = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.serve")
_CLASSES = ("PoolingCompletionRequest", "PoolingChatRequest")


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
