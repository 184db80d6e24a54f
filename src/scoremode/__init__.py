"""Exact perplexity and KL divergence of quantized language models, on the quantized weights.

`measure` scores a model, `open_run` reads a finished run, `compare` ranks several: docs/python.md has
an example of each. What isn't in `__all__` is private, and may change with any release. Importing the
package imports nothing else: each name is fetched when it is first asked for.
"""

# Type checkers take it for true; importing typing for it would cost more than all the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from scoremode.api import (
        Attribution,
        Findings,
        Run,
        Sweep,
        attribute,
        card,
        check,
        compare,
        generate,
        inspect,
        kld,
        ladder,
        measure,
        merge,
        open_run,
        plan,
        status,
        sweep,
        tasks,
        verify,
        write_report,
    )
    from scoremode.errors import (
        CheckpointError,
        CorpusError,
        EngineError,
        GateNotMet,
        InvalidMeasurement,
        ProtocolError,
        ReferenceUnusable,
        RunFolderError,
        ScoremodeError,
        TokenizerError,
        UnsupportedFormat,
        UnsupportedModel,
        UsageError,
    )

__version__ = "0.1.0"

__all__ = [
    "Attribution",
    "CheckpointError",
    "CorpusError",
    "EngineError",
    "Findings",
    "GateNotMet",
    "InvalidMeasurement",
    "ProtocolError",
    "ReferenceUnusable",
    "Run",
    "RunFolderError",
    "ScoremodeError",
    "Sweep",
    "TokenizerError",
    "UnsupportedFormat",
    "UnsupportedModel",
    "UsageError",
    "attribute",
    "card",
    "check",
    "compare",
    "generate",
    "inspect",
    "kld",
    "ladder",
    "measure",
    "merge",
    "open_run",
    "plan",
    "status",
    "sweep",
    "tasks",
    "verify",
    "write_report",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'scoremode' has no attribute {name!r}")
    if name in (
        "Attribution",
        "Findings",
        "Run",
        "Sweep",
        "attribute",
        "card",
        "check",
        "compare",
        "generate",
        "inspect",
        "kld",
        "ladder",
        "measure",
        "merge",
        "open_run",
        "plan",
        "status",
        "sweep",
        "tasks",
        "verify",
        "write_report",
    ):
        from scoremode import api as module
    else:
        from scoremode import errors as module
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
