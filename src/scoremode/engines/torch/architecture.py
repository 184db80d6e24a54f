"""From a checkpoint's config to the class of transformers that computes it.

First the library's causal class of that model type; then, for models of text and images or sound that
have none, the whole model's class, which is given text alone. The checkpoint's own code is never asked
for where the library knows the model type.
"""

import copy
from dataclasses import dataclass
from typing import Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.errors import UnsupportedModel

__all__ = ["Architecture", "find_architecture", "name_of"]

# Model types that are another's under a name of their own. Kimi K2's is transformers' own rule, in its
# configuration of kimi_k25: only the published code calls it other than DeepSeek-V3.
_SAME = {"kimi_k2": "deepseek_v3"}


@dataclass(frozen=True)
class Architecture:
    """The library's config, and its auto class that builds a model of it.

    `composite`: whether the config describes encoders of images or sound beside the language model.
    """

    config: Any
    auto_class: Any
    composite: bool


def find_architecture(checkpoint: Checkpoint, *, trust_remote_code: bool) -> Architecture:
    """Raises UnsupportedModel for what transformers can't build, or can't predict tokens with."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        config = _config(checkpoint, trust_remote_code)
    except (ValueError, KeyError, OSError, TypeError, StrictDataclassError) as error:
        raise _refused(checkpoint, error) from None
    if not trust_remote_code and hasattr(config, "auto_map"):
        # The library would ask whether to run that code before it takes its own.
        del config.auto_map
    auto_class = _auto_class(checkpoint, config, trust_remote_code)
    return Architecture(config, auto_class, _encoders(config) != [])


def _config(checkpoint: Checkpoint, trust_remote_code: bool) -> Any:
    from transformers import CONFIG_MAPPING, AutoConfig

    fields = dict(checkpoint.config)
    same = _SAME.get(str(fields.get("model_type")))
    if same is not None and not trust_remote_code:
        del fields["model_type"]
        fields.pop("auto_map", None)
        return CONFIG_MAPPING[same].from_dict(fields)
    config = copy.deepcopy(
        AutoConfig.from_pretrained(
            checkpoint.path, trust_remote_code=trust_remote_code, local_files_only=True
        )
    )
    if _is_flat(checkpoint, config):
        # Step-3.7-Flash: the text's fields lie at the top, where its class looks for none.
        nested = {k: v for k, v in fields.items() if k not in ("auto_map", "model_type")}
        config = type(config).from_dict({"text_config": nested})
    return config


def _is_flat(checkpoint: Checkpoint, config: Any) -> bool:
    """Whether the file has a language model's fields at its top, and the library read none of them."""
    fields = checkpoint.config
    if "text_config" in fields or not {"hidden_size", "num_hidden_layers"} <= set(fields):
        return False
    text = config.get_text_config()
    return text is not config and text.to_dict() == type(text)().to_dict()


def _encoders(config: Any) -> list[str]:
    """Names of the config's parts that are not the language model's."""
    text = config.get_text_config()
    if text is config:
        return []
    return [name for name in config.sub_configs if getattr(config, name, None) is not text]


def _auto_class(checkpoint: Checkpoint, config: Any, trust_remote_code: bool) -> Any:
    import transformers

    if trust_remote_code and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}):
        return transformers.AutoModelForCausalLM
    for kind in ("CausalLM", "ImageTextToText", "MultimodalLM"):
        auto_class = getattr(transformers, f"AutoModelFor{kind}")
        if type(config) in auto_class._model_mapping:
            return auto_class
    reason = f"transformers {transformers.__version__} has no class that predicts its next token"
    raise UnsupportedModel(f"{checkpoint.path}: architecture {name_of(checkpoint)}: {reason}")


def name_of(checkpoint: Checkpoint) -> str:
    """What the checkpoint calls its architecture."""
    architectures = checkpoint.config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    kind = str(checkpoint.config.get("model_type", "unnamed"))
    return f"{', '.join(map(str, names)) or kind} (model_type {kind})"


def _refused(checkpoint: Checkpoint, error: Exception) -> UnsupportedModel:
    from transformers import CONFIG_MAPPING, __version__

    name, kind = name_of(checkpoint), checkpoint.config.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        reason = f"not known to transformers {__version__}"
        if checkpoint.config.get("auto_map"):
            reason += (
                "; it brings its own code: read it, then allow it with --trust-remote-code"
            )
        return UnsupportedModel(f"{checkpoint.path}: architecture {name}: {reason}")
    reason = " ".join(str(error).split())[:160]
    return UnsupportedModel(f"{checkpoint.path}: architecture {name} can't be built: {reason}")
