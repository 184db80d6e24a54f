"""Fixtures of runs, which are those of their own room."""

from runs.conftest import base, copied, kept, quant, request_, text

__all__ = ["base", "copied", "kept", "quant", "request_", "text"]
