"""Exact perplexity of quantized language models, on the quantized weights themselves."""

__version__ = "0.1.0"
