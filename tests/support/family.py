"""A family of formats, as all tests of families are given it.

A module of support/families that has a `FAMILY` is found by `all_families`. Its cases are tested by
tests/schemes/test_families.py (headers, bits, what a config promises, what is refused) and
tests/engines/torch/test_families.py (whole models against dense ones), and are bases of the fuzz.
"""

import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from support.models import edit_config, edit_tensors, make_checkpoint

from scoremode.schemes.library import Library

Tensors = dict[str, torch.Tensor]
Config = dict[str, Any]
LINEAR = re.compile(r"(_proj|experts\.\d+\.\w+)\.weight$")
# Bits, type, strategy, symmetric, dynamic and columns of a group of an input.
Input = tuple[int, str, str, bool, bool, int | None]
# A config's changed fields, and words of the error.
Refused = tuple[Config, str]


@dataclass(frozen=True)
class Case:
    """A way in which a family stores linears.

    - `quantize`: a weight [O, I] → stored tensors by suffix, and `dense`, the effective weight
    - `config`: the `quantization_config`
    - `label`, `inputs`: of the Scheme, and of the inputs that it declares to be quantized
    - `models`: random models that are quantized whole; `dtypes`: in which these are their dense twins
    - `metadata`: what a file says of a weight [O, I] beside its tensors
    - `shape`: of a linear by itself; `loose`: suffixes whose sizes a config promises as far as it can
    """

    name: str
    quantize: Callable[[torch.Tensor], Tensors]
    config: Config
    label: str
    inputs: str | None = None
    models: tuple[str, ...] = ("llama",)
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    metadata: Callable[[torch.Tensor], str] | None = None
    shape: tuple[int, int] = (16, 96)
    loose: tuple[str, ...] = ()


Pair = tuple[Path, Path]


def make_pair(
    folder: Path,
    name: str,
    quantize: Callable[[torch.Tensor], Tensors],
    config: Config,
    *,
    linear: re.Pattern[str] = LINEAR,
    dtype: torch.dtype = torch.bfloat16,
    change: Callable[[Config], None] | None = None,
    prepare: Callable[[Tensors], None] | None = None,
    fits: Callable[[torch.Tensor], bool] = lambda weight: True,
    metadata: Callable[[torch.Tensor], str] | None = None,
) -> Pair:
    """A random model whose weights that `linear` finds are quantized, and a dense one of what they
    stand for.

    `change`, `prepare`: its settings and its tensors, in both; `fits`: whether a weight is quantized.
    """
    packed, dense = folder / "packed", folder / "dense"
    for target in (packed, dense):
        make_checkpoint(target, name, dtype=dtype, change=change)
        if prepare is not None:
            edit_tensors(target, prepare)
    path = packed / "model.safetensors"
    tensors, weights, said = load_file(path), {}, {"format": "pt"}
    for key in [key for key in tensors if linear.search(key) and fits(tensors[key])]:
        weight = tensors.pop(key)
        if metadata is not None:
            said[key] = metadata(weight)
        stored = quantize(weight)
        weights[key] = stored.pop("dense")
        tensors |= {f"{key.removesuffix('weight')}{suffix}": t for suffix, t in stored.items()}
    save_file(tensors, path, metadata=said)
    edit_tensors(dense, lambda tensors: tensors.update(weights))
    edit_config(packed, quantization_config=config)
    return packed, dense


def whole_pair(folder: Path, name: str, case: Case) -> Pair:
    return make_pair(folder, name, case.quantize, case.config, metadata=case.metadata)


@dataclass(frozen=True)
class Family:
    """A library's formats.

    - `config`: a `quantization_config` that is read; `not_decoded`, `not_understood`: changed fields
      with which it is refused, and words of the reason
    - `pair`: a whole model of a case, and the dense one of its weights
    - `spare`: makes a config leave a module dense, by the library's own list
    - `claims`: whether a dense linear that the config doesn't spare is an error
    - `promises`: whether a config alone tells a linear's tensors
    - `weight`, `input`: what a module is, by plain torch, for the fuzz; None if it leaves the family
      out. Both get the stored tensors, the module's name, the config and the file's metadata.
    """

    library: type[Library[Any]]
    config: Config
    cases: tuple[Case, ...] = ()
    pair: Callable[[Path, str, Case], Pair] = whole_pair
    spare: Callable[[Config, str], None] | None = None
    claims: bool = False
    promises: bool = True
    weight: Callable[[Tensors, str, Config, dict[str, str]], torch.Tensor] | None = None
    input: Callable[[Tensors, str, Config, dict[str, str]], Input | None] = lambda *_: None
    not_decoded: tuple[Refused, ...] = ()
    not_understood: tuple[Refused, ...] = ()


def listed(field: str) -> Callable[[Config, str], None]:
    """Spares a module by a list of names."""

    def add(config: Config, name: str) -> None:
        config[field] = [*(config.get(field) or []), name]

    return add


@cache
def all_families() -> Mapping[str, Family]:
    """The families by the names of their modules."""
    found = {}
    for module in pkgutil.iter_modules([str(Path(__file__).parent / "families")]):
        family = getattr(import_module(f"support.families.{module.name}"), "FAMILY", None)
        if family is not None:
            found[module.name] = family
    return found


def all_cases(only: Callable[[Family], bool] = lambda family: True) -> Iterable[tuple[str, Case]]:
    """Each case of each family, by the family's name."""
    return [(name, case) for name, own in all_families().items() if only(own) for case in own.cases]
