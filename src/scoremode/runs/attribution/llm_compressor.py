"""A recipe in llm-compressor's form: config groups of one `QuantizationModifier`, and what to ignore.

The groups are those that the quants' own `quantization_config` has, with the modules that were chosen
as their targets (compressed-tensors, `quantization_config.json`; llm-compressor, docs on recipes).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.errors import UnsupportedFormat
from scoremode.schemes.resolve import resolve

__all__ = ["check_expressible", "recipe_yaml"]

_METHOD = "compressed-tensors"
# Fields of a group that say how, and not what.
_HOW = ("weights", "input_activations", "output_activations")


def check_expressible(models: Sequence[str]) -> None:
    """Raises UnsupportedFormat for a quant whose format llm-compressor's recipes don't name."""
    for model in models:
        checkpoint = open_checkpoint(model)
        method = (checkpoint.quantization or {}).get("quant_method")
        if method != _METHOD or not (checkpoint.quantization or {}).get("config_groups"):
            raise UnsupportedFormat(
                f"--write-recipe: {checkpoint.source} is {method or 'not quantized'}, and a recipe "
                f"names the config groups of {_METHOD}'s checkpoints"
            )


def recipe_yaml(base: str, chosen: Mapping[str, Sequence[str]]) -> str:
    """The recipe's text.

    - `base`: the model to be quantized, all of whose other linears are to be ignored.
    - `chosen`: for each quant the names of its modules that were chosen.

    Raises CheckpointError, UnsupportedFormat.
    """
    import yaml

    groups: dict[str, dict[str, Any]] = {}
    taken: set[str] = set()
    for model, modules in chosen.items():
        checkpoint = open_checkpoint(model)
        named = resolve(checkpoint).groups
        config = (checkpoint.quantization or {})["config_groups"]
        for module in modules:
            if (group := named.get(module)) is None:
                continue
            how = {name: config[group].get(name) for name in _HOW}
            key = next((k for k, g in groups.items() if _same(g, how)), f"group_{len(groups)}")
            groups.setdefault(key, how | {"targets": []})["targets"].append(module)
            taken.add(module)
    modifier = {"config_groups": groups, "ignore": _others(open_checkpoint(base), taken)}
    stage = {"quantization_stage": {"quantization_modifiers": {"QuantizationModifier": modifier}}}
    head = (
        f"# Chosen by scoremode attribute --budget among {', '.join(chosen)}.\n"
        "# It says what each module is stored as. How its values are found is the modifier's: costs\n"
        "# were measured on the quants named above, so another algorithm than theirs will differ.\n"
    )
    return head + yaml.safe_dump(_plain(stage), sort_keys=False, width=10_000)


def _others(base: Checkpoint, taken: set[str]) -> list[str]:
    """The base's modules of matrices that are not quantized, which llm-compressor may take for
    linears."""
    matrices = (name for name, info in base.tensors.items() if len(info.shape) == 2)
    # A head that is tied has no tensor of its own, and is a linear all the same.
    modules = dict.fromkeys([*(name.rpartition(".")[0] for name in matrices), "lm_head"])
    return [module for module in modules if module not in taken]


def _same(group: Mapping[str, Any], how: Mapping[str, Any]) -> bool:
    return all(group[name] == how[name] for name in _HOW)


def _plain(value: Any) -> Any:
    """Without fields that are not set, which the library fills in itself."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items() if v is not None}
    return [_plain(v) for v in value] if isinstance(value, list) else value
