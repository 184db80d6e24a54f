"""Runs of the demo model as a user's commands leave them, with all that they were made of."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.chats.runs import chat_model, write_rows
from support.tampered_runs import copy_model

from scoremode.cli.main import main
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.torch.options import TorchOptions
from scoremode.results.folders.store import find_runs
from scoremode.runs.measure import measure
from scoremode.runs.request import Request
from scoremode.text.conversations.corpus import from_conversations_file
from scoremode.text.protocol import preset

# Of one dtype on every machine: a CPU without bfloat16 of its own takes float32 by default.
HOW = ["-c", "64", "--protocol", "disjoint", "--batch-size", "3", "--device", "cpu", "--dtype",
       "bfloat16", "--quiet"]  # fmt: skip


@dataclass(frozen=True)
class Published:
    """What lies in one folder: models, a text, a reference, and runs."""

    model: Path
    quant: Path
    text: Path
    kept: Path
    ppl: Path
    against_kept: Path
    against_model: Path


@pytest.fixture(scope="session")
def published(demo, tmp_path_factory) -> Published:
    folder = tmp_path_factory.mktemp("published")
    model, quant, text = folder / "model", folder / "W4A16", folder / "text.txt"
    copy_model(demo, model)
    quantize_folder(model, quant, next(v for v in VARIANTS if v.name == "W4A16-g32"))
    text.write_bytes((demo / "heldout.txt").read_bytes()[:4000])
    how = ["-f", str(text), *HOW]
    kept = folder / "kept"
    gate = ["--max-kld", "1"]
    for command, *more in (
        ("ppl", str(quant), "-o", str(folder / "ppl"), "--token-text"),
        ("reference", str(model), "-o", str(kept)),
        ("kld", str(quant), "--reference", str(kept), "-o", str(folder / "against_kept"), *gate),
        ("kld", str(quant), "--reference", str(model), "-o", str(folder / "against_model"), "--full"),
    ):  # fmt: skip
        assert main([command, *more, *how]) == 0
    runs = {
        name: next(find_runs(folder / name))[0] for name in ("ppl", "against_kept", "against_model")
    }
    return Published(model, quant, text, kept, **runs)


@pytest.fixture(scope="session")
def chats(demo, tmp_path_factory) -> Path:
    """`model`, `chats.jsonl` (with a bad row), and a `run` in groups, long ones split."""
    folder = tmp_path_factory.mktemp("checked")
    model = chat_model(demo, folder / "model")
    write_rows(demo, folder / "chats.jsonl")
    text = (folder / "chats.jsonl").read_text()
    (folder / "chats.jsonl").write_text('{"messages": [], "domain": "none"}\n' + text)
    corpus = from_conversations_file(
        folder / "chats.jsonl", group_by="domain", skip_bad_rows=1, arguments={"x": 1}
    )
    rules = preset("chat").override(context_length=64, long="split")
    options = TorchOptions(device="cpu", dtype="float32", batch_windows=2)
    run = measure(Request(str(model), corpus, rules, options, folder / "runs"))
    shutil.copytree(run.folder, folder / "run")
    return folder
