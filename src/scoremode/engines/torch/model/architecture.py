"""The choice, from a checkpoint's config, of the class of transformers that computes it.

First the library's causal class of that model type; then, for models of text and images or sound that
have none, the whole model's class, which is given text alone; then, where the whole isn't known, the
causal class of its language model, if its authors name that very class: what an unknown whole makes of
another's states and logits is in its own code alone. That is not asked for where it isn't needed.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from scoremode.checkpoint.config import language_config, layers_of
from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.model_files import MODELOPT
from scoremode.errors import CheckpointError, ScoremodeError, UnsupportedModel, words_of

# Model types that are another's under a name of their own. Kimi K2's is transformers' own rule, in its
# configuration of kimi_k25: only the published code calls it other than DeepSeek-V3.
_SAME = {"kimi_k2": "deepseek_v3"}

# The library's kinds of models with a head over the vocabulary, in the order they are looked for.
_KINDS = {
    "CausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "ImageTextToText": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MultimodalLM": "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
}
# Fields of embeddings and logits that are more than a table's rows and a matrix's product.
_FACTOR = re.compile(r"(logit|emb).*(scal|multiplier)|scale_(emb|logit)|soft_?cap")


@dataclass(frozen=True)
class Architecture:
    """The library's config, and its auto class that builds a model of it, of a class called so.

    `text_alone`: what the checkpoint is called, where its config describes more than a language model.
    """

    config: Any
    auto_class: Any
    class_name: str
    text_alone: str | None

    def language_model(self) -> "Architecture | None":
        """Architecture of the config's text alone, None where the library has no causal class of it."""
        text = self.config.get_text_config()
        found = None if text is self.config else _class_of(text)
        return found and Architecture(text, *found, self.text_alone)


def find_architecture(checkpoint: Checkpoint, *, trust_remote_code: bool) -> Architecture:
    """Raises UnsupportedModel for what transformers can't build, or can't predict tokens with."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import __version__

    try:
        config = _config(checkpoint, trust_remote_code)
    # AttributeError: of a dtype that torch has none of, or a field of another type.
    except (
        *(ValueError, KeyError, OSError, TypeError, AttributeError, ZeroDivisionError),
        *(IndexError, StrictDataclassError),
    ) as error:
        raise _refused(checkpoint, error) from None
    if not trust_remote_code and hasattr(config, "auto_map"):
        # The library would ask whether to run that code before it takes its own.
        del config.auto_map
    found = _class_of(config)
    if found is None:
        reason = f"transformers {__version__} has no class that predicts its next token"
        raise UnsupportedModel(f"{checkpoint.path}: architecture {_name_of(checkpoint)}: {reason}")
    nested = language_config(checkpoint.config) is not checkpoint.config
    has_more = nested or config.get_text_config() is not config
    whole = _name_of(checkpoint) if has_more else None
    return Architecture(config, *found, whole)


def _config(checkpoint: Checkpoint, trust_remote_code: bool) -> Any:
    from transformers import CONFIG_MAPPING, AutoConfig

    fields = checkpoint.config
    if not trust_remote_code and fields.get("model_type") not in CONFIG_MAPPING:
        # What the library doesn't know may have a language model that it knows.
        for part in (fields, language_config(fields)):
            kind = str(part.get("model_type"))
            kind = _SAME.get(kind, kind)
            if kind in CONFIG_MAPPING:
                own = {k: v for k, v in part.items() if k not in ("auto_map", "model_type")}
                config = CONFIG_MAPPING[kind].from_dict(own)
                if part is not fields:
                    _check_vouched(checkpoint, part, config)
                return config
    named = _with_torchs_dtypes(fields)
    is_own = checkpoint.is_folder and named == fields
    if not is_own and fields.get("model_type") in CONFIG_MAPPING:
        return CONFIG_MAPPING[fields["model_type"]].from_dict(copy.deepcopy(named))
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


def _with_torchs_dtypes(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The config without dtypes that torch has none of, which the library can't read: `auto`. What is
    computed in is given to it apart."""
    return {
        key: _with_torchs_dtypes(value) if isinstance(value, dict) else value
        for key, value in fields.items()
        if key not in ("dtype", "torch_dtype")
        or not isinstance(value, str)
        or hasattr(torch, value)
    }


