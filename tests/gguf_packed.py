"""Models in ggml's blocks as folders, and the dense ones of the same weights."""

import re
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from gguf_blocks import dequantized, sizes, tame_blocks
from mlx_models import switched
from models import edit_config, edit_tensors, make_checkpoint

Tensors = dict[str, torch.Tensor]
# Embeddings and heads too.
PACKED = re.compile(r"(_proj|embed_tokens|lm_head)\.weight$")


def make_pair(folder: Path, name: str, kinds: Sequence[str], width: int = 256) -> tuple[Path, Path]:
    """A random model whose matrices are in blocks of these types by turns, and the dense float32 one of
    what the gguf package makes of them; experts stored as one in both. `width`: of all inputs."""
    packed, dense = folder / "packed", folder / "dense"

    def widened(settings: dict[str, Any]) -> None:
        settings |= {"hidden_size": width, "intermediate_size": width, "head_dim": width // 4}
        if "moe_intermediate_size" in settings:
            settings["moe_intermediate_size"] = width

    for target in (packed, dense):
        make_checkpoint(target, name, change=widened)
        edit_tensors(target, switched)

    def stored(tensors: Tensors, *, pack: bool) -> None:
        names = [name for name in tensors if PACKED.search(name)]
        for nth, (name, kind) in enumerate(zip(names, cycle(kinds), strict=False)):
            weight = tensors.pop(name)
            rows, count = weight.numel() // weight.shape[-1], weight.shape[-1] // sizes(kind)[0]
            blocks = tame_blocks(kind, rows, count, seed=nth)
            own = name.replace("switch_mlp", "experts")
            if pack:
                tensors[own.replace(".weight", f".{kind}")] = blocks.view(*weight.shape[:-1], -1)
            else:
                tensors[own] = dequantized(kind, blocks).view(weight.shape)

    edit_tensors(packed, lambda tensors: stored(tensors, pack=True))
    edit_tensors(dense, lambda tensors: stored(tensors, pack=False))
    edit_config(packed, quantization_config={"quant_method": "gguf"})
    return packed, dense
