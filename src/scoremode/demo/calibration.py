"""What the demo's linears are given: sums over inputs, of a text that the tiny model wrote itself.

The held-out text is what is measured, and no other comes with the package. `calibration.txt` was
sampled from the model, 24 passages of 256 tokens (`tools/calibration_text.py`), and is packaged so that
every machine quantizes alike.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

import torch

__all__ = ["Inputs", "inputs_of_linears", "no_bar_of_the_library"]

_WINDOW = 256


@dataclass(frozen=True)
class Inputs:
    """Of inputs [n, I]: `gram` float64 [I, I], xᵀx over n; `magnitude` float64 [I], mean |x|."""

    gram: torch.Tensor
    magnitude: torch.Tensor


@lru_cache(maxsize=1)
@torch.no_grad()
def inputs_of_linears(source: Path) -> Mapping[str, Inputs]:
    """Module name → what the dense model in `source` gives it on the calibration text."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    text = (resources.files("scoremode.demo") / "calibration.txt").read_text(encoding="utf-8")
    with no_bar_of_the_library():
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    ids = torch.tensor(AutoTokenizer.from_pretrained(source)(text).input_ids)
    windows = ids[: len(ids) // _WINDOW * _WINDOW].view(-1, _WINDOW)
    found: dict[str, Inputs] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):

            def keep(_, args: tuple[torch.Tensor, ...], name: str = name) -> None:
                x = args[0].flatten(0, 1).double()
                found[name] = Inputs(x.T @ x / len(x), x.abs().mean(0))

            module.register_forward_pre_hook(keep)
    model.model(windows)
    return found


@contextmanager
def no_bar_of_the_library() -> Iterator[None]:
    """Inside, transformers says nothing of the weights that it loads; the command has its own line."""
    from transformers.utils import logging

    were_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_shown:
            logging.enable_progress_bar()