def _check_vouched(checkpoint: Checkpoint, part: Mapping[str, Any], config: Any) -> None:
    """Raises UnsupportedModel unless an unknown whole's authors name the class of its language model.

    InternVL's `llm_config` names `Qwen2ForCausalLM`, and the whole's logits are that model's own. One
    that names nothing may be any decoder's fields, with a head or scales in the whole's code.
    """
    found = _class_of(config)
    named, kind = part.get("architectures"), part.get("model_type")
    if found is not None and named != [found[1]]:
        said = ", ".join(map(str, named)) if isinstance(named, list) and named else "no class"
        raise _unknown(checkpoint, f"; its language model ({kind}) names {said}, not {found[1]}")
    for key, value in checkpoint.config.items():
        if _FACTOR.search(key) and type(value) in (int, float) and value != 1:
            raise _unknown(checkpoint, f"; its {key} is {value}, and what that changes isn't known")


def _is_flat(checkpoint: Checkpoint, config: Any) -> bool:
    """Tells whether the file has a language model's fields at its top, and the library read none of
    them."""
    fields = checkpoint.config
    if "text_config" in fields or not {"hidden_size", "num_hidden_layers"} <= set(fields):
        return False
    text = config.get_text_config()
    return text is not config and text.to_dict() == type(text)().to_dict()


def _class_of(config: Any) -> tuple[Any, str] | None:
    """An auto class of the library's that builds a model of `config`, and the name of its class."""
    import transformers
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import (
        CONFIG_MAPPING_NAMES,  # pyright: ignore[reportPrivateImportUsage]
    )

    own = getattr(config, "auto_map", None) or {}
    if "AutoModelForCausalLM" in own:
        return transformers.AutoModelForCausalLM, str(own["AutoModelForCausalLM"])
    # By the config's class, as the library does it: a part may carry another's model_type.
    configs = CONFIG_MAPPING_NAMES.items()
    types = [model_type for model_type, name in configs if name == type(config).__name__]
    for kind, mapping in _KINDS.items():
        names = getattr(modeling_auto, mapping)
        for name in (names[model_type] for model_type in types if model_type in names):
            auto_class = getattr(transformers, f"AutoModelFor{kind}")
            return auto_class, name if isinstance(name, str) else name[0]
    return None


def _name_of(checkpoint: Checkpoint) -> str:
    """The name that the checkpoint gives its architecture."""
    architectures = checkpoint.config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    kind = str(checkpoint.config.get("model_type", "unnamed"))
    return f"{', '.join(map(str, names)) or kind} (model_type {kind})"


def _unknown(checkpoint: Checkpoint, more: str = "") -> UnsupportedModel:
    from transformers import __version__

    reason = f"not known to transformers {__version__}{more}"
    if checkpoint.config.get("auto_map"):
        reason += "; it brings its own code: read it, then allow it with --trust-remote-code"
    return UnsupportedModel(f"{checkpoint.path}: architecture {_name_of(checkpoint)}: {reason}")


def _refused(checkpoint: Checkpoint, error: Exception) -> UnsupportedModel:
    from transformers import CONFIG_MAPPING

    kind = checkpoint.config.get("model_type")
    if kind is None:
        return no_model_type(checkpoint)
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        return _unknown(checkpoint)
    return cannot_be_built(checkpoint, error)


def no_model_type(checkpoint: Checkpoint) -> UnsupportedModel:
    """The error for a config that doesn't say which model it is of."""
    file, more = checkpoint.config_file, ""
    if checkpoint.modelopt is not None:
        more = f"; {MODELOPT} says only how it is quantized: give the model's own config.json beside it"
    return UnsupportedModel(f"{file}: no model_type, so which model it is is not known{more}")


def cannot_be_built(checkpoint: Checkpoint, error: Exception) -> UnsupportedModel:
    """The error for a config of a known model type that the library's own class refuses."""
    name, reason = _name_of(checkpoint), words_of(error, 160, named=False)
    return UnsupportedModel(f"{checkpoint.path}: architecture {name} can't be built: {reason}")


@contextmanager
def library_errors(checkpoint: Checkpoint, what: str) -> Iterator[None]:
    """Raises UnsupportedModel for whatever the library raises within: the model can't be `what`."""
    try:
        yield
    except (ScoremodeError, torch.OutOfMemoryError):
        raise
    # Not hidden: it is the refusal's reason.
    except Exception as error:
        raise UnsupportedModel(
            f"{checkpoint.path}: can't be {what} from its config: {words_of(error)}"
        ) from error


def check_layers(checkpoint: Checkpoint) -> None:
    """Raises CheckpointError where the config has more layers than the files have tensors.

    Building the layers takes milliseconds each, and every one has a tensor at least.
    """
    layers, tensors = layers_of(checkpoint.config), len(checkpoint.tensors)
    if layers > tensors:
        raise CheckpointError(
            f"{checkpoint.config_file}: says {layers:,} layers, and all the files have "
            f"{tensors:,} tensor{'s' * (tensors != 1)}"
        )
