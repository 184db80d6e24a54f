"""Models in ggml's blocks as folders, and the dense ones of the same weights."""

import re
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from support.families.mlx import switched
from support.gguf.blocks import dequantized, sizes, tame_blocks
from support.models import edit_config, edit_tensors, make_checkpoint

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
            rows, width = weight.shape[:-1].numel(), weight.shape[-1]
            blocks = tame_blocks(kind, rows, width // sizes(kind)[0], seed=nth)
            own = name.replace("switch_mlp", "experts")
            if kind == "NVFP4" and "embed_tokens" not in name:
                # One more factor, of experts one each.
                draw = torch.Generator().manual_seed(nth)
                factor = 0.5 + torch.rand(weight.shape[:-2] or (1,), generator=draw)
                if pack:
                    tensors[own.replace(".weight", ".scale")] = factor
            else:
                factor = torch.ones(1)
            if pack:
                tensors[own.replace(".weight", f".{kind}")] = blocks.view(*weight.shape[:-1], -1)
            else:
                dense = dequantized(kind, blocks).view(weight.shape)
                tensors[own] = dense * (factor[:, None, None] if weight.dim() == 3 else factor)

    edit_tensors(packed, lambda tensors: stored(tensors, pack=True))
    edit_tensors(dense, lambda tensors: stored(tensors, pack=False))
    edit_config(packed, quantization_config={"quant_method": "gguf"})
    return packed, dense
