"""Every case of every family: its headers and bits, what its config promises, and what is refused."""

import re

import pytest
import torch
from safetensors.torch import save_file
from support.family import Case, all_cases, all_families
from support.promises import NAMES, headers, promised_headers, promises_of
from support.schemes import decode, random_weight, same, write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import CheckpointError, ScoremodeError, UnsupportedFormat
from scoremode.schemes.layout import Linear
from scoremode.schemes.resolve import LIBRARIES, resolve

FAMILIES = all_families()
CASES = [pytest.param(*one, id=f"{one[0]} {one[1].name}") for one in all_cases()]


class Stored:
    """A linear `m` as a case stores it, and the checkpoint of given tensors."""

    def __init__(self, case: Case, folder):
        self.case, self.folder = case, folder
        torch.manual_seed(0)
        self.weight = random_weight(*case.shape, torch.bfloat16)
        self.tensors = {k: t.contiguous() for k, t in case.quantize(self.weight).items()}
        self.dense = self.tensors.pop("dense")

    def resolved(self, tensors: dict[str, torch.Tensor], name: str = "m"):
        all_tensors = {f"{name}.{k}": t for k, t in tensors.items()}
        # Another one, so that what is missing of the first one is not missing everywhere.
        all_tensors |= {f"n.{k}": t.clone() for k, t in self.tensors.items()}
        all_tensors |= {"lm_head.weight": torch.zeros(5, 4)}
        path = write_checkpoint(self.folder, all_tensors, self.case.config)
        if self.case.metadata is not None:
            said = dict.fromkeys((f"{name}.weight", "n.weight"), self.case.metadata(self.weight))
            save_file(all_tensors, self.folder / "model.safetensors", metadata=said)
        return resolve(open_checkpoint(path))

    def refusal(self, tensors: dict[str, torch.Tensor]) -> str | None:
        """The line that it ends in; None where `m` is no quantized linear."""
        try:
            assert "m" not in self.resolved(tensors).quantized
        except ScoremodeError as error:
            assert type(error) in (CheckpointError, UnsupportedFormat)
            return str(error)
        return None


@pytest.mark.parametrize(("family", "case"), CASES)
def test_what_it_stores_is_what_it_stands_for(family, case, tmp_path):
    stored = Stored(case, tmp_path)
    schemes = stored.resolved(stored.tensors | {"bias": torch.zeros(case.shape[0])})
    assert sorted(schemes.quantized) == ["m", "n"] and not schemes.claims("lm_head")
    scheme = schemes.quantized["m"]
    assert (scheme.shape, scheme.label) == (case.shape, case.label)
    assert (scheme.inputs and scheme.inputs.label) == case.inputs
    assert set(scheme.tensors) <= set(stored.tensors)
    same(decode(scheme, stored.tensors, stored.dense.dtype), stored.dense)


@pytest.mark.parametrize(("family", "case"), CASES)
def test_a_tensor_that_is_missing_or_of_another_kind_is_refused(family, case, tmp_path):
    stored = Stored(case, tmp_path)
    for suffix in stored.resolved(stored.tensors).quantized["m"].tensors:
        tensor = stored.tensors[suffix]
        without = {k: t for k, t in stored.tensors.items() if k != suffix}
        kind = torch.int16 if tensor.dtype == torch.int64 else torch.int64
        # One number has any rank.
        deeper = [tensor[None, None]] if tensor.numel() > 1 else []
        others = [torch.zeros(tensor.shape, dtype=kind), *deeper]
        for tensors in (without, *(without | {suffix: other} for other in others)):
            words = stored.refusal(tensors)
            if words is None:
                # What is left is of no linear, which ends when a model is loaded.
                assert FAMILIES[family].library.marks.isdisjoint(tensors), suffix
            else:
                assert re.search(r"(^|tensor )m[:. ]", words) and "\n" not in words, suffix
    words = stored.refusal(stored.tensors | {"surprise": torch.ones(1)})
    assert words is not None and words.startswith("m") and "surprise" in words


@pytest.mark.parametrize(
    ("family", "case"), [one for one in CASES if FAMILIES[one.values[0]].promises]
)
def test_a_config_promises_what_is_stored(family, case, tmp_path):
    stored = Stored(case, tmp_path)
    linear = Linear("model.layers.0.mlp.up_proj", case.shape, NAMES[torch.bfloat16])
    promised = promised_headers(promises_of(FAMILIES[family].library)(case.config)(linear))
    expected = headers(stored.tensors)
    assert promised.keys() == expected.keys()
    for suffix, (dtype, shape) in expected.items():
        assert promised[suffix][0] == dtype, suffix
        assert suffix in case.loose or promised[suffix][1] == shape, suffix


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.about[0])
def test_a_library_is_told_by_its_own_tensors_alone(library, tmp_path):
    for suffix in library.looks_by:
        tensors = {f"m.{suffix}": torch.zeros(4, dtype=torch.uint8)}
        with pytest.raises(CheckpointError) as error:
            resolve(open_checkpoint(write_checkpoint(tmp_path / suffix, tensors)))
        words = f"config.json says nothing; it looks like {library.looks}"
        assert str(error.value).endswith(words)


def refused(field: str) -> list:
    return [(name, *row) for name, family in FAMILIES.items() for row in getattr(family, field)]


@pytest.mark.parametrize(("family", "change", "words"), refused("not_decoded"))
def test_a_config_that_is_not_decoded_is_named(family, change, words):
    """Fields that change a weight's meaning."""
    own = FAMILIES[family]
    with pytest.raises(UnsupportedFormat) as error:
        promises_of(own.library)(own.config | change)
    text = str(error.value)
    assert f"{own.library.method} with" in text and words in text
    assert text.endswith(": not decoded") and "\n" not in text


@pytest.mark.parametrize(("family", "change", "words"), refused("not_understood"))
def test_a_config_that_can_not_be_understood(family, change, words):
    """Values of another type than their field's."""
    own = FAMILIES[family]
    with pytest.raises(CheckpointError, match=r"^quantization_config can't be understood") as error:
        promises_of(own.library)(own.config | change)
    text = str(error.value)
    assert type(error.value) is CheckpointError and words in text and "\n" not in text
