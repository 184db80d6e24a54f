"""Scoring in stock vLLM: a plugin, no fork. The only place that imports vllm."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scoremode.engines.vllm.llm import PromptScores, ScoringLLM

__all__ = ["PromptScores", "ScoringLLM"]


def __getattr__(name: str) -> Any:
    # vLLM itself loads this package in every process it starts, for the plugin's sake.
    if name in __all__:
        from scoremode.engines.vllm import llm

        return getattr(llm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
