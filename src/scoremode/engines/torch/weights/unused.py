"""Tensors of a checkpoint that nothing in the model uses: what may be so, and what is an error."""

import re
from collections.abc import Set

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.engines.torch.weights.kv_cache import CACHE_TENSORS
from scoremode.engines.torch.weights.names import Names
from scoremode.engines.torch.weights.sources import Source
from scoremode.errors import CheckpointError
from scoremode.schemes.resolve import Schemes

__all__ = ["find_unused"]

# What configs call the layers behind the last, which predict tokens after the next: DeepSeek and GLM,
# MiniMax, MiMo and Ernie.
_PREDICTION_LAYERS = ("num_nextn_predict_layers", "num_mtp_modules", "num_mtp_layers")
# Tables that old checkpoints store and that are computed now.
_COMPUTED = (
    r"\.rotary_emb\.inv_freq$",
    r"\.attn(\.attention)?\.masked_bias$",
    r"^(transformer\.)?h\.\d+\.attn(\.attention)?\.bias$",
)


def find_unused(
    checkpoint: Checkpoint, skeleton: Skeleton, schemes: Schemes, names: Names, used: Set[str]
) -> list[str]:
    """Names of tensors that aren't `used`: an encoder's, layers' that only predict.

    Raises CheckpointError for one that belongs to a layer or module of the model.
    """
    known = {name.rpartition(".")[0] for name in used}
    ignorable = [*(skeleton.model._keys_to_ignore_on_load_unexpected or ()), *_COMPUTED]
    if schemes.config is not None:
        # Whatever the config says of a cache, or doesn't: weights are the same.
        ignorable += CACHE_TENSORS
    counts = [getattr(skeleton.config, name, None) for name in _PREDICTION_LAYERS]
    extra = max((n for n in counts if isinstance(n, int)), default=0)
    predicted = range(len(skeleton.layers), len(skeleton.layers) + extra)
    language = names.language_model()
    if language is not None:
        # What holds the language model and others has parameters of its own, too.
        known = {name for name in known if not language.startswith(f"{name}.")}
    # All that lies in a plain model is its own: one more norm there would be another model's.
    base = f"{skeleton.model.base_model_prefix}."
    within = language or (base if skeleton.text_alone is None else None)
    unused = []
    for name in checkpoint.tensors:
        if name in used or _is_of_used_module(name, schemes, used):
            continue
        if _adds_nothing(name, schemes, checkpoint):
            continue
        unused.append(name)
        parents = {name.rsplit(".", n)[0] for n in range(1, name.count(".") + 1)}
        layer = skeleton.layer_of(names.renamed(name))
        belongs = (
            parents & known
            or (layer is not None and layer not in predicted)
            or (within is not None and name.startswith(within) and layer is None)
        )
        if belongs and not any(re.search(pattern, name) for pattern in ignorable):
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name} belongs to a layer or module of the "
                "model, and nothing in it uses such a tensor"
            )
    return unused


def _is_of_used_module(name: str, schemes: Schemes, used: Set[str]) -> bool:
    """Tells whether the tensor belongs to a quantized module in use, whose Scheme knows all of its
    tensors."""
    module, suffix = schemes.split(name)
    if module not in schemes.quantized or suffix == "bias":
        return False
    source = Source(schemes.home_of(module), schemes.quantized[module])
    return not used.isdisjoint(source.tensor_names().values())


def _adds_nothing(name: str, schemes: Schemes, checkpoint: Checkpoint) -> bool:
    """Tells whether it is a quantized linear's bias of zeros, as AutoGPTQ gives one to all."""
    module, suffix = schemes.split(name)
    if suffix != "bias" or module not in schemes.quantized:
        return False
    return not checkpoint.read(name).any()
