"""Steps of a ladder with a fault in vLLM: `python run_faults.py JOB.json OUT.npz`.

A job is a list of groups, each of one model, dtype and way of scoring. The torch engine is the step
before, and the noise; vLLM starts once a group, and scores the text as it is (`clean`) and with each
fault. Scores go to OUT as columns named `group/step/column`.
"""

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from faults import planted

# 35 windows.
CONTEXT = 128
_CHARACTERS = 12_000


def main(job: str, out: str) -> None:
    columns: dict[str, np.ndarray] = {}
    for number, group in enumerate(json.loads(Path(job).read_text())):
        for step, scores in run_group(group, Path(f"{out}.runs") / str(number)).items():
            columns |= {f"{group['name']}/{step}/{k}": v for k, v in scores.columns().items()}
    np.savez(out, **columns)  # pyright: ignore[reportArgumentType]


def run_group(group: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The Scores of each step, by what is planted in it, beside the torch engine's."""
    from scoremode.engines.torch.options import TorchOptions
    from scoremode.engines.vllm.engine import VllmEngine
    from scoremode.engines.vllm.options import VllmOptions
    from scoremode.engines.vllm.workers.worker import WorkerExtension
    from scoremode.results.folders.store import read_scores
    from scoremode.runs.measure import measure
    from scoremode.runs.request import Request
    from scoremode.text.corpus import from_string
    from scoremode.text.protocol import preset

    dtype, before = group["dtype"], folder / "before"

    def torch(dtype: str, attention: Any = None) -> Any:
        return TorchOptions(device="cpu", dtype=dtype, attention=attention)  # pyright: ignore[reportArgumentType]

    def scored(options: Any, output: Path, **more: Any) -> Any:
        text = Path(group["text"]).read_text("utf-8")[:_CHARACTERS]
        protocol = preset("disjoint").override(context_length=CONTEXT)
        asked = Request(group["model"], from_string(text), protocol, options, output, **more)
        return measure(asked).folder

    def beside(options: Any) -> Any:
        return read_scores(scored(options, folder / "runs", reference=str(before)))

    scored(torch(dtype), before, keep="stored")
    steps = {"noise": beside(torch("float32", "eager" if dtype == "float32" else None))}
    options = VllmOptions(
        dtype=dtype,
        decode=group.get("decode", False),
        arguments={"kv_cache_memory_bytes": 64 << 20},
    )
    shared: list[VllmEngine] = []

    def make(options: Any, *more: Any, **_: Any) -> VllmEngine:
        checkpoint, vocabulary, plan, notify = more[:4]
        if not shared:
            shared.append(VllmEngine(checkpoint, options, plan, vocabulary, notify))
        return shared[0]

    close = VllmEngine.close
    with (
        patch.object(VllmOptions, "make", make),
        patch.object(VllmEngine, "close", lambda _: None),
        patch.object(
            WorkerExtension, "scoremode_model", lambda w: w.model_runner.get_model(), create=True
        ),
    ):
        try:
            steps["clean"] = beside(options)
            (model,) = shared[0]._llm.ask("scoremode_model")
            for fault in group["faults"]:
                with planted(model, fault):
                    steps[fault] = beside(options)
        finally:
            for engine in shared:
                close(engine)
    return steps


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
