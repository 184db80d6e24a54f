"""Sizes of the hub's models, without their weights, and a look at what its cache has alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from scoremode.checkpoint.gguf.hub import named_gguf
from scoremode.checkpoint.gguf.place import choose
from scoremode.checkpoint.gguf.split import parts_of
from scoremode.errors import CheckpointError, words_of
from scoremode.text.hub_client import asked

__all__ = ["cached_only", "hub_bytes"]


@contextmanager
def cached_only(wanted: bool = True) -> Iterator[None]:
    """Has the hub's client fetch nothing in the block, if that is wanted: its cache alone answers."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or wanted
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def hub_bytes(model: str, revision: str | None) -> int:
    """Bytes of the weight files that a run would fetch. Raises CheckpointError."""
    from huggingface_hub import HfApi

    repo, wanted = named_gguf(model) or (model, None)
    try:
        info = asked(partial(HfApi().model_info, repo, revision=revision, files_metadata=True))
    except OSError as error:
        raise CheckpointError(
            f"{repo}: not to be had from the hub ({words_of(error, named=False)})"
        ) from None
    sizes = {s.rfilename: s.size or 0 for s in info.siblings or ()}
    tensors = [name for name in sizes if name.endswith(".safetensors") and "/" not in name]
    if wanted is None and tensors:
        return sum(sizes[name] for name in tensors)
    first = choose(repo, sizes, wanted)
    folder, slash, name = first.rpartition("/")
    return sum(sizes.get(f"{folder}{slash}{part}", 0) for part in parts_of(name))
