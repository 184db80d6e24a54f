"""Whole runs, as `scoremode reference` and `scoremode kld` make them, on one start of an engine.

Runs in `run_engine.py`'s process; `request` serves pytest's own as well.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

CONTEXT = 256
# Characters of the demo's held-out text: 40 windows and a short one, in two passes of vLLM's.
_LONG = 26_000


def request(model: str, options: Any, output: Path, **more: Any) -> Any:
    """A Request of the text that all of them share."""
    import scoremode.demo
    from scoremode.runs.request import Request
    from scoremode.text.corpus import from_string
    from scoremode.text.protocol import preset

    text = (Path(str(scoremode.demo.__file__)).parent / "heldout.txt").read_text("utf-8")
    protocol = preset("disjoint").override(context_length=CONTEXT)
    return Request(model, from_string(text[:_LONG]), protocol, options, output, **more)


def run_measured(start: Mapping[str, Any], facts: dict[str, Any]) -> dict[str, np.ndarray]:
    """Each of `runs`: what it is compared with and what it is kept as, by names of references.

    Of each, the record and all columns of its Scores.
    """
    from scoremode.engines.vllm.engine import VllmEngine
    from scoremode.engines.vllm.options import VllmOptions
    from scoremode.results.folders.store import read_scores
    from scoremode.runs import measure

    references = Path(start["references"])
    arguments = dict(start["arguments"])
    options = VllmOptions(decode=arguments.pop("decode", False), arguments=arguments)
    shared: list[VllmEngine] = []

    def make(
        options: Any, checkpoint: Any, vocabulary: Any, plan: Any, notify: Any, ranks: Any = None
    ) -> VllmEngine:
        if not shared:
            shared.append(VllmEngine(checkpoint, options, plan, vocabulary, notify))
        return shared[0]

    columns: dict[str, np.ndarray] = {}
    facts["records"] = {}
    close = VllmEngine.close
    try:
        with (
            patch.object(VllmOptions, "make", make),
            patch.object(VllmEngine, "close", lambda _: None),
        ):
            for name, run in start["runs"].items():
                more: dict[str, Any] = {"full": run.get("full", False)}
                output = references / "runs"
                if "keep" in run:
                    output, more["keep"] = references / run["keep"], "stored"
                if "reference" in run:
                    more["reference"] = str(references / run["reference"])
                result = measure.measure(request(start["model"], options, output, **more))
                facts["records"][name] = result.record.document
                scores = read_scores(result.folder)
                columns |= {f"{name}/{k}": v for k, v in scores.columns().items()}
    finally:
        for engine in shared:
            close(engine)
    return columns
