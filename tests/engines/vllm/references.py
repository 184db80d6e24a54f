"""References that the tests compare with: made by the torch engine, cut, or by llama.cpp."""

import json
import shutil
from pathlib import Path
from typing import Any

from engines.vllm.measured import request

# Of the demo model, by llama-perplexity.
LLAMA_CPP = Path(__file__).parents[2] / "golden" / "llama_cpp" / "base.kld"


def write_reference(model: str, folder: Path, dtype: str) -> Path:
    """The torch engine's states of a model."""
    from scoremode.engines.torch.options import TorchOptions
    from scoremode.runs.measure import measure

    options = TorchOptions(device="cpu", dtype=dtype)  # pyright: ignore[reportArgumentType]
    return measure(request(model, options, folder, keep="stored")).folder


def cut_reference(source: Path, folder: Path, entries: int) -> Path:
    """One whose softmax runs over the first `entries` of another's."""
    from scoremode.reference.writer import reference_sha256
    from scoremode.results.folders.store import seal_of

    shutil.copytree(source, folder)
    path = folder / "record.json"
    record: dict[str, Any] = json.loads(path.read_text())
    kept = record["kept"]
    kept["head"]["vocabulary"] = entries
    kept["sha256"] = reference_sha256(record["plan"]["sha256"], kept["states"], kept["head"])
    record["sha256"] = seal_of(record)
    path.write_text(json.dumps(record))
    return folder
